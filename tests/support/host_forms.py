"""The same sound samples, as each host and trainer would have written them; the dict forms are spelled out here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from parity.records.samples import Rollout, Sample

STATUS_FIELDS = {"spec_accept_token_num": 0, "spec_draft_token_num": 0, "spec_verify_ct": 0, "completion_token_num": 0}


def host_sample(sample: Sample, n: int) -> dict[str, Any]:
    """`Sample.to_dict()` of slime and Miles, which number samples through over all groups."""
    return {
        "group_index": sample.group_index,
        "index": sample.group_index * n + sample.index,
        "rollout_id": None,
        "prompt": sample.extra["prompt"],
        "tokens": [*(sample.prompt_ids or ()), *(sample.output_ids or ())],
        "multimodal_inputs": None,
        "multimodal_train_inputs": None,
        "response": sample.text,
        "response_length": sample.response_length,
        "label": None,
        "reward": sample.reward,
        "loss_mask": sample.loss_mask,
        "weight_versions": sample.weight_versions,
        "rollout_log_probs": sample.logprobs,
        "rollout_routed_experts": None,
        "remove_sample": False,
        "status": sample.status,
        "metadata": {},
        "session_id": f"session-{sample.group_index}-{sample.index}",
        "non_generation_time": 0.0,
        "spec_info": dict(STATUS_FIELDS),
        "prefix_cache_info": {"cached_tokens": sample.cached_tokens, "total_prompt_tokens": sample.prompt_tokens},
    }


def rollout_dump(samples: Sequence[Sample], n: int) -> dict[str, Any]:
    return {"rollout_id": samples[0].rollout_id, "samples": [host_sample(sample, n) for sample in samples]}


def train_columns(samples: Sequence[Sample], n: int, every: Sequence[Sample]) -> dict[str, Any]:
    """The columns that a trainer's rank takes, with tensors where the trainer has computed something."""
    import torch

    return {
        "partition": [every.index(sample) for sample in samples],
        "tokens": [torch.tensor([*(sample.prompt_ids or ()), *(sample.output_ids or ())]) for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "rewards": [sample.advantage for sample in samples],
        "truncated": [int(sample.status == "truncated") for sample in samples],
        "loss_masks": [torch.tensor(sample.loss_mask) for sample in samples],
        "sample_indices": [sample.group_index * n + sample.index for sample in samples],
        "rollout_log_probs": [torch.tensor(sample.logprobs, dtype=torch.float64) for sample in samples],
        "advantages": [
            torch.full((sample.response_length or 0,), sample.advantage, dtype=torch.float64) for sample in samples
        ],
        "raw_reward": [sample.reward for sample in every],
    }


def rank_dump(samples: Sequence[Sample], n: int, every: Sequence[Sample], rank: int = 0) -> dict[str, Any]:
    columns = train_columns(samples, n, every)
    place = {"rollout_id": samples[0].rollout_id, "rank": rank, "cp_rank": 0, "cp_size": 1, "qkv_format": "thd"}
    return {**place, "rollout_data": columns}


def gathered_dump(samples: Sequence[Sample], n: int) -> dict[str, Any]:
    """slime's train dump of format 2."""
    columns = train_columns(samples, n, samples)
    names = {"partition": "rollout_position", "sample_indices": "sample_index"}
    rewards = columns.pop("raw_reward")
    rows = [
        {"data_parallel_rank": 0, **{names.get(name, name): column[row] for name, column in columns.items()}}
        for row in range(len(samples))
    ]
    place = {"format_version": 2, "rollout_id": samples[0].rollout_id, "rank": 0, "dp_shards": []}
    return {**place, "samples": rows, "raw_reward": rewards}


def relax_row(sample: Sample, position: int) -> dict[str, Any]:
    return {
        "rollout_id": sample.rollout_id,
        "sample_index": position,
        "prompt": sample.extra["prompt"],
        "response": sample.text,
        "reward": sample.reward,
        "prompt_token_count": sample.prompt_tokens,
        "response_token_count": sample.response_length,
        "response_token_ids": sample.output_ids,
        "response_rollout_log_probs": sample.logprobs,
        "status": sample.status,
        "group_index": sample.group_index,
        "label": None,
    }


def verl_row(sample: Sample) -> dict[str, Any]:
    uid = f"{sample.group_index:08x}_{sample.index}_0"
    row = {"input": sample.extra["prompt"], "output": sample.text, "gts": "7", "score": sample.reward}
    return {**row, "step": sample.rollout_id, "uid": uid}


def dashboard_table(samples: Sequence[Sample], n: int) -> pa.Table:
    tokens = [[*(sample.prompt_ids or ()), *(sample.output_ids or ())] for sample in samples]
    return pa.table(
        {
            "sample_index": pa.array([sample.group_index * n + sample.index for sample in samples], pa.int32()),
            "response_length": pa.array([sample.response_length for sample in samples], pa.int32()),
            "total_length": pa.array([len(ids) for ids in tokens], pa.int32()),
            "tokens": pa.array(tokens, pa.large_list(pa.int32())),
            "loss_mask": pa.array([sample.loss_mask for sample in samples], pa.large_list(pa.int8())),
            "rollout_log_probs": pa.array([sample.logprobs for sample in samples], pa.large_list(pa.float32())),
        }
    )


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """JSON lines, compressed as the name's ending says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    if path.suffix == ".zst":
        content = pa.compress(content, codec="zstd", asbytes=True)
    path.write_bytes(content)
    return path


def save_torch(path: Path, content: Any) -> Path:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


def write_format(name: str, directory: Path, samples: Sequence[Sample], n: int) -> Path:
    """One rollout's samples as a file of a format, named as its writer names it."""
    step = samples[0].rollout_id
    if name == "rollout dump":
        return save_torch(directory / f"{step}.pt", rollout_dump(samples, n))
    if name == "rank dump":
        return save_torch(directory / f"{step}_0.pt", rank_dump(samples, n, samples))
    if name == "gathered dump":
        return save_torch(directory / f"{step}.pt", gathered_dump(samples, n))
    if name == "relax":
        return write_lines(directory / f"{step}.jsonl", [relax_row(one, row) for row, one in enumerate(samples)])
    if name == "verl":
        return write_lines(directory / f"{step}.jsonl", [verl_row(one) for one in samples])
    if name.startswith("samples.jsonl"):
        return write_lines(directory / f"run.{name}", [one.to_json() for one in samples])
    path = directory / f"rollout_{step}.parquet"
    table = dashboard_table(samples, n) if name == "dashboard" else Rollout.from_samples(samples).table
    pq.write_table(table, path, row_group_size=8)
    return path


COLUMNS = {
    "rollout dump": {"prompt_ids", "output_ids", "logprobs", "text", "finish_reason", "status", "reward", "loss_mask"}
    | {"response_length", "weight_versions", "prompt_tokens", "cached_tokens"},
    "rank dump": {"prompt_ids", "output_ids", "logprobs", "reward", "advantage", "loss_mask", "response_length"},
    "gathered dump": {"prompt_ids", "output_ids", "logprobs", "reward", "advantage", "loss_mask", "response_length"},
    "relax": {"output_ids", "logprobs", "text", "finish_reason", "status", "reward", "response_length"}
    | {"prompt_tokens"},
    "verl": {"text", "reward"},
    "dashboard": {"prompt_ids", "output_ids", "loss_mask", "response_length"},
    "samples.jsonl": set(Rollout.from_samples([]).table.column_names),
    "samples.jsonl.gz": set(Rollout.from_samples([]).table.column_names),
    "samples.jsonl.zst": set(Rollout.from_samples([]).table.column_names),
    "samples.parquet": set(Rollout.from_samples([]).table.column_names),
}
"""What each format keeps of a sample, unchanged."""
