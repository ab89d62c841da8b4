"""The groups of one rollout of a host: how they are asked for, and what became of them."""

from __future__ import annotations

import functools
import os
from asyncio import Semaphore
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollout_patch.assignment import Assignment
from rollout_patch.eligibility import Capabilities, choose_arm
from rollout_patch.errors import RequestFailed
from rollout_patch.group import GroupReport, generate_group, log_way
from rollout_patch.hosts.options import Options, read_options
from rollout_patch.hosts.stock import NothingToSend, StockAdapter
from rollout_patch.media import Encoder
from rollout_patch.metrics import group_metrics
from rollout_patch.permits import Permits
from rollout_patch.recorder import json_lines, sample_rows
from rollout_patch.requests import SEED

SECONDS_BETWEEN = 1.0
"""How long slime, Miles and Relax wait before they send a request again (their `http_utils.post`)."""


@dataclass(slots=True)
class RolloutCalls:
    """The groups of one rollout: how to ask for them, and what became of them."""

    options: Options
    capabilities: Capabilities
    rollout_id: int
    seed: int
    reports: list[GroupReport] = field(default_factory=list)

    @classmethod
    def of(cls, args: Any, rollout_id: int) -> RolloutCalls:
        """The calls of a rollout, by the host's arguments and the environment."""
        options = read_options(args, os.environ)
        capabilities = Capabilities(
            seeded=bool(getattr(args, "sglang_enable_deterministic_inference", False)),
            seed_per_slot=options.seed_per_slot,
            sampling_params_lists=options.parameter_lists,
        )
        return cls(options, capabilities, rollout_id, int(getattr(args, "rollout_seed", 0) or 0))

    def params_by_slot(
        self, sampling_params: Mapping[str, Any], group: Sequence[Any], seed_of: Callable[[int], int]
    ) -> list[dict[str, Any]]:
        """Each slot's sampling parameters, under deterministic inference with the seed that the host gives the slot."""
        seeded = self.capabilities.seeded
        return [{**sampling_params, **({SEED: seed_of(slot)} if seeded else {})} for slot, _ in enumerate(group)]

    def assign(self, group: Sequence[Any]) -> Assignment:
        """The arm of a group."""
        index = group[0].group_index
        return self.options.assign(
            seed=self.seed, rollout_id=self.rollout_id, group_index=index if index is not None else -1
        )

    async def generate(
        self,
        group: Sequence[Any],
        adapter: StockAdapter,
        *,
        assignment: Assignment,
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
        arm = assignment.arms[0]
        names = [*circumstances, *(["single_sample"] if len(group) < 2 else [])]
        if choose_arm(arm, names)[0] == "per-sample" and (names or assignment.design == "fixed"):
            self._leave_to_host(group, assignment, names)
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
                arm,
                group,
                adapter=adapter,
                post=send,
                capabilities=self.capabilities,
                retries=attempts - 1,
                retry_wait=SECONDS_BETWEEN,
                recorder=self._recorder("exchanges", group),
                chunk=self.options.chunk,
                permits=permits_of(semaphore, capacity),
                encoder=encoder,
                aborted=aborted,
                circumstances=circumstances,
            )
        except NothingToSend:
            self._leave_to_host(group, assignment, ["finished_sample"])
            return None
        self._count(group, assignment, report)
        return report

    def record(self, group: Sequence[Any], report: GroupReport) -> None:
        """Writes the samples of a scored group where a folder was given."""
        write_sample = self._recorder("samples", group)
        if write_sample is None:
            return
        for sample, row in zip(group, sample_rows(report, self.rollout_id, group[0].group_index), strict=True):
            reward = {"reward": float(sample.reward)} if isinstance(sample.reward, (int, float)) else {}
            write_sample({**row, **reward})

    def metrics(self) -> dict[str, float]:
        """The counts of the rollout."""
        return group_metrics(self.reports)

    def _leave_to_host(self, group: Sequence[Any], assignment: Assignment, names: Collection[str]) -> None:
        _, reasons = choose_arm(assignment.arms[0], names)
        log_way(assignment.arms[0], "per-sample", reasons)
        self._count(group, assignment, GroupReport(assignment.arms[0], "per-sample", reasons, 0, 0, ()))

    def _count(self, group: Sequence[Any], assignment: Assignment, report: GroupReport) -> None:
        """Keeps a group's report for the metrics, and logs how it was assigned and which way it went."""
        self.reports.append(report)
        if write_group := self._recorder("groups", group):
            way = {
                "arm": report.arm_used,
                "reasons": report.reasons,
                "requests": report.requests,
                "notes": report.notes,
            }
            write_group({**assignment.to_json(), **way})

    def _recorder(self, kind: str, group: Sequence[Any]) -> Callable[[Mapping[str, Any]], None] | None:
        if self.options.record is None:
            return None
        self.options.record.mkdir(parents=True, exist_ok=True)
        labels = {"rollout_id": self.rollout_id, "group_index": group[0].group_index}
        return json_lines(self.options.record / f"rollout.{kind}.jsonl", labels)


@functools.lru_cache(maxsize=16)
def permits_of(semaphore: Semaphore, capacity: int) -> Permits:
    """One `Permits` for a host's semaphore, so that all groups take turns."""
    return Permits(semaphore, capacity)
