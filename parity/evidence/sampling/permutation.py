"""Arm labels dealt anew inside each prompt: what statistics of a group would be if the arms were exchangeable (L1).

If both arms draw independent samples of a prompt from one law, its 2n samples are exchangeable, so that every way to
deal them to the arms is as likely as the one that was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
import numpy.typing as npt

from parity.errors import InputError
from parity.evidence.two_samples import MOST_PERMUTATIONS, all_splits
from parity.evidence.values import Floats

Singles = npt.NDArray[np.float32]


def dealt_labels(groups: int, size: int, relabelings: int, rng: np.random.Generator) -> Singles:
    """Labels (G, 2n, 1 + B): 1 for samples of the experiment, n in each group; as seen, and then dealt at random.

    As seen, the last n samples of a group are the experiment's.
    """
    seen = np.repeat(np.array([0, 1], np.float32), size)[None, :, None].repeat(groups, axis=0)
    if comb(2 * size, size) <= MOST_PERMUTATIONS:
        ways = all_splits(2 * size, size).astype(np.float32)
        dealt = ways[rng.integers(0, len(ways), (groups, relabelings))].transpose(0, 2, 1)
    else:
        order = np.argsort(rng.random((groups, 2 * size, relabelings), np.float32), axis=1)
        dealt = np.zeros(order.shape, np.float32)
        np.put_along_axis(dealt, order[:, :size], 1.0, axis=1)
    return np.concatenate([seen, dealt], axis=2)


def equality_kernel(codes: npt.NDArray[np.int64]) -> Singles:
    """1 where two samples of a group have the same code, (G, m, m), from codes (G, m) such as hashes of token ids."""
    return np.asarray(codes[:, :, None] == codes[:, None, :], dtype=np.float32)


def distance_kernel(values: Floats) -> Singles:
    """Distances of samples of a group in units of their mean distance, (G, m, m), from values (G, m)."""
    distances = np.abs(values[:, :, None] - values[:, None, :])
    mean = distances.mean(axis=(1, 2), keepdims=True)
    return np.asarray(np.divide(distances, mean, out=np.zeros_like(distances), where=mean > 0), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class PairMeans:
    """Mean kernel over the pairs inside the baseline, inside the experiment and across the arms, (G, 1 + B) each.

    `inside` compares the experiment's pairs with those across: positive where samples of the experiment resemble each
    other more than they resemble the baseline's. `between` compares them with the baseline's own pairs: it does not
    move with a shift of one arm as a whole.
    """

    of_baseline: Floats
    of_experiment: Floats
    across: Floats

    @classmethod
    def of(cls, kernel: Singles, labels: Singles) -> PairMeans:
        """From a symmetric kernel (G, 2n, 2n) and labels (G, 2n, 1 + B).

        Raises:
            InputError: The kernel is not of that shape, or groups have fewer than two samples.
        """
        if kernel.ndim != 3 or kernel.shape[1] != kernel.shape[2] or kernel.shape[1] % 2 or kernel.shape[1] < 4:
            raise InputError(f"a pair kernel is (groups, 2n, 2n) with n of two or more, not {kernel.shape}")
        size = kernel.shape[1] // 2
        off_diagonal = kernel * (1 - np.eye(2 * size, dtype=np.float32))
        rows = off_diagonal.sum(axis=2, keepdims=True)  # (G, 2n, 1): of each sample with all others
        inside = np.einsum("gib,gib->gb", off_diagonal @ labels, labels).astype(np.float64)
        across = (rows.transpose(0, 2, 1) @ labels)[:, 0] - inside
        outside = rows.sum(axis=1, dtype=np.float64) - inside - 2 * across
        pairs = size * (size - 1)
        return cls(outside / pairs, inside / pairs, across / size**2)

    @property
    def inside(self) -> Floats:
        """The experiment's inner mean less the mean across, (G, 1 + B)."""
        return self.of_experiment - self.across

    @property
    def between(self) -> Floats:
        """The experiment's inner mean less the baseline's, (G, 1 + B)."""
        return self.of_experiment - self.of_baseline


def mean_excess(values: Floats, labels: Singles) -> Floats:
    """How far the arms' means of a group lie apart against independent samples, (G // 2, 1 + B), around a mean of 1.

    Copies among the experiment's samples widen its group means, samples that balance each other narrow them. Values are
    standardised within each group of 2n, which is symmetric in the labels, and two neighbouring groups are subtracted,
    so that a shift of one arm as a whole cancels. From values (G, 2n) and labels (G, 2n, 1 + B); a last odd group is
    left out.
    """
    groups = len(values) // 2 * 2
    centred = values[:groups] - values[:groups].mean(axis=1, keepdims=True)
    spread = centred.std(axis=1, keepdims=True)
    standard = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 0)
    sums = np.einsum("gi,gib->gb", standard.astype(np.float32), labels[:groups]).astype(np.float64)
    squares = (sums[0::2] - sums[1::2]) ** 2
    mean = squares.mean(axis=1, keepdims=True)
    return np.asarray(np.divide(squares, mean, out=np.ones_like(squares), where=mean > 0))
