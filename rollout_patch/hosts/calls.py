"""The groups of one rollout of a host: how they are asked for, and what became of them."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsFloat

from rollout_patch.assignment import Assignment
from rollout_patch.eligibility import CONDITIONS, Capabilities, choose_arm
from rollout_patch.errors import PatchError, RequestAborted, RequestFailed, UnsupportedHost
from rollout_patch.group import GroupReport, generate_group
from rollout_patch.hosts.engines import Engines, Get, ask_engines
from rollout_patch.hosts.meeting import Asked, Meeting, RolloutEnded, SharedSemaphore, current_meeting
from rollout_patch.hosts.options import Options, read_options
from rollout_patch.hosts.recording import Recording
from rollout_patch.hosts.samples import Seats, answer_of, attributes_of, copy_of, restore
from rollout_patch.logs import log_never, log_once, log_seldom, log_way
from rollout_patch.metrics import group_counts
from rollout_patch.permits import Permits
from rollout_patch.recorder import sample_rows
from rollout_patch.refusals import Refusals
from rollout_patch.responses import unsent_output

SECONDS_BETWEEN = 1.0
"""How long slime, Miles and Relax wait before they send a request again (their `http_utils.post`)."""

GroupCode = Callable[..., Coroutine[Any, Any, Any]]


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


Ask = Callable[[list[Any], Turn], Awaitable[list[Any]]]
"""Generates, scores and records samples in an arm."""


@dataclass(frozen=True, slots=True)
class Way:
    """What the hosts, and Miles' two paths, have each their own of.

    Attributes:
        state_of: The host's state, from the first argument of its group function.
        semaphore: The attribute of the state that limits requests in flight.
        post: The host's own `post`.
        get: The host's own `get`.
        attempts: How often its `post` sends a request.
        conditions: The names of `CONDITIONS` that its flags and these samples decide.
        args: Its arguments.
        callbacks: Arguments of its group function that are called for each sample; never for copies, and with a
            second arm once that has ended too.
    """

    state_of: Callable[[Any], Any]
    semaphore: str
    post: Callable[..., Awaitable[Any]]
    get: Get
    attempts: int
    conditions: Callable[[Sequence[Any]], Sequence[str]]
    args: Any
    callbacks: Collection[str] = ()

    @property
    def router(self) -> str:
        """The router's address."""
        return f"http://{self.args.sglang_router_ip}:{self.args.sglang_router_port}"


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
        unknown_host: What of the host is unknown and was allowed.
        counts: The counts of the groups, by metric name; nothing of the groups themselves is kept.
        groups: How many came by, whichever way they went.
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
    unknown_host: str | None = None
    counts: Counter[str] = field(default_factory=Counter)
    groups: int = 0
    compared: int = 0
    compared_requests: int = 0
    compared_lost: int = 0
    recording: Recording | None = field(init=False, default=None)
    _engines: asyncio.Task[Engines] | None = field(init=False, default=None)
    _refused: Refusals | None = field(init=False, default=None)
    _shared: list[tuple[Any, str, Any]] = field(init=False, default_factory=list)

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
        seed = int(getattr(args, "rollout_seed", 0) or 0)
        reward_key = getattr(args, "reward_key", None)
        return cls(options, capabilities_of(args, options), rollout_id, seed, reward_key, bool(evaluation))

    def warn_if_never(self, flags: Collection[str]) -> bool:
        """Warns, once a process, where flags alone send every group per sample, and says whether they do.

        Args:
            flags: The conditions that the host's flags decide.
        """
        arm = self.options.arm
        way, reasons = choose_arm(arm, [*flags, *seed_conditions(self.capabilities)])
        if way != "per-sample" or arm == "per-sample":
            return False
        log_never(arm, reasons)
        return True

    def group_function(self, way: Way, stock_group: GroupCode) -> GroupCode:
        """The host's `generate_and_rm_group`, with the group's samples asked for as the options say.

        Args:
            way: The host's.
            stock_group: Its own function, which does all the rest.
        """
        signature = inspect.signature(stock_group)

        @functools.wraps(stock_group)
        async def generate_and_rm_group(*given: Any, **named: Any) -> list[Any]:
            bound = signature.bind(*given, **named)
            arguments = bound.arguments
            state, group = way.state_of(next(iter(arguments.values()))), arguments["group"]
            evaluation = bool(arguments.get("evaluation", False))
            later: list[Callable[[], None]] = []
            if self.options.design == "probe":
                called = {name: arguments[name] for name in way.callbacks if arguments.get(name) is not None}
                arguments.update({name: functools.partial(later.append, call) for name, call in called.items()})

            async def host_code(samples: list[Any], trained: bool) -> list[Any]:
                left_out = () if trained else way.callbacks
                own = {name: value for name, value in arguments.items() if name not in left_out} | {"group": samples}
                call = inspect.BoundArguments(signature, own)
                return list(await stock_group(*call.args, **call.kwargs))

            self.groups += evaluation is self.evaluation
            try:
                if evaluation is not self.evaluation or (state.aborted and not evaluation):
                    return await host_code(group, trained=True)
                return await self._by_options(way, state, group, host_code)
            finally:
                for call in later:
                    call()

        return generate_and_rm_group

    async def _by_options(
        self, way: Way, state: Any, group: list[Any], host_code: Callable[[list[Any], bool], Coroutine[Any, Any, Any]]
    ) -> list[Any]:
        self._share_permits(state, way.semaphore)
        names = [*way.conditions(group), *await self._engine_conditions(way)]
        names += ["evaluation"] if self.evaluation else []
        names += ["single_sample"] if len(group) < 2 else []
        try:
            assignment = self.assign(group)
        except PatchError as error:
            raise RolloutEnded(error) from error
        turn = Turn(assignment, assignment.arms[0], trained=True)
        if self._hosts_own(turn, names):
            _, reasons = choose_arm(turn.arm, names)
            log_way(turn.arm, "per-sample", reasons)
            self._count(group, turn, GroupReport(turn.arm, "per-sample", reasons, 0, 0, ()))
            return list(await host_code(group, True))

        async def ask(samples: list[Any], turn: Turn) -> list[Any]:
            return await self._in_arm(way, state, samples, turn, names, host_code(samples, turn.trained))

        return await self.in_its_arms(group, assignment, ask)

    async def _in_arm(
        self,
        way: Way,
        state: Any,
        group: list[Any],
        turn: Turn,
        names: Sequence[str],
        code: Coroutine[Any, Any, list[Any]],
    ) -> list[Any]:
        """Runs the host's code for a group, whose samples meet and are asked for in one arm."""
        reports: list[tuple[Sequence[int], GroupReport]] = []

        def aborted() -> bool:
            return bool(state.aborted) and not self.evaluation

        async def generate(asked: Mapping[int, Asked], permits: Permits | None) -> Mapping[int, Any]:
            slots, seats = list(asked), Seats(group, asked)
            report = await generate_group(
                turn.arm,
                slots,
                adapter=seats,
                post=_sender(way.post, asked[slots[0]].url),
                capabilities=self.capabilities,
                retries=way.attempts - 1,
                retry_wait=SECONDS_BETWEEN,
                recorder=self._recorder("exchanges", group, turn),
                chunk=self.options.chunk,
                permits=permits,
                aborted=aborted,
                circumstances=[name for name in names if name != "single_sample"],
                refused=self._refused,
                strict=self.options.strict,
            )
            reports.append((slots, report))
            return seats.answers or {slot: answer_of(unsent_output()) for slot in slots}

        meeting = Meeting(group, turn.arm != "per-sample", turn.trained, generate)
        before = [attributes_of(sample) for sample in group]
        lengths = [sample.response_length for sample in group]
        try:
            done = await meeting.run(code)
        except BaseException:
            if len(meeting.answered) < len(group):
                for sample, attributes in zip(group, before, strict=True):
                    restore(sample, attributes)
            raise
        if not meeting.met and [sample.response_length for sample in group] != lengths:
            what = "the host generated a group without the `post` of its module, so that the plug-in was not asked"
            raise RolloutEnded(UnsupportedHost(what))
        slots, report = _joined(turn.arm, reports)
        self._count(group, turn, replace(report, notes=(*report.notes, *meeting.notes)))
        if not report.aborted:
            self._record(group, done, turn, slots, report)
        return done

    def _share_permits(self, state: Any, name: str) -> None:
        stock = getattr(state, name)
        if not isinstance(stock, SharedSemaphore):
            setattr(state, name, SharedSemaphore(stock))
            self._shared.append((state, name, stock))
        self._refused = refusals_of(getattr(state, name).stock)

    async def _engine_conditions(self, way: Way) -> list[str]:
        """What the engines' own words rule out, asked once a rollout."""
        if self._engines is None:
            self._engines = asyncio.ensure_future(ask_engines(way.router, way.get))
        engines = await asyncio.shield(self._engines)
        log_once(logging.INFO, f"the engines: {engines.described()}")
        self.capabilities = engines.added_to(self.capabilities)
        unseen = bool(engines.silent) and getattr(way.args, "sglang_config", None) is not None
        return [*engines.conditions(), *(["engine_unknown"] if unseen else [])]

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

    async def in_its_arms(self, group: list[Any], assignment: Assignment, ask: Ask) -> list[Any]:
        """Asks for a group in the arms it was assigned, at the same time, and gives back what `ask` made of its own.

        A second arm gets copies. That it ends is waited for, so that how long a group takes does not tell which of its
        arms is trained on; that it fails takes nothing from the group.

        Args:
            group: The host's samples.
            assignment: The group's.
            ask: What is done in each arm.
        """
        copies = [[copy_of(sample) for sample in group] for _ in assignment.arms[1:]]
        others = [
            asyncio.ensure_future(self._compare(ask, own, Turn(assignment, arm, trained=False)))
            for own, arm in zip(copies, assignment.arms[1:], strict=True)
        ]
        try:
            done = await ask(group, Turn(assignment, assignment.arms[0], trained=True))
            if others:
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
        except (Exception, RolloutEnded) as error:  # whatever the host's reward or hooks may raise
            self.compared_lost += 1
            line = f"a group is trained on but not compared: {type(error).__name__}: {error}"
            log_seldom(line, key=("not compared", type(error)))

    def count_rewards(self, stock_rewards: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The host's reward of a group, which says so when it returns another number of rewards than of samples.

        The host's own code leaves samples without a reward then, or rewards over.
        """

        @functools.wraps(stock_rewards)
        async def batched_async_rm(args: Any, samples: Sequence[Any], *rest: Any, **named: Any) -> Any:
            rewards = await stock_rewards(args, samples, *rest, **named)
            meeting = current_meeting()
            if meeting is None or rewards is None or len(rewards) == len(samples):
                return rewards
            what = f"the group reward returned {len(rewards)} rewards for {len(samples)} samples"
            if self.options.strict:
                raise RolloutEnded(PatchError(what))
            meeting.notes.append("doubts/reward_count")
            log_once(logging.WARNING, f"{what}; the host goes on as without the patch; said once", "reward_count")
            return rewards

        return batched_async_rm

    def _record(
        self, group: Sequence[Any], done: Sequence[Any], turn: Turn, slots: Sequence[int], report: GroupReport
    ) -> None:
        """Writes the samples of a scored group where a folder was given."""
        write_sample = self._recorder("samples", group, turn)
        if write_sample is None:
            return
        index = group[0].group_index
        place = {"rollout_id": self.rollout_id, "group_index": index}
        assignment = turn.assignment.of_samples(turn.arm, seed=self.seed, **place)
        for slot, row in zip(slots, sample_rows(report, self.rollout_id, index), strict=True):
            reward = done[slot].reward
            reward = reward.get(self.reward_key) if isinstance(reward, Mapping) else reward
            known = {"reward": float(reward)} if isinstance(reward, SupportsFloat) else {}
            write_sample({**row, "index": slot, **known, "extra": {"assignment": assignment}})

    def finish(self, output: Any) -> Any:
        """The host's output of the rollout with the counts among its metrics.

        Raises:
            UnsupportedHost: No group came by.
        """
        if not self.groups and not self.evaluation:
            raise UnsupportedHost(
                "the rollout ended, and no group came by the plug-in: the host no longer calls the function that the "
                "plug-in replaces, and made its groups without it"
            )
        self.close()
        output.metrics = {**(output.metrics or {}), **self.metrics()}
        return output

    def close(self) -> None:
        """Gives the host its own things back, and waits until all is recorded; also after a rollout that failed."""
        for state, name, stock in self._shared:
            setattr(state, name, stock)
        self._shared.clear()
        if self._engines is not None and not self._engines.done():
            self._engines.get_loop().call_soon_threadsafe(self._engines.cancel)
        if self.recording:
            self.recording.close()

    def metrics(self) -> dict[str, float]:
        """The counts of the rollout."""
        counted = group_counts(())
        counted.update(self.counts)
        counts = {f"rollout_patch/{name}": float(count) for name, count in counted.items()}
        if self.options.design == "probe":
            for name in ("compared", "compared_requests", "compared_lost"):
                counts[f"rollout_patch/{name}"] = float(getattr(self, name))
        if self.recording and self.recording.lost:
            counts["rollout_patch/lines_lost"] = float(self.recording.lost)
        if self.unknown_host:
            counts["rollout_patch/unknown_host"] = 1.0
        return {f"eval/{name}": count for name, count in counts.items()} if self.evaluation else counts

    def _hosts_own(self, turn: Turn, names: Collection[str]) -> bool:
        """Whether conditions rule out all but `per-sample`, or nothing else is asked for anyway."""
        if turn.assignment.design == "fixed" and turn.arm == "per-sample":
            return True
        return bool(names) and choose_arm(self.options.arm, names)[0] == "per-sample"

    def _count(self, group: Sequence[Any], turn: Turn, report: GroupReport) -> None:
        """Counts a group for the metrics, and logs how it was assigned and which way it went."""
        if turn.trained:
            self.counts.update(group_counts((report,)))
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
                **({"unknown_host": self.unknown_host} if self.unknown_host else {}),
            }
            write_group({**turn.assignment.to_json(), **way})

    def _recorder(self, kind: str, group: Sequence[Any], turn: Turn) -> Callable[[Mapping[str, Any]], None] | None:
        if self.recording is None:
            return None
        labels = {"rollout_id": self.rollout_id, "group_index": group[0].group_index}
        return self.recording.lines(kind, turn.trained, labels)


def capabilities_of(args: Any, options: Options) -> Capabilities:
    """What the engine does, by the host's flags and the options."""
    return Capabilities(
        seeded=bool(getattr(args, "sglang_enable_deterministic_inference", False)),
        seed_per_slot=options.seed_per_slot,
        text_lists=options.parameter_lists,
        sampling_params_lists=options.parameter_lists,
        shared_routing_key=True,
    )


def seed_conditions(able: Capabilities) -> list[str]:
    """The conditions that hold for every group of an engine that samples from seeds."""
    held = {
        "deterministic_inference": able.seeded and not able.seed_per_slot,
        "sampling_params_lists_refused": able.seeded and not able.sampling_params_lists,
    }
    return [name for name, holds in held.items() if holds]


def flag_conditions(args: Any, **of_host: Any) -> list[str]:
    """The conditions that the flags common to the hosts decide, and those that a host adds, where they hold."""
    held = {
        "speculative_decoding": getattr(args, "sglang_speculative_algorithm", None),
        "disaggregated_prefill": getattr(args, "prefill_num_servers", None),
        "custom_generate": getattr(args, "custom_generate_function_path", None),
        **of_host,
    }
    if unknown := held.keys() - CONDITIONS.keys():
        raise ValueError(f"unknown conditions {sorted(unknown)}")
    return [name for name, holds in held.items() if holds]


def sample_conditions(group: Sequence[Any], status: Any) -> list[str]:
    """The conditions that a host's samples decide.

    Args:
        group: The samples.
        status: The host's enumeration of what may become of a sample.
    """
    fresh = (status.PENDING, status.ABORTED)
    held = {
        "sample_generate": any(getattr(sample, "generate_function_path", None) for sample in group),
        "finished_sample": any(sample.status not in fresh for sample in group),
    }
    return [name for name, holds in held.items() if holds]


def _sender(post: Callable[..., Awaitable[Any]], url: str) -> Callable[..., Awaitable[Any]]:
    """The host's `post` as `generate_group` wants it: one attempt, and errors that say what became of it."""

    async def send(payload: dict[str, Any], headers: Mapping[str, str]) -> Any:
        try:
            return await post(url, payload, max_retries=1, headers=dict(headers) or None)
        except Exception as error:
            if type(error).__name__ == "GenerationAborted":  # Relax's, of a request that it aborted itself
                raise RequestAborted(str(error)) from error
            response = getattr(error, "response", None)
            status = getattr(response, "status_code", None)
            raise RequestFailed(status, str(error) if response is None else response.text) from error

    return send


def _joined(arm: str, reports: Sequence[tuple[Sequence[int], GroupReport]]) -> tuple[list[int], GroupReport]:
    """The slots that were sent, in order, and one report of all that was sent of a group."""
    if not reports:
        return [], GroupReport(arm, arm, (), 0, 0, (), aborted=True)
    if len(reports) == 1:
        return list(reports[0][0]), reports[0][1]
    by_slot = sorted((slot, report, at) for slots, report in reports for at, slot in enumerate(slots))
    parts = [report for _, report in reports]
    return [slot for slot, _, _ in by_slot], replace(
        parts[0],
        requests=sum(part.requests for part in parts),
        retries=sum(part.retries for part in parts),
        reasons=tuple(dict.fromkeys(reason for part in parts for reason in part.reasons)),
        outputs=tuple(report.outputs[at] for _, report, at in by_slot),
        asked=tuple(report.asked[at] for _, report, at in by_slot),
        aborted=all(part.aborted for part in parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


@functools.lru_cache(maxsize=16)
def refusals_of(semaphore: asyncio.Semaphore) -> Refusals:
    """What the engine behind a host's semaphore has refused in this run."""
    return Refusals()
