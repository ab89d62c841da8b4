"""Groups whose arm was drawn inside the runs of a launch: evidence while they go on, and at the end (L1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time
from typing import Any

from parity.commands.watch import RecordingFollower, Watch, WatchedStep
from parity.errors import InputError
from parity.findings import Finding, Level, Message, Status, Verdict, quantity
from parity.launch import ENDED, Launched, LaunchFile
from parity.metrics import rollout_metrics
from parity.records.samples import Rollout
from parity.records.store import RunStore
from parity.stats import GroupBounds, margins_in_run, of_drawn_arm, trajectory_findings

TAKEN = "step"
"""The event of a run whose rollout was taken into the evidence, so that later looks take all in the same order."""


@dataclass(slots=True)
class DrawnEvidence:
    """What all recordings of a launch show so far; each look takes in the rollouts that have become whole.

    Attributes:
        launch: What was asked for.
        keeps: Whether the metrics of each arm are kept, and rollouts that may not be whole are taken.
        by_arm: Of each run and arm, a line of metrics for each rollout, where they are kept.
        problem: Why nothing more can be taken in, where a recording cannot be read.
    """

    launch: LaunchFile
    keeps: bool = False
    by_arm: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    problem: str = ""
    _seen: Watch | None = None
    _attempts: dict[str, int] = field(default_factory=dict)
    _followers: dict[str, list[RecordingFollower]] = field(default_factory=dict)

    def look(self, runs: Sequence[Launched]) -> Watch:
        """What is known after the rollouts that have come since the last look.

        A run that was started again has its recording written anew, so that all recordings are read again then.
        """
        attempts = {run.plan.name: run.attempt for run in runs if run.attempt}
        if self._seen is None or any(attempts.get(name) != attempt for name, attempt in self._attempts.items()):
            results = self.launch.results
            bounds = GroupBounds(results.reward_range, results.max_new_tokens or None)
            baseline, experiment = self.launch.arms
            self._seen = Watch(bounds, margins_in_run(self.launch.margins), (baseline, experiment))
            self._followers = {run.plan.name: [RecordingFollower(Path(at)) for at in run.plan.samples] for run in runs}
            self.by_arm, self.problem = {}, ""
        self._attempts = attempts
        try:
            self._take_in(runs, self._seen)
        except InputError as error:
            self.problem = str(error)
        return self._seen

    def _take_in(self, runs: Sequence[Launched], seen: Watch) -> None:
        come = []
        for number, run in enumerate(run for run in runs if run.attempt):
            store = RunStore(run.plan.directory)
            taken = self._taken(store)
            for step in self._steps(run):
                come.append((taken.get(step.step, time()), number, step.step, store, step.step not in taken, step))
        for _, _, _, store, new, step in sorted(come, key=lambda one: one[:3]):
            self._seen = seen = seen.update(replace(step, run=store.name))
            if self.keeps:
                self._keep(store.name, step)
            elif new:
                store.append_event(TAKEN, time(), step=step.step)

    def _taken(self, store: RunStore) -> dict[int, float]:
        """When each rollout was taken in, of the run as it is: one that began anew has none of its earlier ones."""
        taken: dict[int, float] = {}
        for event in store.events():
            if event["event"] == "restart" and self.launch.restart.policy == "zero":
                taken = {}
            elif event["event"] == TAKEN:
                taken[event["step"]] = event["time"]
        return taken

    def _steps(self, run: Launched) -> Iterator[WatchedStep]:
        for follower in self._followers[run.plan.name]:
            yield from follower.poll()
            if run.status in ENDED or self.keeps:
                yield from follower.rest()

    def _keep(self, run: str, step: WatchedStep) -> None:
        every = Rollout.concatenate(step.rollouts)
        for arm in self.launch.arms:
            of_arm = of_drawn_arm(every, arm)
            if len(of_arm):
                measured = rollout_metrics(of_arm, seconds=1.0)  # both arms share the time of a step
                known = {name: value for name, value in measured.items() if not name.startswith("perf/")}
                self.by_arm.setdefault(run, {}).setdefault(arm, []).append({"step": step.step, **known})

    def findings(self, runs: Sequence[Launched]) -> list[Finding]:
        """L1 of all runs together."""
        seen = self.look(runs)
        baseline, experiment = self.launch.arms
        found = [one for trajectory in seen.trajectories.values() for one in trajectory_findings(trajectory)]
        if self.problem:
            message = Message("the recordings cannot be read on: {problem}", problem=self.problem)
            found.append(Finding("trajectory_evidence", Level.SAMPLING, Status.INCONCLUSIVE, message))
        elif not found:
            message = Message(
                "no group's arm was drawn between {baseline} and {experiment} in {steps}: is the patch's assignment "
                "switched on, and does it record to results.samples?",
                baseline=baseline,
                experiment=experiment,
                steps=quantity(seen.steps, "steps"),
            )
            found.append(Finding("trajectory_evidence", Level.SAMPLING, Status.INCONCLUSIVE, message))
        return found


def decided(evidence: DrawnEvidence, runs: Sequence[Launched]) -> str:
    """Why all runs can be stopped, and what that saves; empty while the evidence does not decide."""
    seen = evidence.look(runs)
    if seen.verdict is Verdict.INCONCLUSIVE:
        return ""
    groups = sum(trajectory.groups for trajectory in seen.trajectories.values())
    why = f"{seen.verdict.words} after {quantity(groups, 'groups')} in {quantity(seen.steps, 'rollouts')}"
    if seen.failing:
        why += f", {seen.failing[0].check} fails: {seen.failing[0].message}"
    return f"{why}; {_saving(evidence.launch, runs, seen.steps, time())}"


def _saving(launch: LaunchFile, runs: Sequence[Launched], rollouts: int, now: float) -> str:
    """What it saves to stop all runs now, after so many rollouts, as far as the runs so far tell."""
    waiting = sum(run.status == "waiting" for run in runs)
    saved = [f"{quantity(waiting, 'runs')} not started"] if waiting else []
    done = max(sum(run.step + 1 for run in runs if run.step is not None), rollouts)
    asked = launch.steps * len(runs)
    if asked > done > 0:
        started = [(run, first) for run in runs if (first := _started(run))]
        seconds = sum((run.moved_at if run.status in ENDED else now) - first for run, first in started)
        hours = seconds / done * (asked - done) / 3600
        saved.append(f"{asked - done:,} of {quantity(asked, 'steps')} not made, about {hours:.3g} hours of runs")
    return f"saved: {', '.join(saved) or 'what the runs had left (steps in the file says how much)'}"


def _started(run: Launched) -> float | None:
    events = RunStore(run.plan.directory).events() if run.attempt else []
    return next((float(event["time"]) for event in events), None)
