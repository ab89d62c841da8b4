"""The three ways of asking one engine, as a rollout takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection

from parity.records.arms import WAYS, Arm
from parity.trainer.arm_path import ArmPath
from parity.trainer.group_sender import GroupSender
from rollout_patch import Capabilities, Post


def one_engine(
    post: Post,
    capabilities: Capabilities,
    served_by: Callable[[str | None], str] = lambda _: "engine-0",
    retries: int = 0,
    placeholders: Collection[int] = (),
) -> dict[str, ArmPath]:
    sender = GroupSender(post, capabilities, served_by, retries, placeholders)
    return {way: ArmPath(way, Arm(way), sender) for way in WAYS}
