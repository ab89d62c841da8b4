"""The groups of one rollout of a host: how they are asked for, and what became of them."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from asyncio import Semaphore
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsFloat

from rollout_patch.assignment import Assignment
from rollout_patch.eligibility import Capabilities, choose_arm
from rollout_patch.errors import RequestFailed, UnsupportedHost
from rollout_patch.group import GroupReport, Refusals, generate_group, log_never, log_way
from rollout_patch.hosts.options import Options, read_options
from rollout_patch.hosts.recording import Recording
from rollout_patch.hosts.stock import NothingToSend, StockAdapter, copy_of
from rollout_patch.media import Encoder
from rollout_patch.metrics import group_metrics
from rollout_patch.permits import Permits
from rollout_patch.recorder import sample_rows
from rollout_patch.requests import SEED

SECONDS_BETWEEN = 1.0
"""How long slime, Miles and Relax wait before they send a request again (their `http_utils.post`)."""

_log = logging.getLogger("rollout_patch")


@dataclass(frozen=True, slots=True)
class Turn:
    """One of the arms that a group is asked for in.

    Attributes:
        assignment: The group's.
        arm: One of its arms.
        trained: Whether the samples are the host's own; others are copies, compared and thrown away.
    """

    assignment: Assignment
    arm: str
    trained: bool


Ask = Callable[[list[Any], Turn], Awaitable[list[Any] | None]]
"""Generates, scores and records samples in an arm; gives `None` where the host's own way is to be gone."""


@dataclass(slots=True)
class RolloutCalls:
    """The groups of one rollout: how to ask for them, and what became of them.

    Attributes:
        options: How they are asked for.
        capabilities: What the engine does.
        rollout_id: The host's number of the rollout.
        seed: Of the draws of arms.
        reward_key: Which of several rewards of a sample is trained on; `None` where there is one.
        evaluation: These groups are evaluated and not trained on: never compared, nor recorded.
        reports: One a group.
        compared: How many groups were asked for in a second arm.
        compared_requests: How many requests that took.
        compared_lost: How many of those groups failed or were aborted.
        recording: What is recorded of the rollout, if anything.
    """

    options: Options
    capabilities: Capabilities
    rollout_id: int
    seed: int
    reward_key: str | None = None
    evaluation: bool = False
    reports: list[GroupReport] = field(default_factory=list)
    compared: int = 0
    compared_requests: int = 0
    compared_lost: int = 0
    recording: Recording | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.options.record is not None:
            self.recording = Recording(self.options.record, self.rollout_id)

    @classmethod
    def of(cls, args: Any, rollout_id: int, evaluation: bool | None = None) -> RolloutCalls:
        """The calls of a rollout, by the host's arguments and the environment.

        Args:
            args: The host's arguments.
            rollout_id: Its number of the rollout.
            evaluation: Whether this is an evaluation; `None` where the host does not evaluate by groups.

        Raises:
            UnsupportedHost: Evaluation is asked for, and the host evaluates sample by sample.
            ValueError: An option has no such value.
            OSError: The folder to record to cannot be written.
        """
        options = read_options(args, os.environ)
        if options.evaluation and evaluation is None:
            raise UnsupportedHost("rollout_patch_evaluation is set, but this host evaluates sample by sample")
        if evaluation:
            options = replace(options, design="fixed", record=None)
        capabilities = Capabilities(
            seeded=bool(getattr(args, "sglang_enable_deterministic_inference", False)),
            seed_per_slot=options.seed_per_slot,
            text_lists=options.parameter_lists,
            sampling_params_lists=options.parameter_lists,
        )
        seed = int(getattr(args, "rollout_seed", 0) or 0)
        return cls(options, capabilities, rollout_id, seed, getattr(args, "reward_key", None), bool(evaluation))

    def warn_if_never(self, flags: Collection[str]) -> bool:
        """Warns, once a process, where flags alone send every group per sample, and says whether they do.

        Args:
            flags: The conditions that the host's flags decide.
        """
        able = self.capabilities
        seeds = {
            "deterministic_inference": able.seeded and not able.seed_per_slot,
            "sampling_params_lists_refused": able.seeded and not able.sampling_params_lists,
        }
        arm = self.options.arm
        way, reasons = choose_arm(arm, [*flags, *(name for name, holds in seeds.items() if holds)])
        if way != "per-sample" or arm == "per-sample":
            return False
        log_never(arm, reasons)
        return True

    def params_by_slot(
        self, sampling_params: Mapping[str, Any], group: Sequence[Any], seed_of: Callable[[int], int]
    ) -> list[dict[str, Any]]:
        """Each slot's sampling parameters, under deterministic inference with the seed that the host gives the slot."""
        seeded = self.capabilities.seeded
        return [{**sampling_params, **({SEED: seed_of(slot)} if seeded else {})} for slot, _ in enumerate(group)]

    def assign(self, group: Sequence[Any]) -> Assignment:
        """The arms of a group.

        Raises:
            UnsupportedHost: Arms are drawn or groups recorded by their numbers, and the group has none.
        """
        index = group[0].group_index
        if index is None and self.options.design != "fixed":
            raise UnsupportedHost(f"the design {self.options.design!r} draws by group_index, and a sample has none")
        if index is None and self.recording:
            raise UnsupportedHost("groups are recorded by group_index, and a sample has none")
        return self.options.assign(seed=self.seed, rollout_id=self.rollout_id, group_index=index)

    async def in_its_arms(self, group: list[Any], ask: Ask) -> list[Any] | None:
        """Asks for a group in the arms it was assigned, at the same time, and gives back what `ask` made of its own.

        A second arm gets copies. That it ends is waited for, so that how long a group takes does not tell which of its
        arms is trained on; that it fails takes nothing from the group.

        Args:
            group: The host's samples.
            ask: What is done in each arm.
        """
        assignment = self.assign(group)
        copies = [[copy_of(sample) for sample in group] for _ in assignment.arms[1:]]
        others = [
            asyncio.ensure_future(self._compare(ask, own, Turn(assignment, arm, trained=False)))
            for own, arm in zip(copies, assignment.arms[1:], strict=True)
        ]
        try:
            done = await ask(group, Turn(assignment, assignment.arms[0], trained=True))
            await asyncio.gather(*others)
        except BaseException:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            raise
        return done

    async def _compare(self, ask: Ask, copies: list[Any], turn: Turn) -> None:
        try:
            await ask(copies, turn)
        except Exception as error:  # whatever the host's reward or hooks may raise
            self.compared_lost += 1
            _log.warning("a group is trained on but not compared: %s: %s", type(error).__name__, error)

    async def generate(
        self,
        group: Sequence[Any],
        adapter: StockAdapter,
        *,
        turn: Turn,
        post: Callable[..., Any],
        encoder: Encoder,
        attempts: int,
        semaphore: Semaphore,
        capacity: int,
        aborted: Callable[[], bool],
        circumstances: Collection[str],
    ) -> GroupReport | None:
        """Generates a group, or returns `None` where the host's own way is to be gone; both are counted and logged.

        The way is the host's own where its flags leave nothing but `per-sample`, and where that is asked for always.
        """
        names = [*circumstances, *(["single_sample"] if len(group) < 2 else [])]
        if self.hosts_own(turn, names):
            self._leave_to_host(group, turn, names)
            return None

        async def send(payload: dict[str, Any], headers: Mapping[str, str]) -> Any:
            try:
                return await post(adapter.url, payload, max_retries=1, headers=dict(headers) or None)
            except Exception as error:
                response = getattr(error, "response", None)
                status = getattr(response, "status_code", None)
                raise RequestFailed(status, str(error) if response is None else response.text) from error

        try:
            report = await generate_group(
                turn.arm,
                group,
                adapter=adapter,
                post=send,
                capabilities=self.capabilities,
                retries=attempts - 1,
                retry_wait=SECONDS_BETWEEN,
                recorder=self._recorder("exchanges", group, turn),
                chunk=self.options.chunk,
                permits=permits_of(semaphore, capacity),
                encoder=encoder,
                aborted=aborted,
                circumstances=circumstances,
                refused=refusals_of(semaphore),
            )
        except NothingToSend:
            self._leave_to_host(group, turn, ["finished_sample"])
            return None
        self._count(group, turn, report)
        return report

    def record(self, group: Sequence[Any], turn: Turn, report: GroupReport) -> None:
        """Writes the samples of a scored group where a folder was given."""
        write_sample = self._recorder("samples", group, turn)
        if write_sample is None:
            return
        index = group[0].group_index
        place = {"rollout_id": self.rollout_id, "group_index": index}
        assignment = turn.assignment.of_samples(turn.arm, seed=self.seed, **place)
        for sample, row in zip(group, sample_rows(report, self.rollout_id, index), strict=True):
            reward = sample.reward.get(self.reward_key) if isinstance(sample.reward, Mapping) else sample.reward
            known = {"reward": float(reward)} if isinstance(reward, SupportsFloat) else {}
            write_sample({**row, **known, "extra": {"assignment": assignment}})

    def finish(self, output: Any) -> Any:
        """The host's output of the rollout with the counts among its metrics, once all is recorded."""
        if self.recording:
            self.recording.close()
        output.metrics = {**(output.metrics or {}), **self.metrics()}
        return output

    def metrics(self) -> dict[str, float]:
        """The counts of the rollout."""
        counts = group_metrics(self.reports)
        if self.options.design == "probe":
            for name in ("compared", "compared_requests", "compared_lost"):
                counts[f"rollout_patch/{name}"] = float(getattr(self, name))
        if self.recording and self.recording.lost:
            counts["rollout_patch/lines_lost"] = float(self.recording.lost)
        return {f"eval/{name}": count for name, count in counts.items()} if self.evaluation else counts

    def hosts_own(self, turn: Turn, names: Collection[str]) -> bool:
        """Whether the host's flags rule out all but `per-sample`, or nothing else is asked for anyway."""
        if turn.assignment.design == "fixed" and turn.arm == "per-sample":
            return True
        return bool(names) and choose_arm(self.options.arm, names)[0] == "per-sample"

    def _leave_to_host(self, group: Sequence[Any], turn: Turn, names: Collection[str]) -> None:
        if not turn.trained:
            return
        _, reasons = choose_arm(turn.arm, names)
        log_way(turn.arm, "per-sample", reasons)
        self._count(group, turn, GroupReport(turn.arm, "per-sample", reasons, 0, 0, ()))

    def _count(self, group: Sequence[Any], turn: Turn, report: GroupReport) -> None:
        """Keeps a group's report for the metrics, and logs how it was assigned and which way it went."""
        if turn.trained:
            self.reports.append(report)
        else:
            self.compared += 1
            self.compared_requests += report.requests
            self.compared_lost += report.aborted
        if write_group := self._recorder("groups", group, turn):
            way = {
                "arm": report.arm_used,
                "reasons": report.reasons,
                "requests": report.requests,
                "notes": report.notes,
                "trained": turn.trained,
            }
            write_group({**turn.assignment.to_json(), **way})

    def _recorder(self, kind: str, group: Sequence[Any], turn: Turn) -> Callable[[Mapping[str, Any]], None] | None:
        if self.recording is None:
            return None
        labels = {"rollout_id": self.rollout_id, "group_index": group[0].group_index}
        return self.recording.lines(kind, turn.trained, labels)


@functools.lru_cache(maxsize=16)
def permits_of(semaphore: Semaphore, capacity: int) -> Permits:
    """One `Permits` for a host's semaphore, so that all groups take turns."""
    return Permits(semaphore, capacity)


@functools.lru_cache(maxsize=16)
def refusals_of(semaphore: Semaphore) -> Refusals:
    """What the engine behind a host's semaphore has refused in this run."""
    return set()
