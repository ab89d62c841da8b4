"""Relax's own code, unmodified: its stock rollout and the patched one side by side, into the same TransferQueue.

What its rollout imports and never uses in these tests is made up: the trainer's side, SGLang, and the trackers.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from host_rollouts import PROMPTS, REPLAY, N, common_arguments, routed, rows_without, settle
from made_up_modules import made_up

from rollout_patch import UnsupportedHost
from rollout_patch.hosts import calls
from rollout_patch.hosts.relax import generate_rollout, launcher_flags

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]

CHECKOUT = "RELAX_CHECKOUT"
MADE_UP = ("sglang", "transfer_queue", "math_verify", "relax.backends", "relax.utils.tracking_utils")
NEEDS = ("httpx", "ray", "pybase64", "sglang_router", "imageio", "soundfile", "tensordict")
SEEDED = {"sglang_enable_deterministic_inference": True}
rows = partial(rows_without, {"session_id"})


@pytest.fixture(autouse=True, scope="module")
def unused_modules() -> Iterator[None]:
    with made_up(MADE_UP):
        yield


@pytest.fixture
def relax(host_importer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Relax's rollout module; what it asks Ray for is there at once."""
    module = host_importer(CHECKOUT, "relax.engine.rollout.sglang_rollout", NEEDS)
    monkeypatch.setattr(module, "ray", Namespace(get=lambda reference: reference))
    return module


@pytest.fixture
def logged(relax: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What Relax hands to its trackers."""
    trackers = importlib.import_module("relax.distributed.ray.rollout").tracking_utils
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(trackers, "log", lambda args, metrics, step_key: lines.append(metrics), raising=False)
    return lines


@pytest.fixture
def arguments(relax: Any, server: Any, byte_tokenizer: Path) -> Callable[..., Namespace]:
    def make(**changes: Any) -> Namespace:
        given = dict(
            **common_arguments(server.port, byte_tokenizer),
            sglang_router_policy="round_robin",
            sglang_speculative_algorithm=None,
            rollout_num_gpus=1,
            rollout_num_gpus_per_engine=1,
            use_slime_router=False,
            use_audio_in_video=False,
            global_batch_size=N * len(PROMPTS),
            num_iters_per_train_update=1,
            fully_async=False,
            colocate=True,
            group_rm=True,
            custom_reward_post_process_path=None,
            custom_rollout_log_function_path=None,
            reward_key=None,
            log_reward_category=None,
            advantage_estimator="grpo",
            rewards_normalization=True,
            grpo_std_normalization=True,
            multimodal_keys=None,
            debug_rollout_only=False,
            debug_train_only=False,
            load_debug_rollout_data=None,
            save_debug_rollout_data=None,
            wandb_always_use_train_step=False,
        )
        return Namespace(**{**given, **changes})

    return make


class Queue:
    """The TransferQueue's client: keeps each batch of training tensors as plain lists."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, dict[str, Any]]] = []

    async def async_put(self, data: Any, partition_id: str) -> None:
        columns = {name: [value.tolist() for value in column.unbind()] for name, column in data.items()}
        self.batches.append((partition_id, columns))

    @property
    def columns(self) -> dict[str, list[Any]]:
        names = self.batches[0][1]
        return {name: [value for _, batch in self.batches for value in batch[name]] for name in names}


class Actor:
    """A data source behind Ray: each method is called by `remote`."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.get_samples = Namespace(remote=lambda count, fully_async=False: source.get_samples(count))
        self.add_samples = Namespace(remote=source.add_samples)


@pytest.fixture
def rollout(relax: Any, server: Any, data_source: Any) -> Callable[..., Any]:
    """Runs one rollout with fresh state; returns its output, the queue, and the requests that it took."""
    http_utils = importlib.import_module("relax.utils.http_utils")
    run = importlib.import_module("relax.utils.async_utils").run
    singletons = importlib.import_module("relax.utils.misc").SingletonMeta

    def go(function: Callable[..., Any], args: Namespace, source: Any = None) -> tuple[Any, Queue, list[Any]]:
        singletons._instances.clear()
        http_utils._http_client = None
        http_utils.init_http_client(args)
        server.requests.clear()
        queue = Queue()
        source = source or data_source(relax.Sample, PROMPTS, N)
        try:
            output = function(args, 3, Actor(source), queue, evaluation=False)
        finally:
            run(settle(http_utils._http_client))
            http_utils._http_client = None
        return output, queue, list(server.requests)

    return go


@pytest.mark.parametrize(
    ("options", "arm"),
    [({"rollout_patch_seed_per_slot": True}, "native"), ({"rollout_patch_parameter_lists": True}, "batched")],
)
@pytest.mark.parametrize("group_rm", [True, False])
def test_seeded_samples_and_training_tensors_are_equal_for_a_request_a_group(
    relax: Any, arguments: Any, rollout: Any, options: dict[str, Any], arm: str, group_rm: bool
) -> None:
    changes = {**SEEDED, "group_rm": group_rm}
    stock, stock_queue, stock_requests = rollout(relax.generate_rollout, arguments(**changes))
    patched, queue, requests = rollout(generate_rollout, arguments(**changes, **options))
    assert (len(stock_requests), len(requests)) == (N * len(PROMPTS), len(PROMPTS))

    def by_index(output: Any) -> list[dict[str, Any]]:
        kept = sorted(rows(output), key=lambda row: row["index"])
        return [{**row, "metadata": {**row["metadata"], "_timing": None}} for row in kept]

    assert by_index(patched) == by_index(stock)
    assert [sorted(row["metadata"]["_timing"]) for row in rows(patched)] == [["generate", "post_generate"]] * 12
    assert queue.columns == stock_queue.columns
    assert [partition for partition, _ in queue.batches] == ["train_3"]
    assert len({tuple(tokens) for tokens in queue.columns["tokens"]}) == N * len(PROMPTS)
    assert patched.metrics[f"rollout_patch/{arm}_groups"] == len(PROMPTS)


def test_the_experts_of_each_sample_are_stocks(relax: Any, arguments: Any, rollout: Any) -> None:
    stock, _, _ = rollout(relax.generate_rollout, arguments(**SEEDED, **REPLAY))
    patched, _, requests = rollout(generate_rollout, arguments(**SEEDED, **REPLAY, rollout_patch_seed_per_slot=1))
    assert all(body["return_routed_experts"] for body in requests) and len(requests) == len(PROMPTS)
    assert routed(patched) == routed(stock)
    assert len(set(map(repr, routed(patched)))) == N * len(PROMPTS)


def test_a_fully_asynchronous_rollout_is_equal_for_a_request_a_group(relax: Any, arguments: Any, rollout: Any) -> None:
    changes = {**SEEDED, "fully_async": True, "colocate": False, "group_rm": False}
    _, stock_queue, _ = rollout(relax.generate_rollout, arguments(**changes))
    patched, queue, requests = rollout(generate_rollout, arguments(**changes, rollout_patch_seed_per_slot=True))
    assert len(requests) == patched.metrics["rollout_patch/native_groups"] == len(PROMPTS)
    made = [sorted(zip(*one.columns.values(), strict=True), key=repr) for one in (queue, stock_queue)]
    assert made[0] == made[1] and len(made[0]) == N * len(PROMPTS)
    assert queue.columns.keys() == stock_queue.columns.keys()


@pytest.mark.parametrize("group_rm", [False, True])
def test_a_teacher_is_asked_for_each_sample_as_in_stock(
    relax: Any, arguments: Any, rollout: Any, monkeypatch: pytest.MonkeyPatch, group_rm: bool
) -> None:
    distillation = importlib.import_module("relax.engine.rollout.on_policy_distillation")
    asked: list[tuple[int, int]] = []

    async def fetch(args: Any, sample: Any, session: Any = None) -> None:
        asked.append((sample.index, sample.response_length))

    monkeypatch.setattr(distillation, "create_teacher_client_session", lambda args: nullcontext_async())
    monkeypatch.setattr(distillation, "fetch_teacher_log_probs", fetch)
    changes = {**SEEDED, "group_rm": group_rm, "use_opd": True, "opd_type": "sglang"}
    seen = []
    for function, options in ((relax.generate_rollout, {}), (generate_rollout, {"rollout_patch_seed_per_slot": 1})):
        asked.clear()
        rollout(function, arguments(**changes, **options))
        seen.append(sorted(asked))
    assert seen[0] == seen[1]
    assert len(seen[1]) == N * len(PROMPTS) and all(length for _, length in seen[1])


@asynccontextmanager
async def nullcontext_async() -> AsyncIterator[None]:
    yield


def test_a_group_goes_by_its_first_samples_routing_key(relax: Any, arguments: Any, rollout: Any, server: Any) -> None:
    output, _, requests = rollout(generate_rollout, arguments(sglang_router_policy="consistent_hashing"))
    keys = {group[0].session_id for group in output.samples}
    assert len(requests) == output.metrics["rollout_patch/native_groups"] == len(PROMPTS)
    assert {headers["X-SMG-Routing-Key"] for headers in server.headers[-len(PROMPTS) :]} == keys


def test_one_native_body_is_the_stock_body_with_n(relax: Any, arguments: Any, rollout: Any) -> None:
    _, _, stock_requests = rollout(relax.generate_rollout, arguments())
    patched, _, requests = rollout(generate_rollout, arguments())
    for body in requests:
        assert body["sampling_params"].pop("n") == N
        assert stock_requests.count(body) == N
    lists = [id(tokens) for group in patched.samples for one in group for tokens in (one.tokens, one.rollout_tokens)]
    assert len(set(lists)) == len(lists)


def test_the_counts_reach_relaxs_trackers_with_its_own_metrics(
    relax: Any, arguments: Any, rollout: Any, logged: list[dict[str, Any]]
) -> None:
    rollout(relax.generate_rollout, arguments())
    rollout(generate_rollout, arguments())
    stock, patched = logged
    counts = {name: value for name, value in patched.items() if name.startswith("rollout_patch/")}
    assert patched.keys() - counts.keys() == stock.keys()
    assert counts["rollout_patch/native_groups"] == counts["rollout_patch/requests"] == len(PROMPTS)
    assert patched["perf_detail/rollout/generate_time/mean"] >= 0.005


class Processor:
    """A processor that makes three tokens of each image; image tokens the engine never sees."""

    calls = 0

    def __call__(self, text: str, images: list[Any], **options: Any) -> dict[str, Any]:
        Processor.calls += 1
        return {"input_ids": [[*text.encode(), *[7] * 3 * len(images)]], "pixel_values": [float(len(images))]}


def with_images(prompt: str) -> list[Any]:
    image = pytest.importorskip("PIL.Image")
    return [image.new("RGB", (4, 4), (len(prompt), shade, 0)) for shade in (1, 2)]


def image_source(relax: Any, data_source: Any) -> Any:
    source = data_source(relax.Sample, PROMPTS, N, with_images)
    for group in source._groups:
        for sample in group:
            sample.multimodal_inputs |= {"videos": [], "audio": []}
    return source


def test_two_images_are_processed_and_encoded_once_a_group(
    relax: Any, arguments: Any, rollout: Any, data_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[Any] = []
    encode = relax.async_encode_image_for_rollout_engine
    monkeypatch.setattr(
        relax, "async_encode_image_for_rollout_engine", lambda image: (encoded.append(image), encode(image))[1]
    )
    monkeypatch.setattr(relax, "load_processor", lambda *args, **kwargs: Processor())
    monkeypatch.setattr(Processor, "calls", 0)
    sources = [image_source(relax, data_source) for _ in range(2)]
    stock, _, stock_requests = rollout(relax.generate_rollout, arguments(), sources[0])
    assert (Processor.calls, len(encoded)) == (N * len(PROMPTS), 2 * N * len(PROMPTS))
    Processor.calls = 0
    encoded.clear()
    patched, _, requests = rollout(generate_rollout, arguments(), sources[1])
    assert (Processor.calls, len(encoded)) == (len(PROMPTS), 2 * len(PROMPTS))
    for body in requests:
        assert body["sampling_params"].pop("n") == N
        (body["image_data"],) = body["image_data"]
        assert stock_requests.count(body) == N
    assert patched.metrics["rollout_patch/native_groups"] == len(PROMPTS)
    made = [
        {
            sample.index: (
                sample.tokens[: -sample.response_length],
                sample.rollout_tokens[: -sample.response_length],
                sample.multimodal_train_inputs,
                set(sample.metadata["_timing"]),
            )
            for group in output.samples
            for sample in group
        }
        for output in (stock, patched)
    ]
    assert made[0] == made[1]
    assert made[1][0][0] == [*PROMPTS[0].encode(), *[7] * 6]
    assert made[1][0][3] == {"generate", "post_generate", "image_processor", "mm_encode"}
    fields = [set(sample.to_dict()) for output in (stock, patched) for group in output.samples for sample in group]
    assert all(own == fields[0] for own in fields)


def test_video_and_audio_are_nested_beside_images(
    relax: Any, arguments: Any, rollout: Any, data_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    encoded: list[Any] = []

    async def encode_video(video: Any) -> str:
        encoded.append(video)
        return f"video {video.sum()}"

    def with_all() -> Any:
        source = image_source(relax, data_source)
        for group in source._groups:
            for sample in group:
                sample.multimodal_inputs["videos"] = [torch.full((2, 3, 4, 4), len(sample.prompt), dtype=torch.uint8)]
                sample.multimodal_inputs["audio"] = [numpy.full(16, len(sample.prompt) / 100, numpy.float32)]
        return source

    monkeypatch.setattr(relax, "async_encode_video_tensor_for_rollout_engine", encode_video)
    monkeypatch.setattr(relax, "load_processor", lambda *args, **kwargs: Processor())
    _, _, stock_requests = rollout(relax.generate_rollout, arguments(), with_all())
    encoded.clear()
    _, _, requests = rollout(generate_rollout, arguments(), with_all())
    assert len(encoded) == len(requests) == len(PROMPTS)
    for body in requests:
        assert body["sampling_params"].pop("n") == N
        for kind in ("image_data", "video_data", "audio_data"):
            (body[kind],) = body[kind]
        assert stock_requests.count(body) == N


def test_fewer_permits_than_samples_complete(arguments: Any, rollout: Any, server: Any) -> None:
    output, _, requests = rollout(generate_rollout, arguments(sglang_server_concurrency=2))
    assert len(requests) == len(PROMPTS)
    assert server.most_in_flight == 1
    assert output.metrics["rollout_patch/permits_short"] == len(PROMPTS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"custom_generate_function_path": "host_test_reward.custom_generate"}, "custom_generate"),
        (SEEDED, "deterministic_inference"),
    ],
)
def test_what_falls_back_is_what_stock_makes(
    relax: Any, arguments: Any, rollout: Any, changes: dict[str, Any], reason: str
) -> None:
    _, stock_queue, stock_requests = rollout(relax.generate_rollout, arguments(**changes))
    patched, queue, requests = rollout(generate_rollout, arguments(**changes))
    assert patched.metrics[f"rollout_patch/fallback/{reason}"] == len(PROMPTS)
    assert in_any_order(requests) == in_any_order(stock_requests)
    assert queue.columns.keys() == stock_queue.columns.keys()
    assert len(queue.columns["tokens"]) == N * len(PROMPTS)


def in_any_order(requests: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(body, sort_keys=True) for body in requests)


def test_a_dynamic_filter_drops_groups_as_in_stock(relax: Any, arguments: Any, rollout: Any, data_source: Any) -> None:
    prompts = [*PROMPTS, "seven"]
    filtered = {"dynamic_sampling_filter_path": "host_test_reward.keep", "over_sampling_batch_size": 2}
    output, queue, requests = rollout(generate_rollout, arguments(**filtered), data_source(relax.Sample, prompts, N))
    assert sorted({group[0].prompt for group in output.samples}) == sorted(set(prompts) - {"two"})
    assert [len(group) for group in output.samples] == [N] * 3
    assert len(queue.columns["tokens"]) == 3 * N
    assert output.metrics["rollout_patch/native_groups"] == len(requests) == 4


def test_bad_gateways_are_retried_by_the_group(
    arguments: Any, rollout: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SECONDS_BETWEEN", 0.01)
    left = [1, 1]
    server.refuse = lambda body: (502, "bad gateway") if left and left.pop() else None
    output, queue, requests = rollout(generate_rollout, arguments())
    assert len(requests) == len(PROMPTS) + 2
    assert output.metrics["rollout_patch/retries"] == 2
    assert len(queue.columns["tokens"]) == N * len(PROMPTS)


def test_an_engine_that_goes_on_failing_is_relaxs_error(
    arguments: Any, rollout: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SECONDS_BETWEEN", 0.001)
    server.refuse = lambda body: (502, "bad gateway")
    with pytest.raises(Exception, match="bad gateway"):
        rollout(generate_rollout, arguments())


def test_partial_outputs_of_an_abort_come_back_to_the_buffer(
    relax: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    args = arguments(partial_rollout=True, rollout_batch_size=1, over_sampling_batch_size=3)
    source = data_source(relax.Sample, PROMPTS, N)
    kept: list[Any] = []
    source.add_samples = lambda groups: kept.extend(sample for group in groups for sample in group)
    server.holds = lambda body: len(body["input_ids"]) > 5
    output, _, _ = rollout(generate_rollout, args, source)
    assert output.metrics["rollout_patch/native_groups"] == 3
    assert [sample.prompt for sample in output.samples[0]] == ["two"] * N
    assert len(kept) == 2 * N
    assert all(sample.status == relax.Sample.Status.ABORTED and sample.abort_count == 1 for sample in kept)
    assert all(sample.response_length == len(sample.rollout_log_probs) == 1 for sample in kept)
    assert all(sample.reward is None for sample in kept)


def test_a_group_aborted_half_in_the_queue_keeps_what_came_and_goes_on(
    relax: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    source = data_source(relax.Sample, PROMPTS, N)
    kept: list[Any] = []
    source.add_samples = kept.extend
    server.holds = lambda body: len(body["input_ids"]) > 5
    server.queued_slots = frozenset({1, 3})
    args = arguments(partial_rollout=True, rollout_batch_size=1, over_sampling_batch_size=3)
    rollout(generate_rollout, args, source)
    assert [[sample.response_length for sample in group] for group in kept] == [[1, 0, 1, 0]] * 2
    assert all(sample.status == relax.Sample.Status.ABORTED for group in kept for sample in group)

    server.holds = lambda body: False
    source = data_source(relax.Sample, [], N)
    source.given_back = kept
    args = arguments(partial_rollout=True, rollout_batch_size=2, over_sampling_batch_size=2)
    resumed, queue, _ = rollout(generate_rollout, args, source)
    assert len(queue.columns["tokens"]) == 2 * N
    for sample in (sample for group in resumed.samples for sample in group):
        assert sample.status != relax.Sample.Status.ABORTED
        assert len(sample.tokens) == len(sample.prompt) + sample.response_length
        assert 0 < sample.response_length == len(sample.rollout_log_probs) <= 8


def test_tokens_of_an_earlier_rollout_are_masked_where_asked(
    relax: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    masked = {"partial_rollout": True, "mask_offpolicy_in_partial_rollout": True}
    kept: list[Any] = []
    source = data_source(relax.Sample, PROMPTS, N)
    source.add_samples = kept.extend
    server.holds = lambda body: len(body["input_ids"]) > 5
    rollout(generate_rollout, arguments(**masked, rollout_batch_size=1, over_sampling_batch_size=3), source)

    server.holds = lambda body: False
    source = data_source(relax.Sample, [], N)
    source.given_back = kept
    args = arguments(**masked, rollout_batch_size=2, over_sampling_batch_size=2)
    resumed, _, _ = rollout(generate_rollout, args, source)
    for sample in (sample for group in resumed.samples for sample in group):
        assert sample.loss_mask == [0] + [1] * (sample.response_length - 1)


def test_a_group_aborted_before_any_output_is_marked_and_counted_as_stock_does(
    relax: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    source = data_source(relax.Sample, ["two", *PROMPTS[::2]], N)
    kept: list[Any] = []
    source.add_samples = kept.extend
    server.holds = lambda body: len(body["input_ids"]) > 5
    scarce = {"rollout_batch_size": 1, "over_sampling_batch_size": 3, "sglang_server_concurrency": N}
    output, _, _ = rollout(generate_rollout, arguments(partial_rollout=True, **scarce), source)
    empty = [sample for group in kept for sample in group if not sample.response]
    assert output.metrics["rollout_patch/aborted_groups"] * N == len(empty) > 0
    assert {(sample.status, sample.abort_count, sample.reward) for sample in empty} == {
        (relax.Sample.Status.ABORTED, 1, None)
    }


def test_a_probe_fills_the_queue_with_one_arm_only(arguments: Any, rollout: Any, tmp_path: Path) -> None:
    probing = {"rollout_patch_design": "probe", "rollout_patch_share": 1, "rollout_patch_record": str(tmp_path)}
    output, queue, requests = rollout(generate_rollout, arguments(**probing))
    assert len(requests) == (1 + N) * len(PROMPTS)
    assert sorted(queue.columns["sample_indices"]) == list(range(N * len(PROMPTS)))
    trained, compared = (
        [json.loads(line) for line in (folder / "rollout.samples.jsonl").read_text().splitlines()]
        for folder in (tmp_path, tmp_path / "compared")
    )
    handed = {tuple(sample.tokens[-sample.response_length :]) for group in output.samples for sample in group}
    assert {tuple(row["output_ids"]) for row in trained} == handed
    assert len(trained) == len(compared) == N * len(PROMPTS)


@pytest.fixture
def evaluate(relax: Any, arguments: Any, rollout: Any, tmp_path: Path) -> Callable[..., Any]:
    """Evaluates two prompts, 3 samples each; returns Relax's results and the requests that they took."""
    dataset = tmp_path / "evaluation.jsonl"
    dataset.write_text("".join(json.dumps({"prompt": prompt, "label": "7"}) + "\n" for prompt in PROMPTS[:2]))
    config = importlib.import_module("relax.utils.training.eval_config").EvalDatasetConfig
    given = {
        "eval_datasets": [
            config(
                name="sums",
                path=str(dataset),
                n_samples_per_eval_prompt=3,
                temperature=1.0,
                top_p=1.0,
                top_k=-1,
                max_response_len=8,
                input_key="prompt",
                label_key="label",
            )
        ],
        "eval_max_prompt_len": None,
        "eval_reward_key": None,
        "apply_chat_template": False,
        "apply_chat_template_kwargs": None,
        "system_prompt": None,
    }

    def go(function: Callable[..., Any], **changes: Any) -> tuple[Any, list[Any]]:
        def evaluating(args: Any, number: int, source: Any, queue: Any, evaluation: bool) -> Any:
            return function(args, number, source, queue, evaluation=True)

        output, _, requests = rollout(evaluating, arguments(**given, **changes))
        return output, requests

    return go


def test_evaluation_is_stocks_unless_asked_and_then_goes_batched(relax: Any, evaluate: Any, tmp_path: Path) -> None:
    stock, stock_requests = evaluate(relax.generate_rollout)
    unasked, requests = evaluate(generate_rollout)
    assert in_any_order(requests) == in_any_order(stock_requests)
    assert unasked.metrics is stock.metrics is None
    asked, batched = evaluate(
        generate_rollout, rollout_patch_evaluation=True, rollout_patch_record=str(tmp_path / "record")
    )
    assert len(stock_requests) == 6
    assert [len(body["input_ids"]) for body in batched] == [3, 3]
    assert asked.metrics["eval/rollout_patch/fallback/evaluation"] == 2
    assert asked.metrics["eval/rollout_patch/batched_groups"] == 2
    assert not (tmp_path / "record").exists()
    results = asked.data["sums"]
    assert [sample.index for sample in results["samples"]] == list(range(6))
    assert all(reward is not None for reward in results["rewards"])


def test_what_the_recorder_and_relax_wrote_keeps_the_contract(arguments: Any, rollout: Any, tmp_path: Path) -> None:
    from parity.commands.check import check_paths
    from parity.evidence.contract.rules import Rules

    folders = {"rollout_patch_record": str(tmp_path / "record"), "rollout_result_dir": str(tmp_path / "results")}
    rollout(generate_rollout, arguments(rollout_patch_design="switchback", **folders))
    results = tmp_path / "results" / "train"
    older = "prompt_token_count" not in (results / "3.jsonl").read_text()  # before June 2026, without counts
    for folder in (tmp_path / "record", *(() if older else (results,))):
        result = check_paths([folder], Rules(group_size=N))
        assert [finding.message for finding in result.findings if finding.fails] == []
        assert result.counts["samples"] == N * len(PROMPTS)
        assert result.verdict.value == "PASS"


def test_relaxs_own_parsers_take_what_the_launcher_adds(relax: Any) -> None:
    of_relax = importlib.import_module("relax.utils.arguments")
    path = Path(of_relax.__file__).parents[1] / "backends" / "sglang" / "arguments.py"
    spec = importlib.util.spec_from_file_location("sglang_arguments_of_relax", path)
    of_sglang = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(of_sglang)
    parser = ArgumentParser(conflict_handler="resolve")
    of_relax.get_slime_extra_args_provider()(parser)
    of_sglang.add_sglang_router_arguments(parser)

    required = ["--rollout-batch-size", "1"]  # by versions before June 2026
    off, unknown = parser.parse_known_args([*launcher_flags({}), *required])
    assert (off.group_rm, off.sglang_router_policy, unknown) == (False, None, [])
    assert off.rollout_function_path == "relax.engine.rollout.sglang_rollout.generate_rollout"
    on, unknown = parser.parse_known_args([*launcher_flags({"SGLANG_NATIVE_GROUP_SAMPLING": "1"}), *required])
    assert (on.group_rm, on.sglang_router_policy, unknown) == (False, "round_robin", [])
    assert importlib.import_module("relax.utils.misc").load_function(on.rollout_function_path) is generate_rollout


def test_another_body_is_refused_by_name_or_allowed_and_said(
    relax: Any, arguments: Any, rollout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = relax.generate_and_rm

    async def newer(args: Any, sample: Any, sampling_params: Any, *, request_model: Any = None, **named: Any) -> Any:
        return await stock(args, sample, sampling_params, **named)

    monkeypatch.setattr(relax, "generate_and_rm", newer)
    with pytest.raises(UnsupportedHost) as refused:
        rollout(generate_rollout, arguments())
    assert f"{relax.__name__}.generate_and_rm" in str(refused.value) and "2b223c6" in str(refused.value)
    output, _, requests = rollout(generate_rollout, arguments(rollout_patch_allow_unknown_host=1))
    assert len(requests) == output.metrics["rollout_patch/native_groups"] == len(PROMPTS)
    assert output.metrics["rollout_patch/unknown_host"] == 1


def test_relaxs_functions_are_its_own_again_afterwards(relax: Any, arguments: Any, rollout: Any) -> None:
    own = dict(vars(relax))
    rollout(generate_rollout, arguments())
    assert dict(vars(relax)) == own


@pytest.mark.timeout(600)
def test_through_an_engine_stock_and_patch_make_equal_samples(
    relax: Any, arguments: Any, rollout: Any, server: Any, data_source: Any, policy: Path, engine: Any
) -> None:
    from parity.trainer.tasks import get_task

    kind, server.upstream = engine
    seeded = kind == "embedded"
    prompts = get_task("arithmetic").prompts(seed=0, step=0, count=3)
    changes = {"hf_checkpoint": str(policy), **(SEEDED if seeded else {})}
    sources = [data_source(relax.Sample, prompts, N) for _ in range(2)]
    stock, stock_queue, stock_requests = rollout(relax.generate_rollout, arguments(**changes), sources[0])
    args = arguments(**changes, rollout_patch_seed_per_slot=seeded)
    patched, queue, requests = rollout(generate_rollout, args, sources[1])
    assert (len(stock_requests), len(requests)) == (3 * N, 3)
    if seeded:
        assert queue.columns == stock_queue.columns
    drawn = {"tokens", "rollout_tokens", "response", "response_length", "rollout_log_probs", "status", "reward"}
    left_out = {"prefix_cache_info", "metadata", "loss_mask"} | (set() if seeded else drawn)
    pairs = zip(*(sorted(rows(output), key=lambda row: row["index"]) for output in (patched, stock)), strict=True)
    for one, other in pairs:
        assert {name: one[name] for name in one if name not in left_out} == {
            name: other[name] for name in other if name not in left_out
        }
        assert len(one["rollout_log_probs"]) == one["response_length"] > 0
    assert len({tuple(tokens) for tokens in queue.columns["tokens"]}) > 3
