"""Permuting arm labels inside each prompt: shape of distributions, and independence inside a group by pair kernels.

If both arms draw independent samples of a prompt from one law, its 2n samples are exchangeable, so every way to deal
them to the arms is as likely as the one that was seen. Statistics are computed for many deals at once, in blocks of
bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
import numpy.typing as npt
from scipy import sparse

from parity.errors import InputError
from parity.evidence.sampling.groups import permutation_p
from parity.evidence.two_samples import MOST_PERMUTATIONS, all_splits
from parity.evidence.values import Floats, GroupValues, Result, check_paired

BLOCK_ENTRIES = 8_000_000
LISTED_WAYS = 20_000
"""Ways to deal a group that are few enough to compute a contrast for each."""
LISTED_GROUPS = 64
"""Groups whose contrasts under all deals are held at once: 3 MB for 8 + 8 samples, which stays in a core's cache."""
MOST_LEVELS = 1024
"""Values at which distributions are compared: every distinct one, or as many quantiles."""
SHAPES = ("kolmogorov_smirnov", "cramer_von_mises", "anderson_darling", "energy")


def _deals(groups: int, size: int, permutations: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float32]]:
    """Blocks (G, 2n, B) of 1 for samples dealt to the experiment and 0 for the baseline, n of each in every group."""
    block = max(1, BLOCK_ENTRIES // (groups * 2 * size))
    ways = comb(2 * size, size)
    slots = np.arange(2 * size, dtype=np.uint32)
    # A split as the bits of one number is looked up at once, where a table of splits would be read slot by slot.
    coded = None
    if ways <= MOST_PERMUTATIONS:
        coded = (all_splits(2 * size, size) @ (1 << slots.astype(np.int64))).astype(np.uint32)
    for start in range(0, permutations, block):
        width = min(block, permutations - start)
        if coded is not None:
            chosen = coded[rng.integers(0, ways, (groups, width))]
            yield (chosen[:, None] >> slots[:, None] & 1).astype(np.float32)
        else:
            order = np.argsort(rng.random((groups, 2 * size, width), np.float32), axis=1)
            dealt = np.zeros(order.shape, np.float32)
            np.put_along_axis(dealt, order[:, :size], 1.0, axis=1)
            yield dealt


def _seen_deal(groups: int, size: int) -> npt.NDArray[np.float32]:
    """The deal that was seen, (G, 2n, 1): the last n samples of each group are the experiment's."""
    return np.repeat(np.array([0.0, 1.0], np.float32), size)[None, :, None].repeat(groups, axis=0)


def shape_tests(
    baseline: GroupValues, experiment: GroupValues, rng: np.random.Generator, permutations: int = 1999
) -> dict[str, Result]:
    """Whether the whole distribution agrees, tails included: four distances between the pooled samples of the two arms.

    The p-values come from dealing labels inside each prompt, since samples of a prompt are not independent of each
    other; they test equal law and independence together. Above 1,024 distinct values the distributions are compared at
    as many quantiles of the pooled samples. `estimate` is the distance: `kolmogorov_smirnov` max |F - G|,
    `cramer_von_mises` and `anderson_darling` the mean square of F - G over the pooled samples (the latter divided by H
    (1 - H)), `energy` the square root of twice the integral of (F - G)², as `scipy.stats.energy_distance`.

    Args:
        baseline: The baseline's values by group, (G, n).
        experiment: The experiment's, of the same prompts in the same order, (G, n).
        rng: Source of the deals.
        permutations: How many.

    Raises:
        InputError: The groups are not of the same prompts.
    """
    check_paired(baseline, experiment)
    groups, size = baseline.values.shape
    pooled = np.concatenate([baseline.values, experiment.values], axis=1)
    levels = _Levels.of(pooled.ravel())
    observed = levels.distances(_seen_deal(groups, size))
    simulated = np.concatenate([levels.distances(deals) for deals in _deals(groups, size, permutations, rng)])
    return {
        name: Result(
            method=f"{name.replace('_', ' ')} distance, labels dealt inside prompts",
            estimate=float(observed[0, column]),
            p=permutation_p(simulated[:, column], float(observed[0, column])),
            unit="prompt group",
            units=groups,
        )
        for column, name in enumerate(SHAPES)
    }


@dataclass(frozen=True, slots=True)
class _Levels:
    """Where the distribution functions of pooled samples are compared.

    Attributes:
        members: Which samples lie above the level before and up to each, (H, N) of 0 and 1.
        values: The levels, (H,).
        sizes: Members of each, (H,).
    """

    members: sparse.csr_matrix
    values: Floats
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, pooled: Floats) -> _Levels:
        """Every distinct value, or `MOST_LEVELS` quantiles of them."""
        distinct, rank = np.unique(pooled, return_inverse=True)
        if len(distinct) > MOST_LEVELS:
            kept = np.linspace(0, len(distinct) - 1, MOST_LEVELS + 1).round().astype(np.int64)[1:]
            rank, distinct = np.searchsorted(kept, rank), distinct[kept]
        members = sparse.csr_matrix((np.ones(len(pooled), np.float32), (rank, np.arange(len(pooled)))))
        return cls(members, distinct, np.bincount(rank))

    def distances(self, deals: npt.NDArray[np.float32]) -> Floats:
        """The four distances of each deal of a block (G, 2n, B), (B, 4), in the order of `SHAPES`.

        Half of the samples belong to each arm, so that F - G is 2/N of the experiment's excess up to a level. Counts
        are whole numbers, exact in single precision, so that equal distances stay equal.
        """
        total = int(self.sizes.sum())
        up_to = np.cumsum(self.sizes)
        counts = np.cumsum(self.members @ deals.reshape(total, -1), axis=0)
        gaps = (2 * counts - up_to[:, None].astype(np.float32)) * np.float32(2 / total)
        share = up_to / total
        inner = share < 1
        weights = np.stack(
            [
                self.sizes / total,
                np.where(inner, self.sizes / total / np.where(inner, share * (1 - share), 1), 0),
                np.append(2 * np.diff(self.values), 0),
            ],
            axis=1,
        )
        largest = np.abs(gaps).max(axis=0)
        means = np.square(gaps).T @ weights.astype(np.float32)
        means[:, 2] = np.sqrt(means[:, 2])
        return np.concatenate([largest[:, None], means], axis=1).astype(np.float64)


def equality_kernel(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """1 where two samples of a group have the same code, (G, m, m), from codes (G, m) such as hashes of token ids."""
    return np.asarray(codes[:, :, None] == codes[:, None, :], dtype=np.float32)


def product_kernel(values: Floats) -> npt.NDArray[np.float32]:
    """Products of values around the mean of all, (G, m, m), from (G, m): excess inside a group is a covariance."""
    centred = (values - values.mean()).astype(np.float32)
    return np.asarray(centred[:, :, None] * centred[:, None, :])


def prefix_kernel(tokens: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The common prefix of two samples as a share of the longer one, (G, m, m).

    From token ids padded to (G, m, L) and lengths (G, m); two empty samples share everything.
    """
    inside = np.arange(tokens.shape[2]) < lengths[..., None]
    kernel = np.empty((tokens.shape[0], tokens.shape[1], tokens.shape[1]), np.float32)
    for slot in range(tokens.shape[1]):
        same = (tokens == tokens[:, slot, None]) & inside & inside[:, slot, None]
        common = np.cumprod(same, axis=2).sum(axis=2)
        longer = np.maximum(lengths, lengths[:, slot, None])
        kernel[:, slot] = np.where(longer > 0, common / np.maximum(longer, 1), 1.0)
    return kernel


@dataclass(frozen=True, slots=True)
class PairContrasts:
    """By group, (G,): the mean kernel inside each arm and across arms, and two contrasts of them.

    `within_minus_cross` is experiment minus cross: positive when samples of the experiment resemble each other more
    than they resemble the baseline's. `distance` is experiment + baseline - 2 cross, the squared maximum mean
    discrepancy of the group: mean 0 when all are independent draws of one law (Gretton et al. 2012, unbiased form).
    """

    within_baseline: Floats
    within_experiment: Floats
    cross: Floats

    @property
    def within_minus_cross(self) -> Floats:
        """Experiment's inner mean minus the cross mean, (G,)."""
        return self.within_experiment - self.cross

    @property
    def distance(self) -> Floats:
        """The sum of the inner means minus twice the cross mean, (G,)."""
        return self.within_experiment + self.within_baseline - 2 * self.cross


def pair_contrasts(kernel: npt.NDArray[np.float32]) -> PairContrasts:
    """Contrasts of a symmetric kernel (G, 2n, 2n) whose first n samples are the baseline's and last n the experiment's.

    Raises:
        InputError: The kernel is not of that shape, or groups have fewer than two samples.
    """
    size = _group_size(kernel)
    within_baseline, within_experiment, cross = _kernel_means(kernel, _seen_deal(len(kernel), size))
    return PairContrasts(within_baseline[:, 0], within_experiment[:, 0], cross[:, 0])


def dealt_contrasts(kernel: npt.NDArray[np.float32], rng: np.random.Generator, permutations: int) -> Floats:
    """`within_minus_cross` of each group under the deal that was seen and then under random ones, (G, 1 + B).

    Args:
        kernel: A symmetric similarity of samples of the same prompt, (G, 2n, 2n), the baseline's n samples first.
        rng: Source of the deals.
        permutations: Random deals, B.

    Raises:
        InputError: The kernel is not of that shape, or groups have fewer than two samples.
    """
    groups, size = len(kernel), _group_size(kernel)
    deals = np.concatenate([_seen_deal(groups, size), *_deals(groups, size, permutations, rng)], axis=2)
    _, experiment, cross = _kernel_means(kernel, deals)
    return experiment - cross


def independence_tests(
    kernel: npt.NDArray[np.float32], rng: np.random.Generator, permutations: int = 1999
) -> dict[str, Result]:
    """Whether the experiment's samples of a prompt are as independent of each other as they are of the baseline's.

    `within_minus_cross` singles out the experiment; `distance` is sensitive to either arm. Each is the mean over
    groups, and its p is one-sided, large values counting against independence, from dealing the 2n labels inside each
    prompt.

    Args:
        kernel: A symmetric similarity of samples of the same prompt, (G, 2n, 2n), the baseline's n samples first.
        rng: Source of the deals.
        permutations: How many.

    Raises:
        InputError: The kernel is not of that shape, or groups have fewer than two samples.
    """
    observed = pair_contrasts(kernel)
    within, distance = _dealt_means(kernel, rng, permutations)
    return {
        name: Result(
            method=f"pair kernel, {name.replace('_', ' ')}, labels dealt inside prompts, one-sided",
            estimate=float(values.mean()),
            p=permutation_p(simulated, float(values.mean())),
            unit="prompt group",
            units=len(kernel),
        )
        for name, values, simulated in (
            ("within_minus_cross", observed.within_minus_cross, within),
            ("distance", observed.distance, distance),
        )
    }


def _dealt_means(kernel: npt.NDArray[np.float32], rng: np.random.Generator, permutations: int) -> tuple[Floats, Floats]:
    """The means over groups of `within_minus_cross` and of `distance` under random deals, (B,) each.

    Where all ways to deal a group are few enough to list, each group's contrast is computed for all of them by one
    product with its pairs, and then looked up: a group is dealt anew 1,999 times, of 12,870 ways for 8 + 8 samples.
    """
    groups, size = len(kernel), _group_size(kernel)
    if comb(2 * size, size) > LISTED_WAYS:
        parts = []
        for deals in _deals(groups, size, permutations, rng):
            baseline, experiment, cross = _kernel_means(kernel, deals)
            parts.append([(experiment - cross).mean(axis=0), (experiment + baseline - 2 * cross).mean(axis=0)])
        within, distance = np.concatenate(parts, axis=1)
        return within, distance
    weights = _pair_weights(size)
    ways = weights.shape[1]
    first, second = np.triu_indices(2 * size, 1)
    pairs = kernel[:, first, second]
    # Groups whose pairs are all alike have contrast 0 however they are dealt.
    varied = np.flatnonzero(np.ptp(pairs, axis=1) > 0)
    within, distance = np.zeros(permutations), np.zeros(permutations)
    for start in range(0, len(varied), LISTED_GROUPS):
        listed = pairs[varied[start : start + LISTED_GROUPS]] @ weights
        chosen = rng.integers(0, ways, (len(listed), permutations))
        firsts = np.arange(0, listed.size, ways)[:, None]
        picked = listed.ravel()[firsts + chosen].sum(axis=0, dtype=np.float64)
        # The splits are listed in order, so that the one that swaps the arms stands as far from the end.
        swapped = listed.ravel()[firsts + (ways - 1 - chosen)].sum(axis=0, dtype=np.float64)
        within += picked
        distance += picked + swapped
    return within / groups, distance / groups


@cache
def _pair_weights(size: int) -> npt.NDArray[np.float32]:
    """What each pair of a group of 2n counts in `within_minus_cross`, for every way to deal it, (n (2n - 1), ways)."""
    first, second = np.triu_indices(2 * size, 1)
    dealt = all_splits(2 * size, size) > 0
    both, apart = dealt[:, first] & dealt[:, second], dealt[:, first] ^ dealt[:, second]
    return np.asarray((both / (size * (size - 1) / 2) - apart / size**2).astype(np.float32).T)


def _group_size(kernel: npt.NDArray[np.float32]) -> int:
    if kernel.ndim != 3 or kernel.shape[1] != kernel.shape[2] or kernel.shape[1] % 2 or kernel.shape[1] < 4:
        raise InputError(f"a pair kernel is (groups, 2n, 2n) with n of two or more, not {kernel.shape}")
    return int(kernel.shape[1]) // 2


def _kernel_means(kernel: npt.NDArray[np.float32], deals: npt.NDArray[np.float32]) -> tuple[Floats, Floats, Floats]:
    """Mean kernel over pairs inside the baseline, the experiment and across, (G, B) each, of deals (G, 2n, B)."""
    size = kernel.shape[1] // 2
    off_diagonal = kernel * (1 - np.eye(2 * size, dtype=np.float32))
    rows = off_diagonal.sum(axis=2, keepdims=True)
    inside = np.einsum("gib,gib->gb", off_diagonal @ deals, deals).astype(np.float64)
    cross = (rows.transpose(0, 2, 1) @ deals)[:, 0] - inside
    outside = rows.sum(axis=1, dtype=np.float64) - inside - 2 * cross
    pairs = size * (size - 1)
    return outside / pairs, inside / pairs, cross / size**2
