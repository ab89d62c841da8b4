"""What a rollout was asked to be: the facts that checks cannot read from the rollout itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from parity.records.samples import Sample

AdvantageFormula = Literal["grpo", "grpo_no_std", "rloo", "batch_std", "batch"]
"""How rewards become advantages; `parity.evidence.contract.scores.group_advantages` has the formulas."""

AdvantageScope = Literal["group", "prompt"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What was asked for.

    A rule that is not given is inferred where the data allows it (`parity.evidence.contract.inference`: group size,
    cap, context length, stop tokens, advantage formula, media placeholders); else the checks that need it say *not
    compared*, never pass. What is given overrules what could be inferred.

    Attributes:
        group_size: Samples of each group.
        max_new_tokens: Cap of a response in tokens, over its whole life, or of each of its turns where its mask shows
            several; the cap of a sample or request goes before it.
        context_length: Cap of prompt and response together, in tokens.
        vocab_size: Token ids are below it.
        stop_token_ids: Every token that ends a response; empty means not known.
        stop_strings: Whether strings too may end a response, so that its last token tells nothing.
        temperature: Sampling temperature, where the samples carry none.
        reward: The task's reward of one sample, a pure function.
        advantage: Formula by which the trainer turns rewards into advantages.
        advantage_over: The samples that share a mean: those of one group, or of one prompt of a rollout, however often
            it was drawn.
        ddof: Delta degrees of freedom of the standard deviation (`torch.std` has 1, `numpy.std` 0).
        epsilon: What the trainer adds to the standard deviation.
        partial_versions: Whether one response, and so its group, may span a weight update.
        weight_versions: The trainer's weight version of each rollout by `rollout_id`.
        media_placeholders: What stands for one medium in a prompt: token ids in `prompt_ids`, strings in text prompts.
    """

    group_size: int | None = None
    max_new_tokens: int | None = None
    context_length: int | None = None
    vocab_size: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    stop_strings: bool = False
    temperature: float | None = None
    reward: Callable[[Sample], float] | None = None
    advantage: AdvantageFormula | None = None
    advantage_over: AdvantageScope = "group"
    ddof: int = 1
    epsilon: float = 1e-6
    partial_versions: bool = False
    weight_versions: Mapping[int, str] = field(default_factory=dict)
    media_placeholders: frozenset[int | str] = frozenset()
