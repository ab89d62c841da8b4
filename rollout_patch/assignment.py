"""Which arm a group gets: fixed, switchback or probe.

The draw for a group depends on the seed, the rollout and the group alone, so that a resumed run draws the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

DESIGNS = ("fixed", "switchback", "probe")


@dataclass(frozen=True, slots=True)
class Assignment:
    """The arms of one group, and how they came about; to be logged with the group.

    Attributes:
        design: One of `DESIGNS`.
        arms: The arms that the prompt is asked in. The samples of the first are trained on; a second is only compared.
        probability: The chance that the first arm had of being drawn.
    """

    design: str
    arms: tuple[str, ...]
    probability: float

    def to_json(self) -> dict[str, Any]:
        """The assignment as a log of groups holds it."""
        return {"design": self.design, "arms": list(self.arms), "probability": self.probability}

    def of_samples(self, arm: str, *, seed: int, rollout_id: int, group_index: int) -> dict[str, Any]:
        """What each sample of the group in one of its arms carries under ``assignment``.

        Args:
            arm: One of the group's arms.
            seed: What the draw was made with.
            rollout_id: The group's rollout.
            group_index: The group's number in it.
        """
        trained = arm == self.arms[0]
        return {
            "policy": self.design,
            "seed": seed,
            "unit": f"{rollout_id}/{group_index}",
            "arm": arm,
            "probability": self.probability if trained else 1 - self.probability,
            "trained": trained,
        }


def fixed(arm: str) -> Assignment:
    """Every group in one arm."""
    return Assignment("fixed", (arm,), 1.0)


def switchback(baseline: str, experiment: str, *, seed: int, rollout_id: int, group_index: int) -> Assignment:
    """Each group in one of two arms, by a fair coin."""
    arm = experiment if _uniform(seed, rollout_id, group_index, "arm") < 0.5 else baseline
    return Assignment("switchback", (arm,), 0.5)


def probe(baseline: str, experiment: str, *, share: float, seed: int, rollout_id: int, group_index: int) -> Assignment:
    """A share of the prompts in both arms, in random order; the others in the baseline.

    Raises:
        ValueError: `share` is no probability.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}, not between 0 and 1")
    if _uniform(seed, rollout_id, group_index, "probed") >= share:
        return Assignment("probe", (baseline,), 1.0)
    arms = (experiment, baseline) if _uniform(seed, rollout_id, group_index, "arm") < 0.5 else (baseline, experiment)
    return Assignment("probe", arms, 0.5)


def _uniform(*parts: object) -> float:
    """A number in [0, 1) that is a function of its parts: the first 53 bits of a SHA-256."""
    word = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return float(int.from_bytes(word[:8], "big") >> 11) / float(2**53)
