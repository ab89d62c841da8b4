"""Sound data to plant faults in: prompts, rollouts, exchanges and curves, drawn from a generator that is given.

The policy is one distribution over 191 tokens, the end among them, at every place, so that log-probs are exact and
responses independent. A reward is a function of prompt and response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from parity.contract_checks import Rules
from parity.metrics import rollout_metrics
from parity.records.exchanges import Exchange
from parity.records.samples import SCHEMA, Rollout, Sample

Floats = npt.NDArray[np.float64]

SIZE = 8
"""Samples of a group."""

STOP, MEDIUM, FIRST_WORD, WORDS, VOCABULARY = 2, 199, 3, 190, 200
CAP, CONTEXT, LONGEST_PROMPT = 40, 64, 12
END_PROBABILITY = 0.05
EPSILON = 1e-6

_WEIGHTS = np.exp(np.random.default_rng(11).normal(size=WORDS))
_LOGITS = np.log(np.append(END_PROBABILITY, (1 - END_PROBABILITY) * _WEIGHTS / _WEIGHTS.sum()))
_IDS = np.append(STOP, np.arange(FIRST_WORD, FIRST_WORD + WORDS))


def log_probs_at(temperature: float) -> Floats:
    """The policy's log-probs at a temperature, (191,): the end first, then the words."""
    scaled = _LOGITS / temperature
    return np.asarray(scaled - np.logaddexp.reduce(scaled))


def log_probs_of(ids: Iterable[int], temperature: float = 1.0) -> list[float]:
    """The log-prob of each token under the policy at a temperature."""
    table = log_probs_at(temperature)
    return [float(table[0 if token == STOP else token - FIRST_WORD + 1]) for token in ids]


def reward_of(sample: Sample) -> float:
    """1 where the prompt's ids and the response's length sum up to an even number, else 0."""
    return float((sum(sample.prompt_ids or ()) + len(sample.output_ids or ())) % 2 == 0)


RULES = Rules(
    group_size=SIZE,
    max_new_tokens=CAP,
    context_length=CONTEXT,
    vocab_size=VOCABULARY,
    stop_token_ids=frozenset({STOP}),
    temperature=1.0,
    reward=reward_of,
    advantage="grpo",
    epsilon=EPSILON,
    weight_versions={step: f"v{step}" for step in range(100)},
    media_placeholders=frozenset({MEDIUM}),
)
"""What sound rollouts were asked to be."""


def clean_prompts(rng: np.random.Generator, count: int, media: bool = False) -> list[list[int]]:
    """Prompts of 2 to 12 tokens, no two neighbours of one length, each with a placeholder first if it has a medium."""
    lengths = 2 + (np.cumsum(rng.integers(1, LONGEST_PROMPT - 2, count)) % (LONGEST_PROMPT - 1))
    words = rng.integers(FIRST_WORD, FIRST_WORD + WORDS, (count, LONGEST_PROMPT)).tolist()
    return [[*[MEDIUM] * media, *row[media:length]] for row, length in zip(words, lengths.tolist(), strict=True)]


def clean_rollout(
    rng: np.random.Generator,
    prompts: Sequence[list[int]],
    *,
    steps: int = 1,
    size: int = SIZE,
    arm: str = "native",
    temperatures: Sequence[float] | None = None,
) -> Rollout:
    """A sound group for each prompt, in columns.

    Args:
        rng: Source of the tokens.
        prompts: Token ids; a whole number of prompts for each step.
        steps: Training steps, one after the other.
        size: Samples of a group.
        arm: The arm that all samples name.
        temperatures: What each slot is drawn at, and its log-probs are of, (size,); the samples say 1.0 all the same.
    """
    groups, rows = len(prompts), len(prompts) * size
    temperatures = [1.0] * size if temperatures is None else temperatures
    tables = np.stack([log_probs_at(temperature) for temperature in temperatures])
    places = np.empty((groups, size, CAP), dtype=np.int64)
    for slot, table in enumerate(tables):
        ends = np.cumsum(np.exp(table))
        places[:, slot] = np.searchsorted(ends / ends[-1], rng.random((groups, CAP)), side="right")
    drawn = places.reshape(rows, CAP)
    stopped = (drawn == 0).any(axis=1)
    lengths = np.where(stopped, (drawn == 0).argmax(axis=1) + 1, CAP)
    kept = np.arange(CAP) < lengths[:, None]
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    log_probs = tables[np.arange(rows) % size][np.arange(rows)[:, None], drawn][kept]
    owner = np.repeat(np.arange(groups), size)
    asked = [prompts[group] for group in owner.tolist()]
    sums = np.array([sum(prompt) for prompt in prompts])
    rewards = ((sums[owner] + lengths) % 2 == 0).astype(np.float64)
    of_step = owner // (groups // steps)
    prompt_lengths = np.array([len(prompt) for prompt in prompts])[owner]
    texts = {"arm": arm, "engine_id": "engine-0"}
    columns: dict[str, Any] = {
        "rollout_id": of_step,
        "group_index": owner % (groups // steps),
        "index": np.arange(rows) % size,
        "prompt_ids": pa.array(asked, pa.list_(pa.int32())),
        "output_ids": pa.ListArray.from_arrays(offsets, pa.array(_IDS[drawn[kept]], pa.int32())),
        "logprobs": pa.ListArray.from_arrays(offsets, pa.array(log_probs)),
        "finish_reason": np.where(stopped, "stop", "length"),
        "status": np.where(stopped, "completed", "truncated"),
        "reward": rewards,
        "advantage": advantages_of(rewards.reshape(groups, size)).ravel(),
        "loss_mask": pa.ListArray.from_arrays(offsets, pa.array(np.ones(kept.sum(), dtype=np.int8))),
        "response_length": lengths,
        "max_new_tokens": np.full(rows, CAP),
        "weight_versions": pa.array([[f"v{step}"] for step in of_step.tolist()]),
        "sampling_seed": np.arange(rows),
        "temperature": np.ones(rows),
        "top_p": np.ones(rows),
        "top_k": np.full(rows, -1),
        "prompt_tokens": prompt_lengths,
        "cached_tokens": prompt_lengths - 1,
        "media_sha256": pa.array([[f"{sum(p):064x}"] * p.count(MEDIUM) for p in asked], pa.list_(pa.string())),
        **{name: pa.repeat(value, rows) for name, value in texts.items()},
    }
    arrays = [
        pa.array(columns[item.name], item.type)
        if isinstance(columns.get(item.name), np.ndarray)
        else columns[item.name].cast(item.type)
        if item.name in columns
        else pa.nulls(rows, item.type)
        for item in SCHEMA
    ]
    return Rollout(pa.table(arrays, schema=SCHEMA))


def advantages_of(rewards: Floats) -> Floats:
    """GRPO's advantages of rewards by group, (groups, size): (r - mean) / (std + 1e-6), std with n - 1."""
    deviation = rewards.std(axis=1, ddof=1, keepdims=True) if rewards.shape[1] > 1 else np.zeros((len(rewards), 1))
    return np.asarray((rewards - rewards.mean(axis=1, keepdims=True)) / (deviation + EPSILON))


def clean_samples(rollout: Rollout) -> list[Sample]:
    """The samples of a rollout with their texts."""
    samples = list(rollout.samples())
    for sample in samples:
        sample.text = " ".join(map(str, sample.output_ids or ()))
    return samples


def groups_of(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """The samples of each group, one after the other, where they stand together."""
    return (list(rows) for _, rows in groupby(samples, lambda sample: (sample.rollout_id, sample.group_index)))


def output_of(sample: Sample) -> dict[str, Any]:
    """What the engine answered for one sample."""
    output, logprobs, prompt = sample.output_ids or [], sample.logprobs or [], sample.prompt_ids or []
    length = len(output)
    finish = {"stop": {"type": "stop", "matched": STOP}, "length": {"type": "length", "length": length}}
    version = (sample.weight_versions or [""])[0]
    return {
        "text": sample.text,
        "output_ids": list(output),
        "meta_info": {
            "id": f"{sample.rollout_id}-{sample.group_index}-{sample.index}",
            "finish_reason": finish[sample.finish_reason or "stop"],
            "prompt_tokens": len(prompt),
            "cached_tokens": len(prompt) - 1,
            "completion_tokens": length,
            "weight_version": version,
            "weight_versions": [{"version": version, "start": 0, "end": length}],
            "output_token_logprobs": [[p, token, None] for p, token in zip(logprobs, output, strict=True)],
        },
    }


def clean_exchanges(samples: Iterable[Sample]) -> list[Exchange]:
    """The exchanges that samples came from, in the form of the arm that they name."""
    exchanges: list[Exchange] = []
    for of_group in groups_of(samples):
        step, group = of_group[0].rollout_id, of_group[0].group_index
        arm, prompt = of_group[0].arm, of_group[0].prompt_ids
        outputs = [output_of(sample) for sample in of_group]
        params = {"max_new_tokens": of_group[0].max_new_tokens, "temperature": of_group[0].temperature}
        asked: Any = {
            "native": [(prompt, {**params, "n": len(outputs)}, outputs if len(outputs) > 1 else outputs[0])],
            "batched": [([prompt] * len(outputs), params, outputs)],
            "per-sample": [(prompt, params, output) for output in outputs],
        }[arm or ""]
        for ids, sampling, response in asked:
            request = {"input_ids": ids, "sampling_params": sampling, "return_logprob": True}
            sent = Exchange(request, 200, response, rollout_id=step, group_index=group, arm=arm)
            exchanges.append(replace(sent, sent_at=float(len(exchanges))))
    return exchanges


def step_metrics(samples: Iterable[Sample]) -> list[dict[str, Any]]:
    """The metrics of each step of a rollout, as a tracker was told them: one record a step, which takes a second."""
    return [
        {"step": step, **rollout_metrics(Rollout.from_samples(rows), 1.0)}
        for step, rows in groupby(samples, lambda sample: sample.rollout_id)
    ]


CURVES: dict[str, Callable[[Floats], Floats]] = {
    "rollout/raw_reward": lambda x: 0.3 + 0.5 * x,
    "rollout/response_len/mean": lambda x: 20 + 4 * x,
    "rollout/truncated_ratio": lambda x: 0.2 - 0.1 * x,
    "rollout/group_reward_std": lambda x: 0.4 - 0.1 * x,
    "train/loss": lambda x: 0.1 - 0.05 * x,
    "train/grad_norm": lambda x: 1.0 - 0.3 * x,
    "train/train_rollout_logprob_abs_diff": lambda x: 0.002 + 0 * x,
    "perf/requests": lambda x: 16 + 0 * x,
}
"""The course of each metric over a run, from 0 to 1."""

NOISE = 0.02
MARGINS = {
    "rollout/raw_reward": 0.05,
    "rollout/response_len/mean": 0.07,
    "rollout/truncated_ratio": 0.02,
    "rollout/group_reward_std": 0.04,
    "train/grad_norm": 0.1,
}


def clean_records(rng: np.random.Generator, steps: int) -> list[dict[str, Any]]:
    """One run's lines of ``metrics.jsonl``: courses with 2 % of noise of their own."""
    courses = {name: course(np.linspace(0, 1, steps)) for name, course in CURVES.items()}
    noisy = {name: values * (1 + NOISE * rng.normal(size=steps)) for name, values in courses.items()}
    noisy["perf/requests"] = courses["perf/requests"]
    return [{"step": step, **{name: float(values[step]) for name, values in noisy.items()}} for step in range(steps)]
