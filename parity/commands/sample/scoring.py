"""Log-probs that an engine gives to the tokens of responses, by a prefill: those it drew itself, or another's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parity.engines import EngineClient
from parity.engines.scoring import prompt_ids, score
from parity.errors import ExchangeError
from parity.records.samples import Rollout, Sample
from parity.stats import Floats, Rescored
from rollout_patch import Permits


class NotScored(Exception):
    """An engine's answer holds no log-probs of given tokens."""


async def rescore(client: EngineClient, permits: Permits, rollout: Rollout, groups: int) -> Rescored:
    """The recorded log-probs of the first groups, and those of an engine at temperature 1 without truncation.

    Responses without tokens or log-probs are left out.

    Args:
        client: Of the engine that scores.
        permits: How many sequences may be in flight.
        rollout: Samples with `group_index` from 0 on.
        groups: How many groups are scored.

    Raises:
        NotScored: The engine answers without log-probs of these tokens.
        RequestFailed: It refuses or does not answer.
    """
    by_group: dict[int, list[Sample]] = {}
    rows = rollout.integers("group_index") < groups
    for sample in Rollout(rollout.table.filter(rows)).samples():
        by_group.setdefault(sample.group_index, []).append(sample)
    recorded, prefilled, lengths = [], [], []
    for group in by_group.values():
        scored = [sample for sample in group if sample.output_ids and sample.logprobs]
        try:
            prompt = group[0].prompt_ids or await prompt_ids(client, group[0].extra["prompt"])
            contexts = [[*prompt, *(sample.output_ids or ())] for sample in scored]
            async with permits.hold(max(len(contexts), 1)):
                answers = await score(client, contexts, len(prompt) - 1)
        except ExchangeError as error:
            raise NotScored(str(error)) from error
        parts = [_of_tokens(row[1:], sample) for row, sample in zip(answers, scored, strict=True)]
        recorded.append(np.array([value for sample in scored for value in sample.logprobs or ()], dtype=np.float64))
        prefilled.append(np.concatenate([np.zeros(0), *parts]))
        lengths.append([len(part) for part in parts])
    return Rescored(recorded, prefilled, lengths)


def _of_tokens(row: Sequence[tuple[float | None, int]], sample: Sample) -> Floats:
    """The log-probs of a sample's tokens; they must be of those tokens."""
    if [token for _, token in row] != sample.output_ids or any(value is None for value, _ in row):
        place = f"group {sample.group_index}, slot {sample.index}"
        raise NotScored(f"{place}: log-probs of {len(row)} other tokens than the {len(sample.output_ids or ())} given")
    return np.array([value for value, _ in row], dtype=np.float64)
