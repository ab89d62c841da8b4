"""Relax by a stand-in: its whole tree cannot be had, so its own code is not run here.

The stand-in keeps what the plug-in touches of `relax.engine.rollout.sglang_rollout`: the names, the signatures, the
order in which `generate` primes a sample, encodes media, posts and applies, and the five-argument rollout that fills a
queue.
"""

from __future__ import annotations

import asyncio
import copy
import enum
import sys
import types
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollout_patch import UnsupportedHost
from rollout_patch.hosts.calls import RolloutCalls
from rollout_patch.hosts.relax import flag_conditions, generate_rollout, launcher_flags, sample_conditions

N = 4
MODULE = "relax.engine.rollout.sglang_rollout"


class Status(enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"


@dataclass
class Sample:
    group_index: int
    index: int
    prompt: str
    tokens: list[int] = field(default_factory=list)
    rollout_tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    response: str = ""
    response_length: int = 0
    reward: float | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    session_id: str | None = None

    Status = Status


class StandIn(types.ModuleType):
    """The module, with an engine behind its `post` that answers soundly."""

    def __init__(self) -> None:
        super().__init__(MODULE)
        self.Sample = Sample
        self.posted: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.calls: list[str] = []
        self.logged: list[dict[str, float]] = []
        self.queue: list[list[Sample]] = []
        self.answered = 0
        self.state = Namespace(aborted=False, processor=True, semaphore=asyncio.Semaphore(16))
        self.GenerateState = lambda args: self.state
        for function in build_functions(self):
            setattr(self, function.__name__, function)


def build_functions(relax: StandIn) -> list[Callable[..., Any]]:
    async def post(url: str, payload: dict[str, Any], max_retries: int = 6, headers: Any = None) -> Any:
        relax.posted.append(copy.deepcopy(payload))
        relax.headers.append(headers)
        await asyncio.sleep(0)
        params = payload["sampling_params"]
        n = params.get("n", 1)
        items = []
        for _ in range(n):
            relax.answered += 1
            ids = [relax.answered, 7]
            meta = {
                "id": f"id-{relax.answered}",
                "finish_reason": {"type": "stop"},
                "prompt_tokens": len(payload["input_ids"]),
                "completion_tokens": 2,
                "weight_version": "w1",
                "output_token_logprobs": [[-0.5, ids[0], None], [-0.25, 7, None]],
            }
            items.append({"text": f"{relax.answered} ", "output_ids": ids, "meta_info": meta})
        return items if n > 1 else items[0]

    async def _run_image_processor(state: Any, args: Any, prompt: str, media: Any) -> Any:
        relax.calls.append("process")
        await asyncio.sleep(0)
        return [1, 2, 99, 99, 3], {"pixels": [0.5]}, 0.1

    async def _encode_multimodal_inputs(media: Any) -> Any:
        relax.calls.append("encode group")
        await asyncio.sleep(0)
        return {"image_data": [f"encoded {image}" for image in media["images"]]}, 0.1

    async def async_encode_image_for_rollout_engine(image: Any) -> str:
        relax.calls.append("encode image")
        await asyncio.sleep(0)
        return f"encoded {image}"

    async def generate(args: Any, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False) -> Sample:
        assert sample.status in (Status.PENDING, Status.ABORTED)
        ids = processor_ids = [1, 2, 3]
        has_media = sample.multimodal_inputs is not None and any(sample.multimodal_inputs.values())
        if has_media:
            processor_ids, sample.multimodal_train_inputs, _ = await relax._run_image_processor(
                relax.state, args, sample.prompt, sample.multimodal_inputs
            )
        payload: dict[str, Any] = {"sampling_params": sampling_params, "return_logprob": not evaluation}
        if has_media:
            encoded, _ = await relax._encode_multimodal_inputs(sample.multimodal_inputs)
            payload.update(encoded)
        payload["input_ids"] = ids
        sample.tokens = sample.tokens or processor_ids
        sample.rollout_tokens = sample.rollout_tokens or ids
        headers = None
        if args.sglang_router_policy == "consistent_hashing":
            headers = {"X-SMG-Routing-Key": sample.session_id}
        output = await relax.post("http://router/generate", payload, headers=headers)
        new = [item[1] for item in output["meta_info"]["output_token_logprobs"]]
        sample.tokens = sample.tokens + new
        sample.rollout_tokens = sample.rollout_tokens + new
        sample.response_length += len(new)
        sample.response += output["text"]
        sample.rollout_log_probs = [item[0] for item in output["meta_info"]["output_token_logprobs"]]
        sample.status = Status.COMPLETED
        return sample

    async def batched_async_rm(args: Any, group: list[Sample]) -> list[float]:
        return [float(len(sample.response)) for sample in group]

    async def generate_and_rm_group(
        args: Any, group: list[Sample], sampling_params: dict[str, Any], evaluation: bool = False
    ) -> list[Sample]:
        relax.calls.append("stock group")
        for sample in group:
            sample.session_id = sample.session_id or f"session {sample.index}"
        await asyncio.gather(*(relax.generate(args, sample, dict(sampling_params)) for sample in group))
        for sample, reward in zip(group, await relax.batched_async_rm(args, group), strict=True):
            sample.reward = reward
        return group

    def _log_rollout_data(
        rollout_id: int, args: Any, samples: Any, rollout_extra_metrics: Any, rollout_time: float
    ) -> None:
        relax.logged.append(rollout_extra_metrics)

    def generate_rollout(
        args: Any, rollout_id: int, data_buffer: Any, data_system_client: Any, evaluation: bool = False
    ) -> Any:
        async def all_groups() -> list[list[Sample]]:
            params = {"temperature": 1.0, "max_new_tokens": 8}
            return list(
                await asyncio.gather(*(relax.generate_and_rm_group(args, group, dict(params)) for group in data_buffer))
            )

        groups = asyncio.run(all_groups())
        data_system_client.extend(groups)
        relax._log_rollout_data(rollout_id, args, groups, {"stock": 1.0}, 0.5)
        return Namespace(samples=groups, metrics={"stock": 1.0})

    return [
        post,
        _run_image_processor,
        _encode_multimodal_inputs,
        async_encode_image_for_rollout_engine,
        generate,
        batched_async_rm,
        generate_and_rm_group,
        _log_rollout_data,
        generate_rollout,
    ]


@pytest.fixture
def relax() -> Iterator[StandIn]:
    names = [MODULE.rsplit(".", depth)[0] for depth in (3, 2, 1)]
    module = StandIn()
    sys.modules.update({name: types.ModuleType(name) for name in names} | {MODULE: module})
    yield module
    for name in [*names, MODULE]:
        del sys.modules[name]


def arguments(**changes: Any) -> Namespace:
    given = dict(
        group_rm=True,
        sglang_router_policy="round_robin",
        sglang_server_concurrency=16,
        rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1,
        rollout_seed=5,
        partial_rollout=False,
        mask_offpolicy_in_partial_rollout=False,
    )
    return Namespace(**{**given, **changes})


def warns(**changes: Any) -> bool:
    args = arguments(**changes)
    return RolloutCalls.of(args, 0).warn_if_never(flag_conditions(args))


def make_groups(count: int = 2, **changes: Any) -> list[list[Sample]]:
    return [
        [Sample(group, group * N + slot, f"prompt {group}", **copy.deepcopy(changes)) for slot in range(N)]
        for group in range(count)
    ]


def run(args: Namespace, groups: list[list[Sample]]) -> tuple[Any, list[Any]]:
    queue: list[Any] = []
    return generate_rollout(args, 3, groups, queue), queue


def test_a_group_is_one_request_and_the_queue_is_filled_as_in_stock(relax: StandIn) -> None:
    output, queue = run(arguments(), make_groups())
    assert [payload["sampling_params"]["n"] for payload in relax.posted] == [N, N]
    assert "stock group" not in relax.calls
    assert queue == output.samples
    assert output.metrics["stock"] == 1.0
    assert output.metrics["rollout_patch/native_groups"] == 2
    assert relax.logged == [output.metrics]
    samples = [sample for group in output.samples for sample in group]
    assert all(sample.status is Status.COMPLETED and sample.reward for sample in samples)
    assert len({tuple(sample.tokens) for sample in samples}) == len(samples)
    assert all(sample.tokens == sample.rollout_tokens for sample in samples)


def test_media_are_processed_and_encoded_once_a_group_and_leave_no_trace(relax: StandIn) -> None:
    groups = make_groups(1, multimodal_inputs={"images": ["a", "b"], "videos": [], "audio": []})
    output, _ = run(arguments(), groups)
    assert relax.calls == ["process", "encode image", "encode image"]
    assert relax.posted[0]["image_data"] == [["encoded a", "encoded b"]]
    assert "encoded" not in repr([vars(sample) for sample in output.samples[0]])
    inputs = [sample.multimodal_train_inputs for sample in output.samples[0]]
    assert inputs == [{"pixels": [0.5]}] * N
    assert len({id(one) for one in inputs}) == N
    assert all(sample.tokens[:5] == [1, 2, 99, 99, 3] for sample in output.samples[0])
    assert all(sample.rollout_tokens[:3] == [1, 2, 3] for sample in output.samples[0])


def test_empty_media_call_neither_processor_nor_encoder(relax: StandIn) -> None:
    run(arguments(), make_groups(1, multimodal_inputs={"images": [], "videos": [], "audio": []}))
    assert relax.calls == []
    assert "image_data" not in relax.posted[0]


def test_consistent_hashing_takes_the_first_samples_key(relax: StandIn) -> None:
    output, _ = run(arguments(sglang_router_policy="consistent_hashing"), make_groups(1))
    assert relax.headers == [{"X-SMG-Routing-Key": output.samples[0][0].session_id}]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"group_rm": False}, "no_group_reward"),
        ({"use_slime_router": True}, "middleware_router"),
        ({"use_opd": True}, "on_policy_distillation"),
        ({"use_rollout_routing_replay": True}, "routing_replay"),
        ({"sglang_speculative_algorithm": "EAGLE"}, "speculative_decoding"),
        ({"custom_generate_function_path": "a.b"}, "custom_generate"),
    ],
)
def test_flags_that_rule_a_group_out_keep_the_stock_way(relax: StandIn, changes: dict[str, Any], reason: str) -> None:
    output, _ = run(arguments(**changes), make_groups(1))
    assert relax.calls.count("stock group") == 1
    assert len(relax.posted) == N
    assert output.metrics[f"rollout_patch/fallback/{reason}"] == 1
    assert warns(**changes)


def test_a_sample_with_its_own_generate_function_keeps_the_stock_way(relax: StandIn) -> None:
    groups = make_groups(1)
    groups[0][1].generate_function_path = "a.b"
    output, _ = run(arguments(), groups)
    assert output.metrics["rollout_patch/fallback/sample_generate"] == 1
    assert "stock group" in relax.calls


def test_samples_decide_their_own_conditions() -> None:
    (group,) = make_groups(1)
    assert sample_conditions(group, Status) == []
    group[1].status, group[2].loss_mask = Status.TRUNCATED, []
    assert sample_conditions(group, Status) == ["loss_mask", "finished_sample"]


def test_an_aborted_rollout_leaves_the_group_to_relax(relax: StandIn) -> None:
    relax.state.aborted = True
    run(arguments(), make_groups(1))
    assert relax.calls == ["stock group"]


def test_another_signature_is_refused(relax: StandIn) -> None:
    async def newer(args: Any, group: Any) -> Any:
        raise AssertionError("never called")

    relax.generate_and_rm_group = newer
    with pytest.raises(UnsupportedHost, match=r"takes \('args', 'group'\)"):
        run(arguments(), make_groups(1))


def test_the_launcher_adds_what_the_switch_needs_and_nothing_without_it() -> None:
    on = {"SGLANG_NATIVE_GROUP_SAMPLING": "1"}
    assert launcher_flags({}) == []
    assert launcher_flags({"SGLANG_NATIVE_GROUP_SAMPLING": "0"}) == []
    assert launcher_flags({"SGLANG_ROUTER_POLICY": "random"}) == ["--sglang-router-policy", "random"]
    assert "--group-rm" in launcher_flags(on)
    assert launcher_flags(on)[-2:] == ["--sglang-router-policy", "round_robin"]
    assert launcher_flags({**on, "SGLANG_ROUTER_POLICY": "cache_aware"})[-1] == "cache_aware"


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, False),
        ({"use_opd": True}, True),
        ({"use_opd": True, "rollout_patch_arm": "per-sample"}, False),
        ({"lora_rank": 8}, False),
        ({"lora_rank": 8, "lora_adapter_mode": True}, True),
        ({"partial_rollout": True}, False),
        ({"sglang_enable_deterministic_inference": True}, True),
        ({"sglang_enable_deterministic_inference": True, "rollout_patch_parameter_lists": True}, False),
        ({"sglang_enable_deterministic_inference": True, "rollout_patch_seed_per_slot": True}, False),
    ],
)
def test_a_warning_where_flags_leave_no_group_anything_but_per_sample(changes: dict[str, Any], warned: bool) -> None:
    assert warns(**changes) is warned


def test_the_warning_names_the_reasons_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        warns(use_opd=True, use_slime_router=True, sglang_speculative_algorithm="EAGLE3")
    (line,) = [record.getMessage() for record in caplog.records if "no group can go native" in record.getMessage()]
    assert all(reason in line for reason in ("middleware_router", "on_policy_distillation", "speculative_decoding"))
