"""Both arms' samples of the same prompts, paired by group, and the values that are compared (L1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from parity.errors import InputError
from parity.evidence.values import Floats, GroupValues
from parity.records.samples import Rollout

PREFIX_TOKENS = 32


@dataclass(frozen=True, slots=True)
class ArmRollouts:
    """Both arms' samples of the same prompts in the same order: by group, then by slot.

    Attributes:
        groups: The (rollout_id, group_index) of each.
        size: Samples a group, in each arm.
        baseline: The baseline's samples.
        experiment: The experiment's.
    """

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
    return None if any(value is None for value in reasons) else np.asarray(reasons == reason, dtype=np.float64)


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
