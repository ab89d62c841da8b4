"""Samples a block of prompts from an engine in both arms, and scores tokens that it gave again."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from parity.commands.sample.prompts import Prompt
from parity.commands.sample.scoring import NotScored, rescore
from parity.engines import EngineClient
from parity.errors import EngineError, InputError
from parity.findings import Finding, Level, Message, Status
from parity.records.exchanges import Exchange
from parity.records.margins import SAMPLING
from parity.records.samples import Rollout, Sample
from parity.records.sampling import SamplingConfig
from parity.stats import CHECK, Rescored, crossed_findings, rescored_findings
from parity.trainer.arm_path import ArmPath
from parity.trainer.group_sender import all_or_none, pending_group
from rollout_patch import Assignment, PatchError, RequestFailed, ResponseRefused, probe

RESCORED_GROUPS = 64
"""Groups of each arm whose tokens are scored again; four times as many, and again, where that decides nothing."""


@dataclass(slots=True)
class ArmBlock:
    """One arm's part of a block, group by group."""

    samples: list[Sample] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Asker:
    """Samples every arm from its engine; only `/generate` requests are sent.

    Attributes:
        config: What to sample.
        paths: By arm, how its groups reach an engine.
        clients: Of each arm's engine.
        max_new_tokens: The cap of a response.
        reward: Scores a sample, or None.
    """

    config: SamplingConfig
    paths: Mapping[str, ArmPath]
    clients: Mapping[str, EngineClient]
    max_new_tokens: int
    reward: Callable[[Sample], float] | None

    async def block(self, start: int, prompts: Sequence[Prompt]) -> tuple[dict[str, ArmBlock], ResponseRefused | None]:
        """Samples a block in all arms, each prompt in one arm after the other, in random order.

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
            await all_or_none(self._arms(*of_prompt, blocks) for of_prompt in zip(groups, assigned, strict=True))
        except ResponseRefused as refused:
            return blocks, refused
        for arm, block in blocks.items():
            block.samples = [sample for group in groups for sample in group[arm]]
            block.exchanges.sort(key=lambda exchange: exchange.group_index or 0)
            self._score(block.samples)
        return blocks, None

    def _assign(self, group_index: int) -> Assignment:
        arms, seed = self.config.arms, self.config.seed
        if len(arms) == 2:
            return probe(*arms, share=1.0, seed=seed, rollout_id=0, group_index=group_index)
        order = random.Random(f"{seed}/{group_index}").sample(arms, len(arms))
        return Assignment("probe", tuple(order), 1 / len(arms))

    def _group(self, group_index: int, prompt: Prompt, assignment: Assignment, arm: str) -> list[Sample]:
        drawn = assignment.of_samples(arm, seed=self.config.seed, rollout_id=0, group_index=group_index)
        extra: dict[str, Any] = {**prompt.fields, "assignment": drawn}
        if prompt.text is not None:
            extra["prompt"] = prompt.text
        return pending_group(
            self.config.group_size,
            extra,
            rollout_id=0,
            group_index=group_index,
            prompt_ids=None if prompt.ids is None else list(prompt.ids),
            max_new_tokens=self.max_new_tokens,
            **self._sampling(arm),
        )

    def _sampling(self, arm: str) -> dict[str, Any]:
        """The sampling parameters of an arm."""
        config = self.config
        common = {"temperature": config.temperature, "top_p": config.top_p, "top_k": config.top_k}
        return {**common, **config.arm(arm).sampling}

    async def _arms(
        self, group: Mapping[str, list[Sample]], assignment: Assignment, blocks: Mapping[str, ArmBlock]
    ) -> None:
        for arm in assignment.arms:
            try:
                await self.paths[arm].send(group[arm], blocks[arm].exchanges)
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

    async def rescored(self, rollouts: Mapping[str, Rollout], groups: int) -> dict[str, list[Finding]]:
        """Scores the tokens of each arm's first groups again by a prefill of its engine, and compares the log-probs.

        It needs temperature 1 and no top_p or top_k: a prefill gives log-probs of the whole distribution. Where
        another engine answers an arm than the baseline, each also scores what the other one drew.

        Args:
            rollouts: By arm.
            groups: How many groups are scored.

        Returns:
            By arm that is compared with the baseline.
        """
        config = self.config
        first, *others = config.arms
        own = {arm: await self._scored(arm, arm, rollout, groups) for arm, rollout in rollouts.items()}
        findings: dict[str, list[Finding]] = {}
        for arm in others:
            pair = own[first], own[arm]
            if not (isinstance(pair[0], Rescored) and isinstance(pair[1], Rescored)):
                findings[arm] = [_not_compared(next(one for one in pair if isinstance(one, Message)))]
                continue
            one_engine = config.deployment(first) == config.deployment(arm)
            findings[arm] = rescored_findings(pair[0], pair[1], one_engine)
            if one_engine:
                continue
            crossed = (
                await self._scored(first, arm, rollouts[first], groups),
                await self._scored(arm, first, rollouts[arm], groups),
            )
            if isinstance(crossed[0], Rescored) and isinstance(crossed[1], Rescored):
                findings[arm] += crossed_findings(
                    (pair[0], pair[1]),
                    (crossed[0], crossed[1]),
                    reward_margin=config.margins.get("reward", SAMPLING["reward"]),
                    reward_range=config.reward_range,
                    largest_kl=config.token_kl,
                    arms=(first, arm),
                )
            else:
                findings[arm].append(_not_compared(next(one for one in crossed if isinstance(one, Message))))
        return findings

    async def _scored(self, drew: str, scores: str, rollout: Rollout, groups: int) -> Rescored | Message:
        """What an arm drew beside the log-probs of another arm's engine, or why there are none."""
        sampling = self._sampling(drew)
        if (sampling["temperature"], sampling["top_p"]) != (1, 1) or sampling["top_k"] > 0:
            return Message("a prefill compares only with temperature 1, top_p 1 and no top_k")
        try:
            return await rescore(self.clients[scores], self.paths[scores].sender.permits, rollout, groups)
        except (RequestFailed, NotScored) as error:
            return Message("the engine did not score given tokens: {error}", error=str(error)[:200])


def _not_compared(reason: Message) -> Finding:
    message = Message("log-probs are not scored again: {reason}", reason=reason)
    return Finding(CHECK, Level.SAMPLING, Status.NOT_COMPARED, message)
