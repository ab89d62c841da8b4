"""What a report says, as data, built from an experiment, its runs and their findings; renderers read only this."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.errors import InputError
from parity.findings import Finding, Judgement, Level, Status, status_of_level
from parity.metrics import AlignedRuns, RunCurves, align, curves_of_run, late_mean
from parity.records.experiment import LIST_TWIN, twin_by_lists
from parity.records.metric_names import ENGINE_BALANCE, REQUESTS, REWARD, ROLLOUT_TIME, TOKENS_PER_SECOND
from parity.report.runs import (
    Mark,
    Provenance,
    RunOutcome,
    RunRecord,
    counts_of,
    marks_of,
    outcome_of,
    provenance_of,
)
from parity.report.scope import Scope, scope_of

ADVANTAGE = "rollout/advantages"
ROUNDING = 1e-12
"""A mean advantage below this is rounding: it is 0 by construction within a group."""
FINISH_REASON_METRIC = "rollout/finish_reason/"
COST_METRICS = (
    ("requests a step", REQUESTS),
    ("rollout time a step, s", ROLLOUT_TIME),
    ("response tokens/s", TOKENS_PER_SECOND),
)
BALANCE = "busiest engine's tokens / mean"
"""Of runs with several engines."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the first table.

    `baseline` and `experiment` map the name of a value (``mean``, ``total``, or a finish reason) to its mean over the
    arm's runs; both are empty when a run lacks the metric. `findings` holds the deciding finding of each rung that
    tested the row, lowest rung first; `notes` says what was found while aligning the runs.
    """

    name: str
    metric: str
    summary: str
    baseline: Mapping[str, float]
    experiment: Mapping[str, float]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def difference(self) -> Mapping[str, float]:
        """Experiment minus baseline."""
        return {name: self.experiment[name] - value for name, value in self.baseline.items()}


@dataclass(frozen=True, slots=True)
class Rung:
    """One level of the ladder: its status, the finding that decides it (`None` if none was made), and their number."""

    level: Level
    status: Status
    strongest: Finding | None
    compared: int
    total: int


@dataclass(frozen=True, slots=True)
class CostRow:
    """One cost as its L4 finding has it: means a step of both arms, experiment over baseline, and its 95 % interval.

    What was not measured is `None`.
    """

    name: str
    metric: str
    status: Status
    baseline: float | None
    experiment: float | None
    ratio: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a report says, before any rendering.

    Attributes:
        baseline: The baseline's arm.
        experiment: The experiment's arm; empty where nothing is compared with the baseline.
        verdict: The verdict and what it rests on.
        scope: What the verdict speaks of.
        headline: The verdict in the words of the command that came to it; empty for those of `text.headline`.
        findings: All findings, in the order given.
        rows: The eight rows that reviewers ask for, in their order.
        ladder: The five rungs, lowest first.
        compared_design: The design of the runs that the rows' values come from; empty where no design has both arms.
        arms_of_design: By design and arm, the names of the curves: of runs, or ``<run>/<arm>`` for mixed ones.
        curves: Every metric by these names, and of mixed runs as a whole by the run's name.
        marks: Restarts, resumes, aborts and collapses, by run and step.
        cost: What the change costs, from the L4 findings.
        plants: Faults planted on purpose in the experiment's arm, each ``NAME@STEP``.
        outcomes: How each run ended.
        counts: Samples, groups, exchanges and the like, summed over runs.
        provenance: How to make it again.
    """

    baseline: str
    experiment: str
    verdict: Judgement
    scope: Scope
    headline: str
    findings: tuple[Finding, ...]
    rows: tuple[Row, ...]
    ladder: tuple[Rung, ...]
    compared_design: str
    arms_of_design: Mapping[str, Mapping[str, tuple[str, ...]]]
    curves: Mapping[str, RunCurves]
    marks: tuple[Mark, ...]
    cost: tuple[CostRow, ...]
    plants: tuple[str, ...]
    outcomes: tuple[RunOutcome, ...]
    counts: Mapping[str, int]
    provenance: Provenance

    @property
    def compared_runs(self) -> Mapping[str, tuple[str, ...]]:
        """By arm, the names of the curves that the rows' values come from."""
        return self.arms_of_design.get(self.compared_design, {self.baseline: (), self.experiment: ()})

    @property
    def failing(self) -> tuple[Finding, ...]:
        """The findings that fail, causes above their consequences."""
        return tuple(sorted((finding for finding in self.findings if finding.fails), key=cause_order))

    @property
    def not_compared(self) -> tuple[Finding, ...]:
        """The findings that compared nothing, which a reader must see."""
        return tuple(finding for finding in self.findings if finding.status is Status.NOT_COMPARED)


@dataclass(frozen=True, slots=True)
class RowRule:
    """How a row is filled: its metric, how a run's steps become one number, and which findings test it.

    A contract finding tests the row if its check is in `checks`, the most telling first. On the other rungs it
    does if the metric or field that it is about is in `fields`.
    """

    name: str
    metric: str
    summary: str
    checks: tuple[str, ...]
    fields: tuple[str, ...]


ROW_RULES = (
    RowRule(
        "output count",
        "rollout/samples",
        "total",
        ("output_count", "exchange_output_count", "arms_output_count"),
        ("samples",),
    ),
    RowRule("response length", "rollout/response_len/mean", "mean", ("response_length",), ("response_length",)),
    RowRule(
        "rollout_log_probs length",
        "rollout/rollout_log_probs_len/mean",
        "mean",
        ("rollout_log_probs_length", "exchange_rollout_log_probs_length"),
        (),
    ),
    RowRule(
        "finish_reason",
        FINISH_REASON_METRIC,
        "shares",
        ("finish_reason", "finish_stop", "finish_length", "exchange_finish_reason", "arms_finish_reasons"),
        ("finish_reason", "rollout/truncated_ratio", "truncated", "aborted"),
    ),
    RowRule("reward", REWARD, "mean", ("reward_recomputed", "reward_missing"), ("reward",)),
    RowRule("advantage", ADVANTAGE, "mean", ("advantage_recomputed",), ("advantage",)),
    RowRule("loss", "train/loss", "mean", (), ()),
    RowRule("grad norm", "train/grad_norm", "mean", (), ()),
)
"""The eight rows of the first table, in the order in which reviewers ask for them."""

_CAUSES = (
    "samples_received",
    "exchange_",
    "requests_accounted",
    "groups_answered",
    "output_count",
    "slot_index",
    "row_order",
    "arms_",
    "twin_samples",
    "twin_prompt_ids",
    "twin_output_ids",
)
_CONSEQUENCES = ("reward", "advantage", "/")
"""In the name of a check: scores, and metrics, which all have a slash."""

_STRENGTH = (Status.FAIL, Status.INCONCLUSIVE, Status.PASS, Status.NOT_COMPARED)


def build_report(
    experiment: Mapping[str, Any],
    runs: Sequence[RunRecord],
    findings: Sequence[Finding],
    verdict: Judgement,
    headline: str = "",
) -> Report:
    """Builds the report of an experiment.

    The values of the rows come from the paired runs where both arms have some, else from the twin: means over runs of
    each run's late mean (over the last half of the steps that all these runs have), so one number a run.

    Args:
        experiment: Content of ``experiment.json``: ``baseline`` and ``experiment`` (arms) are required; ``commands``,
            ``commit``, ``versions``, ``task``, ``engine``, ``engine_version``, ``engine_determinism``, ``seeds``,
            ``steps``, ``margins`` and ``config`` are shown as given, or as not recorded; so is what `scope_of` reads.
        runs: The runs, in any order.
        findings: The findings of all rungs.
        verdict: What they come to.
        headline: The verdict in a sentence of the command's own.

    Raises:
        InputError: `experiment` names no two different arms, two runs share a name, or a metric is no number.
    """
    baseline, arm = experiment.get("baseline"), experiment.get("experiment")
    if not isinstance(baseline, str) or not isinstance(arm, str) or baseline == arm:
        raise InputError(f"experiment.json: baseline {baseline!r} and experiment {arm!r} must be two different arms")
    ordered = sorted(runs, key=lambda run: (run.design, run.seed, run.arm != baseline, run.name))
    names = [run.name for run in ordered]
    if len(set(names)) != len(names):
        raise InputError(f"runs: names are not unique: {names}")
    curves = {run.name: curves_of_run(run.name, run.metrics) for run in ordered}
    curves |= {
        name: curves_of_run(name, run.by_arm[drawn])
        for run in ordered
        for drawn, name in _curve_names(run)
        if run.by_arm
    }
    arms_of_design = _arms_of_design(ordered, (baseline, arm))
    design = next((design for design in _COMPARED_FIRST if all(arms_of_design.get(design, {"": ()}).values())), "")
    compared = list(arms_of_design[design].values()) if design else [(), ()]
    ladder = tuple(_rung(level, findings) for level in Level)
    outcomes = tuple(outcome_of(run, curves[run.name]) for run in ordered)
    counts = dict(experiment.get("counts") or counts_of(ordered))
    statuses = {rung.level: rung.status for rung in ladder}
    return Report(
        baseline=baseline,
        experiment=arm,
        verdict=verdict,
        scope=scope_of(experiment, outcomes, counts, findings, statuses),
        headline=headline,
        findings=tuple(findings),
        rows=tuple(_row(rule, curves, compared, findings) for rule in ROW_RULES),
        ladder=ladder,
        compared_design=design,
        arms_of_design=arms_of_design,
        curves=curves,
        marks=tuple(mark for run in ordered for mark in marks_of(run, curves[run.name])),
        cost=_costs(findings),
        plants=tuple((experiment.get("config") or {}).get("plants") or ()),
        outcomes=outcomes,
        counts=counts,
        provenance=provenance_of(experiment, ordered),
    )


def deciding(findings: Iterable[Finding], by_width: bool = True) -> Finding | None:
    """The finding that says most: a failing error by `cause_order`, else inconclusive, else the widest pass."""

    def weight(finding: Finding) -> tuple[bool, int, float, tuple[float, int]]:
        checked = finding.evidence.get("checked")
        width = checked if by_width and finding.status is Status.PASS and isinstance(checked, (int, float)) else 0
        return not finding.fails, _STRENGTH.index(finding.status), -width, cause_order(finding)

    return min(findings, key=weight, default=None)


def cause_order(finding: Finding) -> tuple[float, int]:
    """Puts a cause above its consequences: by step, and within a step what was received before what it led to."""
    if finding.status is not Status.FAIL:
        return 0.0, 0
    step = finding.where.rollout_id
    rank = 0 if finding.check.startswith(_CAUSES) else 2 if any(part in finding.check for part in _CONSEQUENCES) else 1
    return math.inf if step is None else step, rank


_COMPARED_FIRST = ("paired", "recorded", "sampled", "dump", "probe", "switchback", "twin", "replay", LIST_TWIN)
"""Which design's runs the first table shows, where there are several."""


def _arms_of_design(runs: Sequence[RunRecord], arms: tuple[str, str]) -> dict[str, Mapping[str, tuple[str, ...]]]:
    """By design and arm, baseline first, the names of the curves with metrics."""
    found: dict[str, Mapping[str, tuple[str, ...]]] = {}
    for design in dict.fromkeys(run.design for run in runs):
        named = [pair for run in runs if run.design == design and run.metrics for pair in _curve_names(run)]
        asked = twin_by_lists(arms) if design == LIST_TWIN else arms
        found[design] = {arm: tuple(name for of_arm, name in named if of_arm == arm) for arm in asked}
    return found


def _curve_names(run: RunRecord) -> list[tuple[str, str]]:
    """The arms that a run has curves of, and their names."""
    return [(arm, f"{run.name}/{arm}") for arm, lines in run.by_arm.items() if lines] or [(run.arm, run.name)]


def _align(metric: str, curves: Mapping[str, RunCurves], names: Sequence[Sequence[str]]) -> AlignedRuns | None:
    """The metric at the steps that all the runs named have; `None` where a run lacks it or no step is in common."""
    found = [curves[name].get(metric) for names_of_arm in names for name in names_of_arm]
    known = [curve for curve in found if curve is not None]
    if not known or len(known) < len(found):
        return None
    aligned = align(known)
    return aligned if len(aligned.steps) else None


def _row(
    rule: RowRule, curves: Mapping[str, RunCurves], names: Sequence[Sequence[str]], findings: Sequence[Finding]
) -> Row:
    metrics = {rule.summary: rule.metric}
    if rule.summary == "shares":
        every = {metric for of_arm in names for name in of_arm for metric in curves[name]}
        metrics = {name.removeprefix(rule.metric): name for name in sorted(every) if name.startswith(rule.metric)}
    aligned = {name: found for name, metric in metrics.items() if (found := _align(metric, curves, names))}
    summarise = _total if rule.summary == "total" else late_mean
    baseline, experiment = (
        {
            name: float(summarise(of_all)[[of_all.runs.index(run) for run in of_arm]].mean())
            for name, of_all in aligned.items()
        }
        for of_arm in names
    )
    carried = tuple(best for level in Level if (best := _carrying(rule, level, findings)))
    notes = tuple(dict.fromkeys(note for of_all in aligned.values() for note in of_all.notes()))
    return Row(rule.name, rule.metric, rule.summary, baseline, experiment, carried, notes)


def _total(aligned: AlignedRuns) -> npt.NDArray[np.float64]:
    return np.asarray(aligned.values.sum(axis=1))


def _carrying(rule: RowRule, level: Level, findings: Sequence[Finding]) -> Finding | None:
    """The finding of a rung that decides a row."""
    of_level = [finding for finding in findings if finding.level is level]
    if level is Level.CONTRACT:
        return deciding(
            [finding for check in rule.checks for finding in of_level if finding.check == check], by_width=False
        )
    names = {rule.metric, *rule.fields}
    return deciding(finding for finding in of_level if names & _subjects(finding))


def _subjects(finding: Finding) -> set[str | None]:
    """The metric or field that a finding is about: where it points, or what its check is named after."""
    return {finding.where.field, finding.check.removeprefix("twin_")}


def _rung(level: Level, findings: Sequence[Finding]) -> Rung:
    of_level = [finding for finding in findings if finding.level is level]
    compared = sum(finding.status is not Status.NOT_COMPARED for finding in of_level)
    return Rung(level, status_of_level(findings, level), deciding(of_level), compared, len(of_level))


def _costs(findings: Sequence[Finding]) -> tuple[CostRow, ...]:
    rows = tuple(_cost(name, metric, findings) for name, metric in COST_METRICS)
    balance = _cost(BALANCE, ENGINE_BALANCE, findings)
    return rows if balance.status is Status.NOT_COMPARED else (*rows, balance)


def _cost(name: str, metric: str, findings: Sequence[Finding]) -> CostRow:
    measured = [finding for finding in findings if finding.level is Level.COST and finding.where.field == metric]
    if not measured:
        return CostRow(name, metric, Status.NOT_COMPARED, None, None, None, None)
    evidence = measured[0].evidence
    # Requests are totals over so many steps; the others are means already.
    steps = evidence.get("steps", 1)
    baseline, experiment = (
        float(evidence[arm]) / steps if arm in evidence else None for arm in ("baseline", "experiment")
    )
    return CostRow(name, metric, measured[0].status, baseline, experiment, evidence.get("ratio"), evidence.get("ci95"))
