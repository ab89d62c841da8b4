"""Permuting arm labels inside each prompt: shape of distributions, and independence inside a group by pair kernels.

If both arms draw independent samples of a prompt from one law, its 2n samples are exchangeable, so every way to deal
them to the arms is as likely as the one that was seen. Statistics are computed for many deals at once, in blocks of
bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
import numpy.typing as npt

from parity.errors import InputError
from parity.statistics.groups import permutation_p
from parity.statistics.values import Floats, GroupValues, Result, check_paired

BLOCK_ENTRIES = 8_000_000
MOST_DEALS = 200_000
SHAPES = ("kolmogorov_smirnov", "cramer_von_mises", "anderson_darling", "energy")


def _deals(groups: int, size: int, permutations: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.float32]]:
    """Blocks (B, G, 2n) of 1 for samples dealt to the experiment and 0 for the baseline, n of each in every group."""
    block = max(1, BLOCK_ENTRIES // (groups * 2 * size))
    ways = comb(2 * size, size)
    table = None
    if ways <= MOST_DEALS:
        table = np.zeros((ways, 2 * size), np.float32)
        chosen = np.array(list(combinations(range(2 * size), size)))
        np.put_along_axis(table, chosen, 1.0, axis=1)
    for start in range(0, permutations, block):
        shape = (min(block, permutations - start), groups)
        if table is not None:
            yield table[rng.integers(0, ways, shape)]
        else:
            dealt = np.argsort(rng.random((*shape, 2 * size), np.float32), axis=-1) < size
            yield dealt.astype(np.float32)


def shape_tests(
    baseline: GroupValues, experiment: GroupValues, rng: np.random.Generator, permutations: int = 1999
) -> dict[str, Result]:
    """Whether the whole distribution agrees, tails included: four distances between the pooled samples of the two arms.

    The p-values come from dealing labels inside each prompt, since samples of a prompt are not independent of each
    other; they test equal law and independence together. `estimate` is the distance: `kolmogorov_smirnov` max |F - G|,
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
    order = np.argsort(pooled, axis=None, kind="stable")
    ordered = pooled.ravel()[order]
    last_of_tie = np.append(np.diff(ordered) > 0, True)
    observed_deal = np.repeat(np.array([0.0, 1.0], np.float32), size)[None, None].repeat(groups, axis=1)
    observed = _shape_distances(observed_deal, order, ordered, last_of_tie)
    blocks = [_shape_distances(deals, order, ordered, last_of_tie) for deals in _deals(groups, size, permutations, rng)]
    simulated = np.concatenate(blocks)
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


def _shape_distances(
    deals: npt.NDArray[np.float32],
    order: npt.NDArray[np.int64],
    ordered: Floats,
    last_of_tie: npt.NDArray[np.bool_],
) -> Floats:
    """The four distances of each deal, (B, 4), in the order of `SHAPES`."""
    total = len(ordered)
    signs = deals.reshape(len(deals), -1)[:, order]
    # Half of the samples belong to each arm, so F - G moves by ±2/N at each sample of the pooled order.
    # The sums of ±1 are whole numbers, exact in single precision, so that equal distances stay equal.
    gaps = np.cumsum(2 * signs - 1, axis=1)[:, last_of_tie] * np.float32(2 / total)
    ends = np.flatnonzero(last_of_tie)
    ties = np.diff(ends, prepend=-1)
    share = (ends + 1) / total
    squares = np.square(gaps, dtype=np.float32)
    inner = share < 1
    weights = np.stack(
        [
            ties / total,
            np.where(inner, ties / total / np.where(inner, share * (1 - share), 1), 0),
            np.append(2 * np.diff(ordered[ends]), 0),
        ],
        axis=1,
    )
    means = squares.astype(np.float64) @ weights
    means[:, 2] = np.sqrt(means[:, 2])
    return np.concatenate([np.abs(gaps).max(axis=1)[:, None], means], axis=1)


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
    deal = np.repeat(np.array([0.0, 1.0], np.float32), size)[None, None].repeat(len(kernel), axis=1)
    within_baseline, within_experiment, cross = _kernel_means(kernel, deal)
    return PairContrasts(within_baseline[0], within_experiment[0], cross[0])


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
    size = _group_size(kernel)
    observed = pair_contrasts(kernel)
    within, distance = [], []
    for deals in _deals(len(kernel), size, permutations, rng):
        baseline, experiment, cross = _kernel_means(kernel, deals)
        within.append((experiment - cross).mean(axis=1))
        distance.append((experiment + baseline - 2 * cross).mean(axis=1))
    return {
        name: Result(
            method=f"pair kernel, {name.replace('_', ' ')}, labels dealt inside prompts, one-sided",
            estimate=float(values.mean()),
            p=permutation_p(np.concatenate(simulated), float(values.mean())),
            unit="prompt group",
            units=len(kernel),
        )
        for name, values, simulated in (
            ("within_minus_cross", observed.within_minus_cross, within),
            ("distance", observed.distance, distance),
        )
    }


def _group_size(kernel: npt.NDArray[np.float32]) -> int:
    if kernel.ndim != 3 or kernel.shape[1] != kernel.shape[2] or kernel.shape[1] % 2 or kernel.shape[1] < 4:
        raise InputError(f"a pair kernel is (groups, 2n, 2n) with n of two or more, not {kernel.shape}")
    return int(kernel.shape[1]) // 2


def _kernel_means(kernel: npt.NDArray[np.float32], deals: npt.NDArray[np.float32]) -> tuple[Floats, Floats, Floats]:
    """Mean kernel over pairs inside the baseline, the experiment and across, (B, G) each, of deals (B, G, 2n)."""
    size = kernel.shape[1] // 2
    off_diagonal = kernel * (1 - np.eye(2 * size, dtype=np.float32))
    rows = off_diagonal.sum(axis=2)
    by_group = np.ascontiguousarray(deals.transpose(1, 0, 2))
    inside = np.einsum("gbi,gbi->bg", by_group @ off_diagonal, by_group).astype(np.float64)
    touching = np.einsum("bgi,gi->bg", deals, rows).astype(np.float64)
    cross = touching - inside
    outside = rows.sum(axis=1, dtype=np.float64) - inside - 2 * cross
    pairs = size * (size - 1)
    return outside / pairs, inside / pairs, cross / size**2
