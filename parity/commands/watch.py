"""Follows training runs while they go on, ours or a host's recordings, and says when the evidence suffices (L0, L1).

Each step is looked at once it is whole, in the same order by every watcher, so that one which is stopped and started
again comes to the same evidence.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from parity.contract_checks import Rules, check_batches, check_exchanges
from parity.errors import InputError
from parity.findings import Finding, Level, Message, Status, Verdict
from parity.records.exchanges import Exchange
from parity.records.experiment import ExperimentConfig
from parity.records.json_lines import read_appended
from parity.records.samples import Rollout
from parity.records.store import EXPERIMENT_FILE, read_experiment, run_store
from parity.report.checks import CheckResult
from parity.sources.dumps.sample_lines import samples_of_lines
from parity.stats import (
    DrawnGroup,
    GroupBounds,
    Trajectory,
    drawn_groups,
    margins_in_run,
    over_arms,
    trajectory_findings,
)

POLL_SECONDS = 1.0
_ENDED = ("completed", "failed", "interrupted")
ANSWERED = "groups_answered"
"""The check that a group fails while its samples are not scored."""
SAMPLES, EXCHANGES = "rollout.samples.jsonl", "rollout.exchanges.jsonl"


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """One whole step of a run: its samples, those in a second arm, and all exchanges."""

    run: str
    step: int
    rollouts: tuple[Rollout, ...]
    exchanges: tuple[Exchange, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """What has been seen so far.

    Attributes:
        bounds: What makes statistics bounded.
        margins: By metric.
        arms: The baseline and those compared with it; empty until two are known.
        baseline: The arm that is to be the baseline; empty for `per-sample`, or else the first by the alphabet.
        waiting: Groups drawn while only one arm was known.
        trajectories: The evidence by policy, and for further arms by policy and arm.
        undrawn: Groups whose arm was not drawn.
        steps: Steps seen.
        step: The last step seen.
        last: The same with its run, as words.
        failing: Contract findings that fail, first ones first.
    """

    bounds: GroupBounds
    margins: Mapping[str, float] = field(default_factory=lambda: margins_in_run({}))
    arms: tuple[str, ...] = ()
    baseline: str = ""
    waiting: tuple[DrawnGroup, ...] = ()
    trajectories: Mapping[str, Trajectory] = field(default_factory=dict)
    undrawn: int = 0
    steps: int = 0
    step: int | None = None
    last: str = ""
    failing: tuple[Finding, ...] = ()

    def update(self, step: WatchedStep) -> Watch:
        """What has been seen after one more step.

        Raises:
            InputError: A value is out of its bounds.
        """
        found: list[Finding] = []
        groups = list(self.waiting)
        undrawn = self.undrawn
        for rollout in step.rollouts:
            found += check_batches([rollout], Rules())
            drawn, others = drawn_groups(rollout, self.bounds)
            groups += drawn
            undrawn += others
        found += check_exchanges(step.exchanges, Rules())
        arms = _arms_of(groups, self.arms, self.baseline)
        trajectories = dict(self.trajectories)
        for policy in dict.fromkeys(group.policy for group in groups):
            for number, arm in enumerate(arms[1:]):
                key = f"{policy} {arm}" if number else policy
                trajectory = trajectories.get(key) or Trajectory(policy, (arms[0], arm), self.margins)
                of_pair = [group for group in groups if group.policy == policy and group.arm in trajectory.arms]
                trajectories[key] = trajectory.update(of_pair)
        failing = (*self.failing, *(finding.in_run(step.run) for finding in found if finding.fails))
        return replace(
            self,
            arms=arms,
            waiting=() if arms else tuple(groups),
            trajectories=trajectories,
            undrawn=undrawn,
            steps=self.steps + 1,
            step=step.step,
            last=f"{step.run} step {step.step}",
            failing=failing,
        )

    @property
    def findings(self) -> dict[str, list[Finding]]:
        """By arm that is compared with the baseline: what its evidence says, corrected for the number of arms."""
        found: dict[str, list[Finding]] = {}
        for trajectory in self.trajectories.values():
            found.setdefault(trajectory.arms[1], []).extend(trajectory_findings(trajectory))
        return over_arms(found)

    @property
    def verdict(self) -> Verdict:
        """DIFFERENT once the contract is broken or an arm's evidence says so, PARITY once all of it does."""
        found = [finding for of_arm in self.findings.values() for finding in of_arm]
        statuses = {finding.status for finding in found if finding.check == "trajectory_evidence"}
        if self.failing or Status.FAIL in statuses:
            return Verdict.DIFFERENT
        return Verdict.PARITY if statuses == {Status.PASS} else Verdict.INCONCLUSIVE

    def against(self, arm: str) -> Watch:
        """The same of the baseline and one other arm."""
        mine = {name: one for name, one in self.trajectories.items() if one.arms[1] == arm}
        return replace(self, arms=(self.arms[0], arm) if self.arms else (), trajectories=mine)


def _arms_of(groups: Sequence[DrawnGroup], known: tuple[str, ...], baseline: str) -> tuple[str, ...]:
    """The arms known so far, after the baseline in the order they came; none while one alone is known."""
    first = known[0] if known else baseline or "per-sample"
    new = sorted({group.arm for group in groups} - set(known), key=lambda arm: (arm != first, arm))
    arms = (*known, *new)
    return arms if len(arms) > 1 and (not baseline or arms[0] == baseline) else ()


class Follower(Protocol):
    """Where steps come from."""

    def poll(self) -> Iterator[WatchedStep]:
        """The steps that have become whole since the last call."""

    def ended(self) -> bool:
        """Whether no further step will come."""

    def rest(self) -> Iterator[WatchedStep]:
        """What has come of a step that may not be whole, for when one stops here."""


def follow(directory: Path) -> Follower:
    """Whoever reads this directory: an experiment's runs, or what a host's recorder writes.

    Raises:
        InputError: It is neither.
    """
    if (directory / EXPERIMENT_FILE).exists():
        return ExperimentFollower(directory)
    if not (directory / SAMPLES).exists() and not (directory / EXCHANGES).exists():
        raise InputError(
            f"{directory}: neither an experiment ({EXPERIMENT_FILE}) nor a recording ({SAMPLES}); "
            "give the --out of `parity run`, or the directory that the patch records to"
        )
    return RecordingFollower(directory)


def folders_of(directory: Path) -> tuple[Path, Path]:
    """Where a host's recorder writes what is trained on, and what is only compared."""
    return directory, directory / "compared"


def is_to_come(directory: Path) -> bool:
    """Whether there is nothing to follow yet, and nothing else either: whoever writes it may be starting."""
    return all(path.name.startswith((".", "compared", "report", "rollout.groups.")) for path in directory.glob("*"))


class ExperimentFollower:
    """Reads the finished steps of an experiment's runs, run by run in the order they started."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen: dict[str, int] = {}

    def poll(self) -> Iterator[WatchedStep]:
        """The steps finished since the last call."""
        for name in self._names():
            store = run_store(self._directory, name)
            for step in range(self._seen.get(name, 0), store.finished_steps()):
                compared = [store.compared] if store.compared.rollout_path(step).exists() else []
                both = [store, *compared]
                exchanges = tuple(exchange for one in both for exchange in one.exchanges(step))
                yield WatchedStep(name, step, tuple(one.rollout(step) for one in both), exchanges)
                self._seen[name] = step + 1

    def _names(self) -> list[str]:
        runs = [path for path in (self._directory / "runs").glob("*") if (path / "events.jsonl").exists()]
        return [path.name for path in sorted(runs, key=lambda path: (_started(path), path.name))]

    def ended(self) -> bool:
        """Whether every run has ended, of as many as were asked for."""
        outcomes = [run_store(self._directory, name).outcome() for name in self._names()]
        return bool(outcomes) and all(outcome.get("status") in _ENDED for outcome in outcomes)

    def rest(self) -> Iterator[WatchedStep]:
        """Nothing: a step that is not finished is made again."""
        return iter(())


def asked_of(directory: Path) -> ExperimentConfig:
    """What an experiment asks for: its arms, and the margins that a mixed run's evidence is held to.

    Raises:
        InputError: The experiment cannot be read.
    """
    return ExperimentConfig.from_json(read_experiment(directory).get("config"))


def _started(path: Path) -> float:
    events = run_store(path.parents[1], path.name).events()
    return float(events[0].get("time", 0.0)) if events else float("inf")


class RecordingFollower:
    """Reads what a host's recorder appends; a rollout is whole once samples of a later one have come."""

    def __init__(self, directory: Path) -> None:
        self._folders = folders_of(directory)
        self._name = directory.name
        self._offsets: dict[Path, int] = {}
        self._rows: dict[int, dict[Path, list[tuple[str, dict[str, Any]]]]] = {}
        self._whole: set[int] = set()

    def poll(self) -> Iterator[WatchedStep]:
        """The rollouts that have become whole since the last call."""
        for folder in self._folders:
            for path in (folder / SAMPLES, folder / EXCHANGES):
                self._read(path)
        sampled = [step for step, of_step in self._rows.items() if any(path.name == SAMPLES for path in of_step)]
        for step in sorted(step for step in self._rows if step < max(sampled, default=step)):
            yield self._step(step)

    def _read(self, path: Path) -> None:
        if not path.exists():
            return
        lines, self._offsets[path] = read_appended(path, self._offsets.get(path, 0))
        for place, row in lines:
            step = row.get("rollout_id")
            if not isinstance(step, int) or isinstance(step, bool):
                raise InputError(f"{place}: field 'rollout_id' is {step!r}, not a number: steps cannot be told apart")
            if step in self._whole:
                raise InputError(
                    f"{place}: rollout {step} comes again after later ones: the run was started again, which needs a "
                    "folder of its own, or watch this one again from its beginning"
                )
            self._rows.setdefault(step, {}).setdefault(path, []).append((place, row))

    def _step(self, step: int) -> WatchedStep:
        of_step = self._rows.pop(step)
        self._whole.add(step)
        samples = tuple(samples_of_lines(lines) for path, lines in of_step.items() if path.name == SAMPLES)
        exchanges = tuple(
            Exchange.from_json(row, place)
            for path, lines in of_step.items()
            if path.name == EXCHANGES
            for place, row in lines
        )
        return WatchedStep(self._name, step, samples, exchanges)

    def ended(self) -> bool:
        """A recording does not say that it ends."""
        return False

    def rest(self) -> Iterator[WatchedStep]:
        """The last rollout, of which more may come."""
        for step in sorted(self._rows):
            yield self._step(step)


def watch(follower: Follower, start: Watch, *, once: bool, sleep: float = POLL_SECONDS) -> Iterator[Watch]:
    """What has been seen after each step, until it suffices either way or nothing more will come.

    Args:
        follower: Where steps come from.
        start: Before the first step.
        once: Takes what is there and does not wait.
        sleep: Seconds between two looks for more.

    Raises:
        InputError: A file cannot be read.
    """
    seen = start
    while True:
        ended = once or follower.ended()
        for step in follower.poll():
            seen = seen.update(step)
            yield seen
            if seen.verdict is not Verdict.INCONCLUSIVE:
                return
        if ended:
            break
        time.sleep(sleep)
    for step in follower.rest():
        seen = seen.update(step)
        yield seen


def of_last(last: int | None, finding: Finding) -> Finding:
    """The last rollout may still be going on: its answers are recorded as they come, its samples once scored."""
    step = finding.where.rollout_id
    if not finding.fails or finding.check != ANSWERED or step is None or last is None or step < last:
        return finding
    message = Message(
        "{message}; the last recorded rollout may still be running: look again later", message=finding.message
    )
    return replace(finding, status=Status.INCONCLUSIVE, message=message)


def unread_findings(checked: CheckResult) -> list[Finding]:
    """Files that could not be read whole leave the contract open."""
    return [
        Finding(
            "files_read",
            Level.CONTRACT,
            Status.INCONCLUSIVE,
            Message("{path}: {reason}", path=omission.path, reason=omission.reason),
        )
        for omission in checked.omissions
        if omission.damaged
    ]
