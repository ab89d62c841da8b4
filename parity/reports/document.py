"""What a report says, as data, built from an experiment, its runs and their findings; renderers read only this."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from parity.errors import InputError
from parity.findings import Finding, Judgement, Level, Status, judge, status_of_level

FINISH_REASON_METRIC = "rollout/finish_reason/"
MARKED_EVENTS = ("engine_restart", "resume", "abort", "collapse")
COST_METRICS = (
    ("requests a step", "perf/requests"),
    ("rollout time a step, s", "perf/rollout_time"),
    ("response tokens/s", "perf/tokens_per_gpu_per_sec"),
)


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One training run as it lies on disk.

    Attributes:
        name: The run's directory name, unique in the experiment (``native-seed0``).
        arm: How it asked for its groups.
        seed: The seed of its pair.
        design: ``twin`` or ``paired``.
        metrics: One mapping a step, ordered, under slime's names, with its ``step``; a null value is read as NaN.
        outcome: Content of ``run.json``; read here: ``status``, ``message``, ``seconds``, ``peak_memory_bytes`` and
            ``counts`` (``samples``, ``groups``, ``exchanges``, …).
        events: Lines of ``events.jsonl``: ``event`` (``start``, ``step``, ``retry``, ``engine_restart``, ``resume``,
            ``abort``, ``collapse``, ``end``), and where known ``step``, ``message`` and ``count``.
    """

    name: str
    arm: str
    seed: int
    design: str
    metrics: Sequence[Mapping[str, Any]]
    outcome: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RunCurve:
    """One metric of one run: `values[i]` was recorded at step `steps[i]`; a step without the metric is absent."""

    run: str
    arm: str
    design: str
    metric: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a run at a step and belongs on its curves: one of `MARKED_EVENTS`."""

    run: str
    step: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the first table.

    `baseline` and `experiment` map the name of a value (``mean``, ``total``, or a finish reason) to its mean over the
    arm's runs; they are empty when a run lacks the metric. `findings` holds the deciding finding of each rung that tested
    the row, lowest rung first.
    """

    name: str
    metric: str
    summary: str
    baseline: Mapping[str, float]
    experiment: Mapping[str, float]
    findings: tuple[Finding, ...]

    @property
    def difference(self) -> Mapping[str, float]:
        """Experiment minus baseline, for the values that both arms have; a share that one arm never had is 0 there."""
        if not self.baseline or not self.experiment:
            return {}
        names = [*self.baseline, *(name for name in self.experiment if name not in self.baseline)]
        return {name: self.experiment.get(name, 0.0) - self.baseline.get(name, 0.0) for name in names}


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
    """One cost of both arms, as means over the runs of each run's mean over its steps; `None` where not recorded."""

    name: str
    metric: str
    baseline: float | None
    experiment: float | None

    @property
    def ratio(self) -> float | None:
        """Experiment over baseline."""
        return (
            None
            if self.baseline is None or self.experiment is None or not self.baseline
            else self.experiment / self.baseline
        )


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How one run ended; `seconds` and `peak_memory_bytes` are `None` where not recorded."""

    run: str
    arm: str
    seed: int
    design: str
    steps: int
    status: str
    message: str
    retries: int
    restarts: int
    resumes: int
    seconds: float | None
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Provenance:
    """What it takes to make the experiment again; `seconds` is the wall time of the whole, `None` if not recorded."""

    commands: tuple[str, ...]
    commit: str
    versions: Mapping[str, str]
    task: str
    engine: str
    design: str
    seeds: tuple[int, ...]
    steps: int | None
    margins: Mapping[str, float]
    config: Mapping[str, Any]
    config_sha256: str
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a report says, before any rendering.

    Attributes:
        baseline: The baseline's arm.
        experiment: The experiment's arm.
        verdict: The verdict and what it rests on.
        findings: All findings, in the order given.
        rows: The eight rows that reviewers ask for, in their order.
        ladder: The five rungs, lowest first.
        basis: Which runs the rows' values come from, as a sentence.
        curves: Every metric of every run.
        marks: Restarts, resumes, aborts and collapses, by run and step.
        cost: Costs of both arms over the same runs as the rows.
        outcomes: How each run ended.
        counts: Samples, groups, exchanges and the like, summed over runs.
        provenance: How to make it again.
    """

    baseline: str
    experiment: str
    verdict: Judgement
    findings: tuple[Finding, ...]
    rows: tuple[Row, ...]
    ladder: tuple[Rung, ...]
    basis: str
    curves: tuple[RunCurve, ...]
    marks: tuple[Mark, ...]
    cost: tuple[CostRow, ...]
    outcomes: tuple[RunOutcome, ...]
    counts: Mapping[str, int]
    provenance: Provenance

    @property
    def not_compared(self) -> tuple[Finding, ...]:
        """The findings that compared nothing, which a reader must see."""
        return tuple(finding for finding in self.findings if finding.status is Status.NOT_COMPARED)


@dataclass(frozen=True, slots=True)
class RowRule:
    """How a row is filled: its metric, how a run's steps become one number, and which findings test it.

    A finding tests the row if its check is in `checks`, or the metric or field that it names (evidence ``metric``,
    `Where.field`) is in `fields`.
    """

    name: str
    metric: str
    summary: str
    checks: frozenset[str]
    fields: frozenset[str]


def _rule(name: str, metric: str, summary: str, checks: str, fields: str) -> RowRule:
    return RowRule(name, metric, summary, frozenset(checks.split()), frozenset({metric, *fields.split()}))


ROW_RULES = (
    _rule("output count", "rollout/output_count", "total", "output_count", "output_count"),
    _rule("response length", "rollout/response_len/mean", "mean", "response_length", "response_length output_ids"),
    _rule(
        "rollout_log_probs length", "rollout/rollout_log_probs_len/mean", "mean", "rollout_log_probs_length", "logprobs"
    ),
    _rule("finish_reason", FINISH_REASON_METRIC, "shares", "finish_reason", "finish_reason rollout/truncated_ratio"),
    _rule("reward", "rollout/raw_reward", "mean", "reward", "reward"),
    _rule("advantage", "rollout/advantages", "mean", "advantage", "advantage"),
    _rule("loss", "train/loss", "mean", "loss", "loss"),
    _rule("grad norm", "train/grad_norm", "mean", "grad_norm", "grad_norm"),
)
"""The eight rows of the first table, in the order in which reviewers ask for them."""

_STRENGTH = (Status.FAIL, Status.INCONCLUSIVE, Status.PASS, Status.NOT_COMPARED)


def build_report(experiment: Mapping[str, Any], runs: Sequence[RunRecord], findings: Sequence[Finding]) -> Report:
    """Builds the report of an experiment.

    The values of the rows come from the paired runs where both arms have some, else from the twin: means over runs of
    each run's late mean (over the last half of the steps that all these runs have), so one number a run.

    Args:
        experiment: Content of ``experiment.json``: ``baseline`` and ``experiment`` (arms) are required; ``commands`` (or
            ``command``), ``commit``, ``versions``, ``task``, ``engine``, ``design``, ``seeds``, ``steps``, ``margins``,
            ``config`` and ``seconds`` are shown as given, or as not recorded.
        runs: The runs, in any order.
        findings: The findings of all rungs.

    Raises:
        InputError: `experiment` names no two different arms, two runs share a name, or a run has a step twice or
            without a number.
    """
    baseline, arm = experiment.get("baseline"), experiment.get("experiment")
    if not isinstance(baseline, str) or not isinstance(arm, str) or baseline == arm:
        raise InputError(f"experiment.json: baseline {baseline!r} and experiment {arm!r} must be two different arms")
    ordered = sorted(runs, key=lambda run: (run.design, run.seed, run.arm != baseline, run.name))
    names = [run.name for run in ordered]
    if len(set(names)) != len(names):
        raise InputError(f"runs: names are not unique: {names}")
    for run in ordered:
        _check_steps(run)
    compared, basis = _compared_runs(ordered, baseline, arm)
    return Report(
        baseline=baseline,
        experiment=arm,
        verdict=judge(findings),
        findings=tuple(findings),
        rows=tuple(_row(rule, compared, (baseline, arm), findings) for rule in ROW_RULES),
        ladder=tuple(_rung(level, findings) for level in Level),
        basis=basis,
        curves=tuple(curve for run in ordered for curve in run_curves(run)),
        marks=tuple(mark for run in ordered for mark in _marks(run)),
        cost=tuple(_cost(name, metric, compared, (baseline, arm)) for name, metric in COST_METRICS),
        outcomes=tuple(_outcome(run) for run in ordered),
        counts=_counts(ordered),
        provenance=_provenance(experiment),
    )


def run_curves(run: RunRecord) -> list[RunCurve]:
    """Every metric of a run as a curve, in order of their names; a step without the metric is left out, null is NaN.

    Raises:
        InputError: A value is no number.
    """
    metrics = sorted({name for row in run.metrics for name in row if name != "step"})
    curves = []
    for metric in metrics:
        points = [(row["step"], _number(run.name, metric, row[metric])) for row in run.metrics if metric in row]
        steps, values = zip(*points, strict=True)
        curves.append(RunCurve(run.name, run.arm, run.design, metric, steps, values))
    return curves


def deciding(findings: Iterable[Finding]) -> Finding | None:
    """The finding that says most: a failing error, else inconclusive, else the pass over most cases; first of equals."""

    def weight(finding: Finding) -> tuple[bool, int, float]:
        checked = finding.evidence.get("checked", 0)
        return not finding.fails, _STRENGTH.index(finding.status), -checked if isinstance(checked, (int, float)) else 0

    return min(findings, key=weight, default=None)


def _number(run: str, metric: str, value: object) -> float:
    """A metric's value as a float; null is NaN."""
    if value is None:
        return math.nan
    if not isinstance(value, (int, float)):
        raise InputError(f"run {run}: metric {metric} is {value!r}, not a number")
    return float(value)


def _check_steps(run: RunRecord) -> None:
    steps = [row.get("step") for row in run.metrics]
    for row, step in enumerate(steps):
        if not isinstance(step, int) or isinstance(step, bool):
            raise InputError(f"run {run.name}: metrics row {row}: step is {step!r}, not an integer")
    if len(set(steps)) != len(steps):
        twice = next(step for step in steps if steps.count(step) > 1)
        raise InputError(
            f"run {run.name}: metrics: step {twice} is there {steps.count(twice)} times; a step counts once"
        )


def _compared_runs(runs: Sequence[RunRecord], baseline: str, arm: str) -> tuple[list[RunRecord], str]:
    """The runs that the first table's values come from, and which they are in words."""
    for design in ("paired", "twin"):
        chosen = [run for run in runs if run.design == design and run.arm in (baseline, arm) and run.metrics]
        counts = {side: sum(run.arm == side for run in chosen) for side in (baseline, arm)}
        if all(counts.values()):
            late = _late(_common_steps(chosen, "step"))
            window = f"steps {late[0]} to {late[-1]}" if late else "no step in common"
            number = " and ".join(f"{counts[side]} {side}" for side in (baseline, arm))
            return (
                chosen,
                f"{design} runs, {number}; late means are over the last half of their common steps ({window})",
            )
    return [], "no design has a run of both arms with metrics"


def _common_steps(runs: Sequence[RunRecord], metric: str) -> list[int]:
    """The steps at which every run has the metric."""
    shared = [{row["step"] for row in run.metrics if metric in row} for run in runs]
    return sorted(set.intersection(*shared)) if shared else []


def _late(steps: Sequence[int]) -> Sequence[int]:
    return steps[len(steps) // 2 :]


def _means(runs: Sequence[RunRecord], metric: str, steps: Sequence[int], arms: tuple[str, str]) -> list[float | None]:
    """For each arm, the mean over its runs of each run's mean of a metric at these steps; `None` where there are none."""
    wanted = set(steps)
    means: list[float | None] = []
    for arm in arms:
        of_runs = []
        for run in runs:
            values = [_number(run.name, metric, row[metric]) for row in run.metrics if row["step"] in wanted]
            if run.arm == arm and values:
                of_runs.append(_mean(values))
        means.append(_mean(of_runs) if of_runs else None)
    return means


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _row(rule: RowRule, runs: Sequence[RunRecord], arms: tuple[str, str], findings: Sequence[Finding]) -> Row:
    names = {rule.summary: rule.metric}
    if rule.summary == "shares":
        metrics = {name for run in runs for row in run.metrics for name in row if name.startswith(rule.metric)}
        names = {name.removeprefix(rule.metric): name for name in sorted(metrics)}
    baseline: dict[str, float] = {}
    experiment: dict[str, float] = {}
    for name, metric in names.items():
        common = _common_steps(runs, metric)
        means = _means(runs, metric, common if rule.summary == "total" else _late(common), arms)
        for side, mean in zip((baseline, experiment), means, strict=True):
            if mean is not None:
                side[name] = mean * len(common) if rule.summary == "total" else mean
    tested = [finding for finding in findings if _tests_row(finding, rule)]
    strongest = [deciding(finding for finding in tested if finding.level is level) for level in Level]
    carried = tuple(finding for finding in strongest if finding)
    return Row(rule.name, rule.metric, rule.summary, baseline, experiment, carried)


def _tests_row(finding: Finding, rule: RowRule) -> bool:
    named = {finding.evidence.get("metric"), finding.where.field} - {None}
    return finding.check in rule.checks or bool(named & rule.fields)


def _rung(level: Level, findings: Sequence[Finding]) -> Rung:
    of_level = [finding for finding in findings if finding.level is level]
    compared = sum(finding.status is not Status.NOT_COMPARED for finding in of_level)
    return Rung(level, status_of_level(findings, level), deciding(of_level), compared, len(of_level))


def _cost(name: str, metric: str, runs: Sequence[RunRecord], arms: tuple[str, str]) -> CostRow:
    baseline, experiment = _means(runs, metric, _common_steps(runs, metric), arms)
    return CostRow(name, metric, baseline, experiment)


def _marks(run: RunRecord) -> list[Mark]:
    return [
        Mark(run.name, event["step"], str(event["event"]), str(event.get("message", "")))
        for event in run.events
        if event.get("event") in MARKED_EVENTS and isinstance(event.get("step"), int)
    ]


def _outcome(run: RunRecord) -> RunOutcome:
    def happened(kind: str) -> int:
        return sum(int(event.get("count", 1)) for event in run.events if event.get("event") == kind)

    return RunOutcome(
        run=run.name,
        arm=run.arm,
        seed=run.seed,
        design=run.design,
        steps=len(run.metrics),
        status=str(run.outcome.get("status", "not recorded")),
        message=str(run.outcome.get("message") or ""),
        retries=happened("retry"),
        restarts=happened("engine_restart"),
        resumes=happened("resume"),
        seconds=_known(run.outcome.get("seconds")),
        peak_memory_bytes=run.outcome.get("peak_memory_bytes"),
    )


def _counts(runs: Sequence[RunRecord]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs:
        for name, count in (run.outcome.get("counts") or {}).items():
            counts[name] = counts.get(name, 0) + int(count)
    return counts


def _known(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _provenance(experiment: Mapping[str, Any]) -> Provenance:
    commands = experiment.get("commands") or experiment.get("command") or ()
    config = experiment.get("config") or {}
    return Provenance(
        commands=(commands,) if isinstance(commands, str) else tuple(commands),
        commit=str(experiment.get("commit") or "not recorded"),
        versions={str(name): str(version) for name, version in (experiment.get("versions") or {}).items()},
        task=str(experiment.get("task") or "not recorded"),
        engine=str(experiment.get("engine") or "not recorded"),
        design=str(experiment.get("design") or "not recorded"),
        seeds=tuple(experiment.get("seeds") or ()),
        steps=experiment.get("steps"),
        margins=dict(experiment.get("margins") or {}),
        config=config,
        config_sha256=hashlib.sha256(orjson.dumps(config, option=orjson.OPT_SORT_KEYS)).hexdigest(),
        seconds=_known(experiment.get("seconds")),
    )
