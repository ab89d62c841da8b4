"""Dumps that the hosts' own code writes, from samples of their own classes."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from host_forms import train_columns

from parity.errors import InputError
from parity.records.samples import Rollout, Sample
from parity.sources.registry import open_source

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]

N = 4
Build = Callable[..., list[Sample]]


def host(variable: str, name: str) -> Any:
    """A module of the checkout that an environment variable names, or a skip that says what is missing."""
    checkout = os.environ.get(variable)
    if not checkout:
        pytest.skip(f"{variable} names no checkout")
    if checkout not in sys.path:
        sys.path.append(checkout)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            pytest.skip(f"{variable}: {name} needs {error.name}")


def read(path: Path) -> Rollout:
    source = open_source(path, N)
    assert source.samples is not None
    return Rollout.concatenate(list(source.samples()))


def in_class(sample_class: Any, sample: Sample) -> Any:
    """A sample as the host's own class holds it."""
    one = sample_class(
        group_index=sample.group_index,
        index=sample.group_index * N + sample.index,
        prompt=sample.extra["prompt"],
        tokens=[*(sample.prompt_ids or ()), *(sample.output_ids or ())],
        response=sample.text,
        response_length=sample.response_length,
        reward=sample.reward,
        loss_mask=sample.loss_mask,
        weight_versions=sample.weight_versions,
        rollout_log_probs=sample.logprobs,
        status=sample_class.Status(sample.status),
    )
    one.prefix_cache_info.add({"cached_tokens": sample.cached_tokens, "prompt_tokens": sample.prompt_tokens})
    return one


KEPT = ("group_index", "index", "prompt_ids", "output_ids", "logprobs", "text", "finish_reason", "status", "reward")
KEPT += ("loss_mask", "response_length", "weight_versions", "prompt_tokens", "cached_tokens")


def assert_kept(rollout: Rollout, samples: list[Sample]) -> None:
    wanted = Rollout.from_samples(samples)
    for column in KEPT:
        assert rollout.table.column(column).to_pylist() == wanted.table.column(column).to_pylist(), column


def test_a_rollout_dump_of_slime(valid_samples: Build, tmp_path: Path) -> None:
    types = host("SLIME_CHECKOUT", "slime.utils.types")
    dumping = host("SLIME_CHECKOUT", "slime.observability.rollout_data_utils")
    samples = valid_samples(steps=4)[-16:]
    own = [in_class(types.Sample, sample) for sample in samples]
    template = f"{tmp_path}/{{rollout_id}}.pt"
    dumping.save_debug_rollout_data(template, own, rollout_id=3, evaluation=False)
    assert_kept(read(tmp_path / "3.pt"), samples)
    dumping.save_debug_rollout_data(template, {"math": {"samples": own}}, rollout_id=3, evaluation=True)
    assert len(read(tmp_path / "eval_3.pt")) == 16


def test_a_train_dump_of_slime(valid_samples: Build, tmp_path: Path) -> None:
    import torch

    dumping = host("SLIME_CHECKOUT", "slime.observability.train_data_utils")
    samples = valid_samples()
    shards = [
        {"rank": rank, "data_parallel_rank": rank, "rollout_data": train_columns(samples[rank::2], N, samples)}
        for rank in range(2)
    ]
    torch.save(dumping._build_dump_payload(shards, rollout_id=0, writer_rank=0), tmp_path / "0.pt")
    rollout, wanted = read(tmp_path / "0.pt"), Rollout.from_samples(samples)
    for column in ("prompt_ids", "output_ids", "logprobs", "reward", "advantage", "loss_mask"):
        assert rollout.table.column(column).to_pylist() == wanted.table.column(column).to_pylist(), column


@pytest.fixture
def miles_arguments(tmp_path: Path) -> Namespace:
    return Namespace(
        save_debug_rollout_data=f"{tmp_path}/rollout_data/{{rollout_id}}.pt",
        save_debug_train_data=f"{tmp_path}/train_data/{{rollout_id}}_{{rank}}.pt",
        save_debug_trajectory_data=None,
        qkv_format="thd",
    )


def test_a_rollout_dump_of_miles_with_numpy_rewards_and_experts(
    miles_arguments: Namespace, valid_samples: Build, tmp_path: Path
) -> None:
    types = host("MILES_CHECKOUT", "miles.utils.types")
    dumping = host("MILES_CHECKOUT", "miles.ray.rollout.debug_data")
    samples = valid_samples()
    own = [in_class(types.Sample, sample) for sample in samples]
    for one in own:
        one.reward = np.float64(one.reward)
        one.rollout_routed_experts = np.zeros((len(one.tokens) - 1, 2, 4), dtype=np.int32)
    dumping.save_debug_rollout_data(miles_arguments, own, rollout_id=0, evaluation=False, metadata={"source": "test"})
    rollout = read(tmp_path / "rollout_data" / "0.pt")
    assert_kept(rollout, samples)
    experts = rollout.extra(0)["rollout_routed_experts"]
    assert experts == {"dtype": "int32", "shape": [len(own[0].tokens) - 1, 2, 4]}


def test_a_dump_of_miles_with_an_adapter_is_refused_by_its_class(
    miles_arguments: Namespace, valid_samples: Build, tmp_path: Path
) -> None:
    types = host("MILES_CHECKOUT", "miles.utils.types")
    dumping = host("MILES_CHECKOUT", "miles.ray.rollout.debug_data")
    one = in_class(types.Sample, valid_samples()[0])
    one.adapter = types.AdapterRef("lora", 0)
    dumping.save_debug_rollout_data(miles_arguments, [one], rollout_id=0, evaluation=False)
    with pytest.raises(
        InputError, match=r"refused, since it holds miles\.utils\.types\.AdapterRef.*weights_only=False"
    ):
        read(tmp_path / "rollout_data" / "0.pt")


def test_a_train_dump_of_miles(miles_arguments: Namespace, valid_samples: Build, tmp_path: Path) -> None:
    dumping = host("MILES_CHECKOUT", "miles.utils.train_dump_utils")
    samples = valid_samples()
    dumping.save_debug_train_data_for_rank(
        miles_arguments, rollout_id=0, rollout_data=train_columns(samples, N, samples), rank=3
    )
    rollout, wanted = read(tmp_path / "train_data" / "0_3.pt"), Rollout.from_samples(samples)
    for column in ("prompt_ids", "output_ids", "logprobs", "reward", "advantage", "loss_mask"):
        assert rollout.table.column(column).to_pylist() == wanted.table.column(column).to_pylist(), column


def test_events_of_miles(tmp_path: Path) -> None:
    models = host("MILES_CHECKOUT", "miles.utils.audit_utils.event_logger.models")
    logger = host("MILES_CHECKOUT", "miles.utils.audit_utils.event_logger.logger")
    identity = host("MILES_CHECKOUT", "miles.utils.audit_utils.process_identity")
    source = identity.RolloutManagerProcessIdentity()
    events = logger.EventLogger(log_dir=tmp_path, file_name="rollout.jsonl", source=source)
    for step in range(3):
        for metrics in ({"rollout/raw_reward": 0.1 * step}, {"perf/rollout_time": 2.0}):
            metrics = {**metrics, "rollout/step": step}
            events.log(models.MetricEvent, {"rollout_id": step, "metrics": metrics}, print_log=False)
    reward, time = curves_of(tmp_path / "rollout.jsonl", "rollout/raw_reward", "perf/rollout_time")
    assert reward == {0: 0.0, 1: 0.1, 2: 0.2}
    assert time == {0: 2.0, 1: 2.0, 2: 2.0}


def curves_of(path: Path, *names: str) -> Iterator[dict[int, float]]:
    source = open_source(path)
    assert source.curves is not None
    curves = source.curves()
    return (
        {int(s): float(v) for s, v in zip(c.steps, c.values, strict=True)} for c in (curves[name] for name in names)
    )
