"""How the groups of an arm reach the engine that answers it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL.Image import Image

from parity.records.arms import Arm
from parity.records.exchanges import Exchange
from parity.records.samples import Sample
from parity.trainer.group_sender import GroupSender
from rollout_patch import GroupReport


@dataclass(frozen=True, slots=True)
class ArmPath:
    """One arm: its name, what it sets, and who sends its groups."""

    name: str
    arm: Arm
    sender: GroupSender

    async def send(self, samples: list[Sample], exchanges: list[Exchange], images: Sequence[Image] = ()) -> GroupReport:
        """Fills in the samples of one group, which carry the arm's name, or the way that was taken in its place.

        Raises:
            PatchError: The group could not be generated.
        """
        report = await self.sender.send(self.arm.way, samples, exchanges, images, self.arm.chunk)
        for sample in samples:
            if sample.arm == self.arm.way:
                sample.arm = self.name
        return report
