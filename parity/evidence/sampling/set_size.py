"""From two arms' samples of the same prompts at fixed weights to findings on sampling (L1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.errors import InputError
from parity.evidence.metric_findings import STATUS_OF_VERDICT, metric_finding
from parity.evidence.multiplicity import holm
from parity.evidence.sampling.groups import PairedResult, groups_needed, paired_events, paired_groups, slot_test
from parity.evidence.sampling.permutation import equality_kernel, independence_tests, product_kernel, shape_tests
from parity.evidence.two_samples import verdict_of
from parity.evidence.values import ALPHA, Floats, GroupValues, Result
from parity.findings import Finding, Level, Status, Verdict, quantity
from parity.records.margins import METRICS, Unit, check_sampling_margins
from parity.records.samples import Rollout

FEWEST_GROUPS = 256
PREFIX_TOKENS = 32

_finding = partial(metric_finding, Level.SAMPLING)


@dataclass(frozen=True, slots=True)
class _Tested:
    """A test that only a small p decides, waiting for the correction over all of them."""

    check: str
    metric: str
    result: Result


def sampling_findings(
    baseline: Rollout,
    experiment: Rollout,
    margins: Mapping[str, float],
    rng: np.random.Generator,
    permutations: int = 1999,
) -> list[Finding]:
    """Do the two arms sample the same groups from the same prompts, weights fixed?

    Five kinds of findings, kept apart so that clones are not called a shift: `sampling_marginal` (group means against a
    margin), `sampling_shape` (whole distributions, tails included), `sampling_spread` (how much rewards differ inside a
    group, which a shift and dependence both move), `sampling_independence` (pair kernels inside a group) and
    `sampling_slot` (the place in the group). A p-value decides against an arm after Holm's correction over all of them;
    without that, and from 256 groups on, all but the marginal tests pass, and below it they are inconclusive.

    Args:
        baseline: The baseline's samples, the same number in every group.
        experiment: The experiment's samples of the same prompts under the same (rollout_id, group_index).
        margins: The largest difference that does not matter, by metric, as in `parity.records.margins`.
        rng: Source of the permutations.
        permutations: How many; no p is below 1 / (permutations + 1), and Holm multiplies it by the number of tests.

    Raises:
        InputError: Groups are of unequal size, repeat a slot, or are not the same in both arms.
        UsageError: A metric of the margins is unknown.
    """
    check_sampling_margins(margins)
    arms = ArmRollouts.of(baseline, experiment)
    found: list[Finding] = []
    paired: dict[str, PairedResult] = {}
    means: dict[str, tuple[float, float]] = {}
    tested: list[_Tested] = []
    for metric, margin in margins.items():
        values = arms.values(metric)
        if values is None:
            message = f"{metric}: no sample, or not every sample, of an arm has it"
            found.append(_finding("sampling_marginal", metric, Status.NOT_COMPARED, message, {}))
            continue
        scale = abs(float(values[0].values.mean())) if METRICS[metric].unit is Unit.SHARE else 1.0
        if scale == 0:
            message = f"{metric}: the baseline's mean is 0, so a relative margin has no meaning"
            found.append(_finding("sampling_marginal", metric, Status.INCONCLUSIVE, message, {}))
            continue
        paired[metric] = paired_groups(*values, margin * scale)
        means[metric] = float(values[0].values.mean()), float(values[1].values.mean())
        tested += _tests_of_values(metric, *values, rng, permutations)
    tested += [
        _Tested("sampling_independence", name, result)
        for name, codes in arms.codes().items()
        for result in [independence_tests(equality_kernel(codes), rng, permutations)["within_minus_cross"]]
    ]
    p_values = {f"marginal {metric}": result.p_difference for metric, result in paired.items()}
    p_values |= {f"{test.check} {test.metric}": test.result.p for test in tested}
    adjusted = holm({name: p for name, p in p_values.items() if p is not None})
    found += [
        _marginal_finding(result, means[metric], adjusted.get(f"marginal {metric}"))
        for metric, result in paired.items()
    ]
    found += [_test_finding(test, adjusted.get(f"{test.check} {test.metric}")) for test in tested]
    return found


def _tests_of_values(
    metric: str, baseline: GroupValues, experiment: GroupValues, rng: np.random.Generator, permutations: int
) -> list[_Tested]:
    if metric == "constant_reward":
        events = paired_events(baseline.values[:, 0] > 0, experiment.values[:, 0] > 0)
        return [_Tested("sampling_spread", metric, events)]
    tests = []
    if experiment.values.shape[1] > 2:
        tests.append(_Tested("sampling_slot", metric, slot_test(experiment)))
    if not np.isin(np.concatenate([baseline.values, experiment.values]), (0.0, 1.0)).all():
        shape = shape_tests(baseline, experiment, rng, permutations)["anderson_darling"]
        tests.append(_Tested("sampling_shape", metric, shape))
    if experiment.values.shape[1] > 1:
        # Around each arm's own mean, so that a shift of an arm as a whole is not taken for dependence.
        centred = [arm.values - arm.values.mean() for arm in (baseline, experiment)]
        kernel = product_kernel(np.concatenate(centred, axis=1))
        independence = independence_tests(kernel, rng, permutations)["within_minus_cross"]
        tests.append(_Tested("sampling_independence", metric, independence))
    return tests


@dataclass(frozen=True, slots=True)
class ArmRollouts:
    """Both arms' samples of the same prompts in the same order: by group, then by slot."""

    groups: tuple[tuple[int, int], ...]
    size: int
    baseline: Rollout
    experiment: Rollout

    @classmethod
    def of(cls, baseline: Rollout, experiment: Rollout) -> ArmRollouts:
        """Pairs the groups of both arms.

        Raises:
            InputError: Groups are of unequal size, repeat a slot, or are not the same in both arms.
        """
        first, second = _ordered(baseline, "baseline"), _ordered(experiment, "experiment")
        if first[:2] != second[:2]:
            apart = len(set(first[0]) ^ set(second[0]))
            raise InputError(
                f"the arms' groups differ: {len(first[0])} of {first[1]} samples in the baseline, {len(second[0])} of "
                f"{second[1]} in the experiment, {apart} in one arm only"
            )
        return cls(*first, second[2])

    def values(self, metric: str) -> tuple[GroupValues, GroupValues] | None:
        """The metric of each sample by group, (G, n) an arm (of a group as a whole: (G, 1)); None if a sample lacks it.

        A group of one has no `group_reward_std`.
        """
        columns = [_COLUMNS[metric](rollout) for rollout in (self.baseline, self.experiment)]
        tables = [column.reshape(-1, self.size) for column in columns if column is not None]
        if len(tables) < 2:
            return None
        if metric == "constant_reward":
            tables = [(np.ptp(table, axis=1, keepdims=True) == 0).astype(np.float64) for table in tables]
        elif metric == "group_reward_std":
            if self.size < 2:
                return None
            tables = [table.std(axis=1, ddof=1, keepdims=True) for table in tables]
        return GroupValues(metric, self.groups, tables[0]), GroupValues(metric, self.groups, tables[1])

    def codes(self) -> dict[str, npt.NDArray[np.int64]]:
        """Codes of responses and of their first tokens, (G, 2n), equal where the tokens are; none without token ids."""
        if self.size < 2 or not all(
            rollout.ragged("output_ids").valid.all() for rollout in (self.baseline, self.experiment)
        ):
            return {}
        found = {}
        for name, most in (("output_ids", None), ("output_ids_prefix", PREFIX_TOKENS)):
            known: dict[bytes, int] = {}
            arms = []
            for rollout in (self.baseline, self.experiment):
                ids = rollout.ragged("output_ids")
                keys = (ids[row][:most].tobytes() for row in range(len(rollout)))
                arms.append(np.fromiter((known.setdefault(key, len(known)) for key in keys), np.int64, len(rollout)))
            found[name] = np.concatenate([arm.reshape(-1, self.size) for arm in arms], axis=1)
        return found


def _ordered(rollout: Rollout, arm: str) -> tuple[tuple[tuple[int, int], ...], int, Rollout]:
    """The groups, their common size, and the samples sorted by group and slot."""
    steps, groups, slots = (rollout.integers(name) for name in ("rollout_id", "group_index", "index"))
    order = np.lexsort((slots, groups, steps))
    keys, counts = np.unique(np.stack([steps, groups], axis=1), axis=0, return_counts=True)
    if not len(keys) or np.ptp(counts):
        sizes = f"{counts.min()} to {counts.max()}" if len(keys) else "no"
        raise InputError(f"{arm}: sampling is compared by group of equal size, but there are {sizes} samples a group")
    if len(np.unique(np.stack([steps, groups, slots], axis=1), axis=0)) < len(rollout):
        raise InputError(f"{arm}: a slot of a group occurs more than once")
    return tuple((int(step), int(group)) for step, group in keys), int(counts[0]), Rollout(rollout.table.take(order))


def _numbers(rollout: Rollout, name: str) -> Floats | None:
    values, known = rollout.numbers(name)
    return values if known.all() else None


def _lengths(rollout: Rollout) -> Floats | None:
    ids = rollout.ragged("output_ids")
    return ids.lengths.astype(np.float64) if ids.valid.all() else _numbers(rollout, "response_length")


def sample_values(rollout: Rollout, metric: str) -> Floats | None:
    """One value a sample of a metric of `parity.records.margins.SAMPLING`, (N,); None if a sample lacks it."""
    return _COLUMNS[metric](rollout)


def _ended_by(rollout: Rollout, reason: str) -> Floats | None:
    reasons = rollout.strings("finish_reason")
    return None if any(one is None for one in reasons) else np.asarray(reasons == reason, dtype=np.float64)


def _negative_log_likelihood(rollout: Rollout) -> Floats | None:
    """The mean over tokens of minus the log-prob, in nats; 0 for a response without tokens."""
    log_probs = rollout.ragged("logprobs")
    if not log_probs.valid.all():
        return None
    sums = np.bincount(log_probs.rows_of_values, weights=log_probs.values, minlength=len(rollout))
    return np.asarray(-sums / np.maximum(log_probs.lengths, 1))


_COLUMNS: Mapping[str, Callable[[Rollout], Floats | None]] = {
    "reward": lambda rollout: _numbers(rollout, "reward"),
    "response_length": _lengths,
    "negative_log_likelihood": _negative_log_likelihood,
    "truncated": lambda rollout: _ended_by(rollout, "length"),
    "aborted": lambda rollout: _ended_by(rollout, "abort"),
    "constant_reward": lambda rollout: _numbers(rollout, "reward"),
    "group_reward_std": lambda rollout: _numbers(rollout, "reward"),
}


def _marginal_finding(result: PairedResult, means: tuple[float, float], p_holm: float | None) -> Finding:
    verdict = verdict_of(result.p_equivalence, p_holm)
    message = (
        f"{result.metric}: differs by {result.estimate:+.4g} over {quantity(result.units, 'prompt groups')} "
        f"(90 % interval {result.ci90[0]:+.4g} to {result.ci90[1]:+.4g}, margin ±{result.margin:.4g})"
    )
    sigma = (result.ci90[1] - result.ci90[0]) / (2 * 1.645) * float(np.sqrt(result.units))
    needed = max(groups_needed(sigma, result.margin), result.units + 1)
    if verdict is Verdict.INCONCLUSIVE:
        message += f"; about {needed} groups in all would show parity 4 times in 5 if the arms are equal"
    evidence = {
        "baseline": means[0],
        "experiment": means[1],
        "estimate": result.estimate,
        "ci90": result.ci90,
        "ci95": result.ci95,
        "margin": result.margin,
        "p_difference": result.p_difference,
        "p_holm": p_holm,
        "p_equivalence": result.p_equivalence,
        "p_sign_flip": result.p_sign_flip,
        "groups_needed": needed,
        "unit": result.unit,
        "units": result.units,
        "method": result.method,
        "warnings": list(result.warnings),
    }
    status = STATUS_OF_VERDICT[verdict]
    expected = [-result.margin, result.margin]
    return _finding("sampling_marginal", result.metric, status, message, evidence, expected, result.estimate)


def _test_finding(test: _Tested, p_holm: float | None) -> Finding:
    result = test.result
    if result.p is None:
        message = f"{test.metric}: {'; '.join(result.warnings)}"
        return _finding(test.check, test.metric, Status.NOT_COMPARED, message, {"units": result.units})
    differs = p_holm is not None and p_holm < ALPHA
    enough = result.units >= FEWEST_GROUPS
    status = Status.FAIL if differs else Status.PASS if enough else Status.INCONCLUSIVE
    message = (
        f"{test.metric}: {result.method} over {quantity(result.units, 'prompt groups')}, p = {result.p:.2g}, "
        f"Holm-adjusted {p_holm:.2g}"
    )
    if status is Status.INCONCLUSIVE:
        message += f"; {FEWEST_GROUPS} groups are needed to pass"
    evidence: dict[str, Any] = {
        "estimate": result.estimate,
        "p": result.p,
        "p_holm": p_holm,
        "unit": result.unit,
        "units": result.units,
        "method": result.method,
        "warnings": list(result.warnings),
    }
    return _finding(test.check, test.metric, status, message, evidence, observed=result.estimate)
