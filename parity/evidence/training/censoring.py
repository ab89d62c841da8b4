"""Runs that ended before their time: which, in which arm, and what the worst reading of them would change."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from parity.evidence.training.collapse import collapse_rates
from parity.evidence.values import ALPHA
from parity.findings import Finding, Level, Message, Status, listed, quantity, term

COMPLETE, EARLY = "complete", "early"


@dataclass(frozen=True, slots=True)
class Ending:
    """How one run ended.

    Attributes:
        run: The run's name.
        kind: `COMPLETE`, or what cut it off: ``oom``, ``502``, ``killed``, `EARLY` where nobody says, …
        last_step: The last step that it recorded.
    """

    run: str
    kind: str
    last_step: int

    @property
    def censored(self) -> bool:
        """Whether the run was cut off."""
        return self.kind != COMPLETE


def censoring_finding(baseline: Sequence[Ending], experiment: Sequence[Ending]) -> Finding:
    """The table of how runs ended, by arm, and whether one arm's runs are cut off more often or earlier.

    PASS if none was, or the rates are not shown to differ; INCONCLUSIVE if Barnard's exact test on the numbers or the
    log-rank test on the last steps tells the arms apart at 5 %, because the runs that are left are then selected.
    """
    arms = {"baseline": baseline, "experiment": experiment}
    table = {arm: dict(Counter(ending.kind for ending in endings)) for arm, endings in arms.items()}
    cut = {arm: sum(ending.censored for ending in endings) for arm, endings in arms.items()}
    evidence = {
        "table": table,
        "last_steps": {ending.run: ending.last_step for endings in arms.values() for ending in endings},
        "unit": "run",
        "units": [len(baseline), len(experiment)],
    }
    if not any(cut.values()):
        message = Message(
            "all {baseline} + {experiment} runs reached the end", baseline=len(baseline), experiment=len(experiment)
        )
        return Finding("runs_cut_off", Level.TRAINING, Status.PASS, message, evidence=evidence)
    counts = [[cut["experiment"], cut["baseline"]]]
    counts.append([len(experiment) - cut["experiment"], len(baseline) - cut["baseline"]])
    everywhere = sum(cut.values()) == len(baseline) + len(experiment)
    p_rate = 1.0 if everywhere else float(stats.barnard_exact(counts).pvalue)
    p_time = log_rank(baseline, experiment)
    differ = min(p for p in (p_rate, p_time) if p is not None) < ALPHA
    tests = [Message("Barnard p = {p:.2g}", p=p_rate)]
    tests += [] if p_time is None else [Message("log-rank p = {p:.2g}", p=p_time)]
    message = Message(
        "runs were cut off ({endings}; {tests}), {conclusion}",
        endings=listed(
            [Message("{arm}: {endings}", arm=term(arm), endings=_counts(table[arm])) for arm in table], "; "
        ),
        tests=listed(tests),
        conclusion=Message("so the remaining runs are selected")
        if differ
        else Message("a difference between the arms is not shown"),
    )
    if any(EARLY in kinds for kinds in table.values()):
        message = Message("{message}; state runs that were to end there by --ended RUN=completed", message=message)
    return Finding(
        "runs_cut_off",
        Level.TRAINING,
        Status.INCONCLUSIVE if differ else Status.PASS,
        message,
        observed=cut["experiment"],
        evidence={
            **evidence,
            "p_rate": p_rate,
            "p_time": p_time,
            "method": Message("Barnard's exact test, log-rank test"),
        },
    )


def _counts(kinds: Mapping[str, int]) -> Message:
    named = {kind: term(kind) if kind in (COMPLETE, EARLY) else kind for kind in kinds}  # others name them, as in "oom"
    return listed(Message("{count} {ending}", count=count, ending=named[kind]) for kind, count in kinds.items())


def log_rank(baseline: Sequence[Ending], experiment: Sequence[Ending]) -> float | None:
    """P of the log-rank test that runs of both arms are cut off alike; `None` where no run leaves others behind."""
    endings = [*baseline, *experiment]
    times = np.array([ending.last_step for ending in endings], dtype=np.float64)
    cut = np.array([ending.censored for ending in endings], dtype=np.int64)
    if not cut.any() or times[cut == 1].min() >= times.max():
        return None
    # What is called censored here is the event of the test: an observed end; a run that was complete is right-censored.
    arms = [
        stats.CensoredData(uncensored=times[of_arm & (cut == 1)], right=times[of_arm & (cut == 0)])
        for of_arm in (np.arange(len(endings)) < len(baseline), np.arange(len(endings)) >= len(baseline))
    ]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        p = float(stats.logrank(*arms).pvalue)
    return p if np.isfinite(p) else None


def worst_case_finding(
    baseline: Sequence[Ending], experiment: Sequence[Ending], collapsed: Mapping[str, int]
) -> list[Finding]:
    """Whether the verdict survives that every run of the experiment that was cut off would have collapsed.

    None where no such run is; INCONCLUSIVE if Boschloo's one-sided exact test then shows harm at 5 %; else PASS, and
    parity is subject to censoring.

    Args:
        baseline: How the runs of the baseline ended.
        experiment: The same of the experiment.
        collapsed: The onset of each run that was seen to collapse, by run.
    """
    imputed = [ending.run for ending in experiment if ending.censored and ending.run not in collapsed]
    if not imputed:
        return []
    seen = [sum(ending.run in collapsed for ending in endings) for endings in (experiment, baseline)]
    rates = collapse_rates((seen[0] + len(imputed), len(experiment)), (seen[1], len(baseline)))
    harm = rates.p_harm < ALPHA
    message = Message(
        "had the {runs} cut off in the experiment collapsed, {conclusion} (Boschloo p = {p:.2g})",
        runs=quantity(len(imputed), "runs"),
        conclusion=Message("the experiment would collapse more often")
        if harm
        else Message("that would still not show a higher rate"),
        p=rates.p_harm,
    )
    evidence = {"imputed": imputed, "experiment": rates.experiment, "baseline": rates.baseline, "p_harm": rates.p_harm}
    status = Status.INCONCLUSIVE if harm else Status.PASS
    return [
        Finding(
            "worst_case",
            Level.TRAINING,
            status,
            message,
            evidence={**evidence, "unit": "run", "units": [len(baseline), len(experiment)]},
        )
    ]
