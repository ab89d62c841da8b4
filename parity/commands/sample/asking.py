"""Samples a block of prompts from an engine in both arms, and scores tokens that it gave again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from parity.commands.sample.prompts import Prompt
from parity.commands.sample.scoring import NotScored, rescore
from parity.engines import EngineClient
from parity.engines.answers import SteadyPost
from parity.errors import EngineError, InputError
from parity.findings import Finding, Level, Message, Status
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout, Sample
from parity.records.sampling import SamplingConfig
from parity.stats import CHECK, rescored_findings
from parity.trainer.group_sender import GroupSender, all_or_none, pending_group
from rollout_patch import Assignment, Capabilities, PatchError, RequestFailed, ResponseRefused, probe

RESCORED_GROUPS = 64
"""Groups of each arm whose tokens are scored again."""


@dataclass(slots=True)
class ArmBlock:
    """One arm's part of a block, group by group."""

    samples: list[Sample] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asker:
    """Samples from one engine; only `/generate` requests are sent to it.

    Attributes:
        config: What to sample.
        client: Of the engine.
        capabilities: Of the engine.
        max_new_tokens: The cap of a response.
        reward: Scores a sample, or None.
        sender: Sends its groups.
    """

    config: SamplingConfig
    client: EngineClient
    capabilities: Capabilities
    max_new_tokens: int
    reward: Callable[[Sample], float] | None
    sender: GroupSender = field(init=False)

    def __post_init__(self) -> None:
        sender = GroupSender(SteadyPost(self.client), self.capabilities, self.client.served_by)
        object.__setattr__(self, "sender", sender)

    async def block(self, start: int, prompts: Sequence[Prompt]) -> tuple[dict[str, ArmBlock], ResponseRefused | None]:
        """Samples a block in both arms, each prompt in one arm after the other.

        Args:
            start: The index of the first group.
            prompts: One for each group.

        Returns:
            By arm, and the first response that breaks the protocol; if there is one, only exchanges and no samples.

        Raises:
            EngineError: A group could not be generated.
            InputError: A reward is outside its range.
        """
        blocks = {arm: ArmBlock() for arm in self.config.arms}
        assigned = [self._assign(start + offset) for offset in range(len(prompts))]
        groups = [
            {arm: self._group(start + offset, prompt, assignment, arm) for arm in assignment.arms}
            for offset, (prompt, assignment) in enumerate(zip(prompts, assigned, strict=True))
        ]
        try:
            await all_or_none(self._pair(*of_prompt, blocks) for of_prompt in zip(groups, assigned, strict=True))
        except ResponseRefused as refused:
            return blocks, refused
        for arm, block in blocks.items():
            block.samples = [sample for group in groups for sample in group[arm]]
            block.exchanges.sort(key=lambda exchange: exchange.group_index or 0)
            self._score(block.samples)
        return blocks, None

    def _assign(self, group_index: int) -> Assignment:
        config = self.config
        return probe(
            config.baseline, config.experiment, share=1.0, seed=config.seed, rollout_id=0, group_index=group_index
        )

    def _group(self, group_index: int, prompt: Prompt, assignment: Assignment, arm: str) -> list[Sample]:
        drawn = assignment.of_samples(arm, seed=self.config.seed, rollout_id=0, group_index=group_index)
        extra: dict[str, Any] = {**prompt.fields, "assignment": drawn}
        if prompt.text is not None:
            extra["prompt"] = prompt.text
        config = self.config
        return pending_group(
            config.group_size,
            extra,
            rollout_id=0,
            group_index=group_index,
            prompt_ids=None if prompt.ids is None else list(prompt.ids),
            max_new_tokens=self.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
        )

    async def _pair(
        self, group: Mapping[str, list[Sample]], assignment: Assignment, blocks: Mapping[str, ArmBlock]
    ) -> None:
        for arm in assignment.arms:
            try:
                await self.sender.send(arm, group[arm], blocks[arm].exchanges)
            except ResponseRefused:
                raise
            except PatchError as error:
                raise EngineError(f"group {group[arm][0].group_index}, {arm}: {error}") from error

    def _score(self, samples: Sequence[Sample]) -> None:
        low, high = self.config.reward_range
        if self.reward is None:
            return
        for sample in samples:
            sample.reward = self.reward(sample)
            if not low <= sample.reward <= high:
                raise InputError(
                    f"group {sample.group_index}, slot {sample.index}: reward {sample.reward:g} is outside "
                    f"{low:g} to {high:g}; give the range of rewards with --reward-range"
                )

    async def rescored(self, rollouts: tuple[Rollout, Rollout]) -> list[Finding]:
        """Scores the tokens of each arm's first groups again by a prefill, and compares the log-probs.

        It needs temperature 1 and no top_p or top_k: a prefill gives log-probs of the whole distribution.
        """
        config = self.config
        if (config.temperature, config.top_p) != (1, 1) or config.top_k > 0:
            return [_not_compared(Message("a prefill compares only with temperature 1, top_p 1 and no top_k"))]
        try:
            score = partial(rescore, self.client, self.sender.permits)
            baseline, experiment = [await score(rollout, RESCORED_GROUPS) for rollout in rollouts]
        except (RequestFailed, NotScored) as error:
            return [_not_compared(Message("the engine did not score given tokens: {error}", error=str(error)[:200]))]
        return rescored_findings(baseline, experiment)


def _not_compared(reason: Message) -> Finding:
    message = Message("log-probs are not scored again: {reason}", reason=reason)
    return Finding(CHECK, Level.SAMPLING, Status.NOT_COMPARED, message)
