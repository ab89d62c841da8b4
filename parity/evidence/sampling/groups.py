"""Sampling at fixed weights: the same prompts in both arms, so the unit is the prompt's group, paired with itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from parity.errors import InputError, UsageError
from parity.evidence.two_samples import verdict_of
from parity.evidence.values import Floats, GroupValues, Interval, Result, check_paired
from parity.findings import Verdict

MOST_SIGN_FLIPS = 16
FEWEST_GROUPS = 50


@dataclass(frozen=True, slots=True)
class PairedResult:
    """How group means differ between arms on the same prompts; `estimate` is experiment minus baseline.

    Attributes:
        metric: The metric's name.
        verdict: Of this metric alone.
        estimate: Mean difference of group means, in the unit of the values.
        ci90: Its 90 % interval, which the equivalence test reads.
        ci95: Its 95 % interval, which the difference test reads.
        margin: The absolute equivalence margin that was stated.
        p_difference: Two-sided p of the paired t test.
        p_equivalence: p of the two one-sided paired t tests.
        p_sign_flip: Two-sided p over all sign flips of the differences; None above 16 groups.
        units: Number of groups.
        method: The test's name.
        warnings: What weakens the result.
    """

    metric: str
    verdict: Verdict
    estimate: float
    ci90: Interval
    ci95: Interval
    margin: float
    p_difference: float | None
    p_equivalence: float
    p_sign_flip: float | None
    units: int
    method: str = "paired t on group means, TOST against ±margin"
    warnings: tuple[str, ...] = ()
    unit: str = "prompt group"


def paired_groups(baseline: GroupValues, experiment: GroupValues, margin: float) -> PairedResult:
    """Compares the arms' means by prompt group: a paired t test and two one-sided tests at 5 % each.

    Samples of a prompt resemble each other, so they are no units; the prompt's difficulty is common to both arms and
    cancels.

    Args:
        baseline: The baseline's values by group, (G, n).
        experiment: The experiment's values of the same prompts in the same order, (G, n).
        margin: The largest difference that does not matter, absolute, stated before.

    Raises:
        UsageError: The margin is not positive, or there are fewer than two groups.
        InputError: The groups are not of the same prompts.
    """
    check_paired(baseline, experiment)
    if not 0 < margin < np.inf or len(baseline) < 2:
        raise UsageError(f"{baseline.metric}: needs a positive margin and two groups, not {margin} and {len(baseline)}")
    differences = experiment.means - baseline.means
    groups, freedom = len(differences), len(differences) - 1
    estimate = float(differences.mean())
    error = float(differences.std(ddof=1) / np.sqrt(groups)) if np.ptp(differences) > 0 else 0.0
    warnings = (
        [f"{groups} groups: below {FEWEST_GROUPS} the t approximation is rough"] if groups < FEWEST_GROUPS else []
    )
    p_sign_flip = _sign_flip_p(differences) if groups <= MOST_SIGN_FLIPS else None
    if error > 0:
        p_difference: float | None = float(2 * stats.t.sf(abs(estimate) / error, freedom))
        p_equivalence = float(stats.t.sf((margin - abs(estimate)) / error, freedom))
    else:
        warnings.append("every group differs by the same amount, so the intervals have no width")
        p_difference = 1.0 if estimate == 0 else p_sign_flip if p_sign_flip is not None else 2.0 ** (1 - groups)
        p_equivalence = 0.0 if abs(estimate) < margin else 1.0
    half90, half95 = (float(stats.t.ppf(level, freedom)) * error for level in (0.95, 0.975))
    return PairedResult(
        metric=baseline.metric,
        verdict=verdict_of(p_equivalence, p_difference),
        estimate=estimate,
        ci90=(estimate - half90, estimate + half90),
        ci95=(estimate - half95, estimate + half95),
        margin=margin,
        p_difference=p_difference,
        p_equivalence=p_equivalence,
        p_sign_flip=p_sign_flip,
        units=groups,
        warnings=tuple(warnings),
    )


def _sign_flip_p(differences: Floats) -> float:
    signs = 1 - 2 * ((np.arange(2 ** len(differences))[:, None] >> np.arange(len(differences))) & 1)
    sums = np.abs(signs @ differences)
    observed = abs(float(differences.sum()))
    return float(np.mean(sums >= observed - 1e-12 * max(observed, 1.0)))


def groups_needed(sigma: float, margin: float) -> int:
    """The groups that give `paired_groups` 80 % power for PARITY if the arms are equal, by normal theory.

    `sigma` is the standard deviation of a group's difference, in the unit of `margin`.
    """
    return int(np.ceil(((stats.norm.ppf(0.95) + stats.norm.ppf(0.9)) * sigma / margin) ** 2))


def paired_events(baseline: npt.NDArray[np.bool_], experiment: npt.NDArray[np.bool_]) -> Result:
    """Whether an event by group (constant rewards, a duplicate) is as frequent in both arms: McNemar's exact test.

    `estimate` is the share of groups with the event in the experiment minus that in the baseline; both arrays are (G,).

    Raises:
        InputError: The arms have different numbers of groups, or none.
    """
    if baseline.shape != experiment.shape or not baseline.size:
        raise InputError(f"events are paired by group, but there are {baseline.size} and {experiment.size} groups")
    only_experiment, only_baseline = int(np.sum(experiment & ~baseline)), int(np.sum(baseline & ~experiment))
    discordant = only_experiment + only_baseline
    p = float(stats.binomtest(only_experiment, discordant, 0.5).pvalue) if discordant else 1.0
    return Result(
        method="McNemar's exact test",
        estimate=(only_experiment - only_baseline) / baseline.size,
        p=p,
        unit="prompt group",
        units=baseline.size,
    )


def cochrans_q(table: Floats) -> float:
    """The p of Cochran's Q (1950) that all columns of a table of zeros and ones, (groups, slots), have one rate."""
    slots = table.shape[1]
    of_slots, of_groups, every = table.sum(axis=0), table.sum(axis=1), table.sum()
    q = (slots - 1) * (slots * (of_slots**2).sum() - every**2) / (slots * every - (of_groups**2).sum())
    return float(stats.chi2.sf(q, slots - 1))


def slot_test(values: GroupValues) -> Result:
    """Whether the slot inside the group matters, within one arm: Cochran's Q for 0/1 values, Friedman's test otherwise.

    `estimate` is the largest mean of a slot minus the smallest, in the unit of the values.

    Raises:
        UsageError: Fewer than two groups or three slots.
    """
    table = values.values
    if table.shape[0] < 2 or table.shape[1] < 3:
        raise UsageError(f"{values.metric}: slots need two groups of three samples or more, not {table.shape}")
    binary = bool(np.isin(table, (0.0, 1.0)).all())
    slot_means = table.mean(axis=0)
    varied = bool((np.ptp(table, axis=1) > 0).any())
    p = None
    if varied:
        p = float(cochrans_q(table) if binary else stats.friedmanchisquare(*table.T).pvalue)
    return Result(
        method="Cochran's Q" if binary else "Friedman's test",
        estimate=float(np.ptp(slot_means)),
        p=p,
        unit="prompt group",
        units=len(values),
        warnings=() if varied else ("every group is constant, so slots cannot be told apart",),
    )


def neighbour_test(values: GroupValues, rng: np.random.Generator, permutations: int = 1999) -> Result:
    """Whether neighbouring slots resemble each other more than others, within one arm: they would if they shared state.

    `estimate` is the lag-1 correlation of slots around their group's mean; its p comes from shuffling slots inside each
    group.

    Raises:
        UsageError: Fewer than three slots.
    """
    if values.values.shape[1] < 3:
        raise UsageError(f"{values.metric}: neighbours need three slots or more, not {values.values.shape[1]}")
    centred = values.values - values.values.mean(axis=1, keepdims=True)
    total = float((centred**2).sum())
    if total == 0:
        constant = ("every group is constant, so neighbours cannot be told apart",)
        return Result("lag-1 slot correlation", None, None, "prompt group", len(values), warnings=constant)
    observed = float((centred[:, 1:] * centred[:, :-1]).sum())
    simulated = np.empty(permutations)
    for row in range(permutations):
        shuffled = rng.permuted(centred, axis=1)
        simulated[row] = (shuffled[:, 1:] * shuffled[:, :-1]).sum()
    return Result(
        method="lag-1 slot correlation, slots shuffled inside groups",
        estimate=observed / total,
        p=permutation_p(np.abs(simulated - simulated.mean()), abs(observed - float(simulated.mean()))),
        unit="prompt group",
        units=len(values),
    )


def permutation_p(simulated: Floats, observed: float) -> float:
    """The share of statistics at or above the observed one, which counts as one of them (Phipson and Smyth 2010)."""
    tolerance = 1e-9 * max(abs(observed), float(np.abs(simulated).max()))
    return float((1 + np.sum(simulated >= observed - tolerance)) / (1 + len(simulated)))
