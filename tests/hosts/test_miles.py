"""Miles' own code, unmodified, on both of its paths: the stock rollout and the patched one side by side.

Where SGLang is not installed, the few names that Miles imports from it are made up; nothing of it runs in these tests.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import two_images
from host_rollouts import PROMPTS, REPLAY, N, common_arguments, routed, rows_without, settle
from made_up_modules import made_up

from rollout_patch import ResponseRefused, UnsupportedHost
from rollout_patch.hosts import calls
from rollout_patch.hosts.miles import GroupRolloutFn, generate_rollout

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]

CHECKOUT = "MILES_CHECKOUT"
PROBING = {"rollout_patch_design": "probe", "rollout_patch_share": 1}
SEEDED = {"sglang_enable_deterministic_inference": True}
rows = partial(rows_without, {"routing_key", "session_id"})


def installed() -> bool:
    """Whether SGLang itself is there, and not only a folder of its name."""
    try:
        return importlib.util.find_spec("sglang.srt") is not None
    except ModuleNotFoundError:
        return False


@pytest.fixture(autouse=True, scope="module")
def sglang() -> Iterator[None]:
    if installed():
        yield
        return
    with made_up(["sglang"]):
        yield


@pytest.fixture(params=["class", "legacy"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def miles(host_importer: Callable[..., Any], path: str) -> Any:
    """The module that generates a group, by path."""
    names = {
        "class": "miles.rollout.inference_rollout.inference_rollout_train",
        "legacy": "miles.rollout.sglang_rollout",
    }
    return host_importer(CHECKOUT, names[path], ("httpx", "ray", "pylatexenc", "pybase64", "sglang_router"))


@pytest.fixture
def arguments(miles: Any, server: Any, byte_tokenizer: Path) -> Callable[..., Namespace]:
    def make(**changes: Any) -> Namespace:
        given = dict(
            **common_arguments(server.port, byte_tokenizer),
            sglang_router_policy=None,
            sglang_speculative_algorithm=None,
            rollout_num_gpus=1,
            rollout_num_gpus_per_engine=1,
            eval_num_gpus=0,
            eval_num_gpus_per_engine=1,
            use_miles_router=False,
            chat_template_path=None,
            rollout_max_context_len=None,
            rollout_submission_granularity="group",
            group_rm=False,
            custom_agent_function_path=None,
            rm_type=None,
            use_rollout_indexer_replay=False,
            lora_rank=0,
            lora_adapter_path=None,
            dumper_enable=False,
            dumper_inference=None,
            recompute_logprobs_via_prefill=False,
            rollout_sample_filter_path=None,
            rollout_all_samples_process_path=None,
        )
        return Namespace(**{**given, **changes})

    return make


@pytest.fixture
def rollout(miles: Any, server: Any, data_source: Any, path: str) -> Callable[..., Any]:
    """Runs one rollout, stock or patched, with fresh state; returns its output and the requests that it took."""
    from miles.rollout.base_types import RolloutFnConstructorInput, RolloutFnTrainInput
    from miles.rollout.inference_rollout.inference_rollout_common import InferenceRolloutFn
    from miles.utils import http_utils
    from miles.utils.async_utils import run
    from miles.utils.misc import SingletonMeta

    def go(args: Namespace, patched: bool, source: Any = None) -> tuple[Any, list[dict[str, Any]]]:
        SingletonMeta._instances.clear()
        http_utils._http_client = None
        http_utils.init_http_client(args)
        server.requests.clear()
        source = source or data_source(miles.Sample, PROMPTS, N)
        try:
            if path == "class":
                function = (GroupRolloutFn if patched else InferenceRolloutFn)(RolloutFnConstructorInput(args, source))
                output = run(function(RolloutFnTrainInput(rollout_id=3)))
            else:
                function = generate_rollout if patched else miles.generate_rollout
                output = function(args, 3, source, evaluation=False)
        finally:
            run(settle(http_utils._http_client))
            http_utils._http_client = None
        return output, list(server.requests)

    return go


@pytest.mark.parametrize(
    ("options", "arm"),
    [({"rollout_patch_seed_per_slot": True}, "native"), ({"rollout_patch_parameter_lists": True}, "batched")],
)
@pytest.mark.parametrize("group_rm", [False, True])
def test_seeded_samples_are_equal_field_by_field_for_a_request_a_group(
    arguments: Any, rollout: Any, options: dict[str, Any], arm: str, group_rm: bool
) -> None:
    stock, stock_requests = rollout(arguments(**SEEDED, group_rm=group_rm), patched=False)
    patched, requests = rollout(arguments(**SEEDED, group_rm=group_rm, **options), patched=True)
    assert (len(stock_requests), len(requests)) == (N * len(PROMPTS), len(PROMPTS))
    assert rows(patched) == rows(stock)
    assert len({tuple(sample["tokens"]) for sample in rows(patched)}) == N * len(PROMPTS)
    assert all(sample["reward"] is not None for sample in rows(patched))
    assert patched.metrics[f"rollout_patch/{arm}_groups"] == len(PROMPTS)


def test_one_native_body_is_the_stock_body_with_n(arguments: Any, rollout: Any) -> None:
    _, stock_requests = rollout(arguments(), patched=False)
    patched, requests = rollout(arguments(), patched=True)
    for body in requests:
        assert body["sampling_params"].pop("n") == N
        assert stock_requests.count(body) == N
    assert patched.metrics["rollout_patch/native_groups"] == len(PROMPTS)


def test_the_experts_of_each_sample_are_stocks(arguments: Any, rollout: Any) -> None:
    stock, _ = rollout(arguments(**SEEDED, **REPLAY), patched=False)
    patched, requests = rollout(arguments(**SEEDED, **REPLAY, rollout_patch_seed_per_slot=1), patched=True)
    assert all(body["return_routed_experts"] for body in requests) and len(requests) == len(PROMPTS)
    assert routed(patched) == routed(stock)
    assert len(set(map(repr, routed(patched)))) == N * len(PROMPTS)


@pytest.mark.parametrize(
    ("version", "way"), [("0.5.23", "native"), ("0.5.22", "per_sample"), ("0.5.24rc1", "per_sample")]
)
def test_an_adapter_goes_native_where_the_engine_is_known_to_unload_it_again(
    arguments: Any, rollout: Any, server: Any, version: str, way: str
) -> None:
    server.info["version"] = version
    output, requests = rollout(arguments(lora_rank=8), patched=True)
    assert output.metrics[f"rollout_patch/{way}_groups"] == len(PROMPTS)
    assert {body["lora_path"] for body in requests} == {"miles_lora"}


def test_fewer_permits_than_samples_complete(arguments: Any, rollout: Any, server: Any) -> None:
    output, requests = rollout(arguments(sglang_server_concurrency=2), patched=True)
    assert len(requests) == len(PROMPTS)
    assert server.most_in_flight == 1
    assert output.metrics["rollout_patch/permits_short"] == len(PROMPTS)


def test_two_images_are_nested(arguments: Any, rollout: Any, miles: Any, data_source: Any) -> None:
    image_module = pytest.importorskip("PIL.Image")

    def images(prompt: str) -> list[Any]:
        return [image_module.new("RGB", (4, 4), (len(prompt), shade, 0)) for shade in (1, 2)]

    _, stock_requests = rollout(arguments(), False, data_source(miles.Sample, PROMPTS, N, images))
    patched, requests = rollout(arguments(), True, data_source(miles.Sample, PROMPTS, N, images))
    for body in requests:
        assert body["sampling_params"].pop("n") == N
        (body["image_data"],) = body["image_data"]
        assert stock_requests.count(body) == N
    assert "base64" not in repr(rows(patched))


def test_two_images_are_asked_and_answered_as_the_real_engine_was_seen_to(
    miles: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    pytest.importorskip("PIL.Image")
    row = two_images.exchange("two-images-native-nested")
    (urls,) = row["request"]["image_data"]
    server.refuse = two_images.answer
    source = data_source(
        miles.Sample, [row["request"]["text"]], N, lambda prompt: [two_images.image(url) for url in urls]
    )
    output, (body,) = rollout(arguments(rollout_batch_size=1, over_sampling_batch_size=1), True, source)
    assert row["request"]["sampling_params"]["n"] == N
    two_images.assert_asked_and_answered(body, output, row)


def test_the_processor_runs_as_often_as_in_stock(
    arguments: Any, rollout: Any, miles: Any, path: str, data_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_module = pytest.importorskip("PIL.Image")
    processed: list[str] = []

    def processor(text: str, **media: Any) -> dict[str, Any]:
        processed.append(text)
        return {"input_ids": [[ord(letter) for letter in text] + [7] * 5], "pixel_values": len(text)}

    common = importlib.import_module("miles.rollout.inference_rollout.inference_rollout_common")
    monkeypatch.setattr(common if path == "class" else miles, "load_processor", lambda *_, **__: processor)
    made = []
    for patched in (False, True):
        source = data_source(miles.Sample, PROMPTS, N, lambda prompt: [image_module.new("RGB", (4, 4))])
        output, _ = rollout(arguments(), patched, source)
        made.append(
            [(row["tokens"][: -row["response_length"]], row["multimodal_train_inputs"]) for row in rows(output)]
        )
        assert sorted(processed) == sorted(PROMPTS * N)
        processed.clear()
    assert made[0] == made[1]


def test_a_dynamic_filter_drops_groups_as_in_stock(miles: Any, arguments: Any, rollout: Any, data_source: Any) -> None:
    prompts = [*PROMPTS, "seven"]
    filtered = {"dynamic_sampling_filter_path": "host_test_reward.keep", "over_sampling_batch_size": 2}
    output, requests = rollout(arguments(**filtered), True, data_source(miles.Sample, prompts, N))
    assert sorted({group[0].prompt for group in output.samples}) == sorted(set(prompts) - {"two"})
    assert [len(group) for group in output.samples] == [N] * 3
    assert output.metrics["rollout_patch/native_groups"] == len(requests) == 4


def test_evaluation_is_stocks_own(
    miles: Any, arguments: Any, path: str, data_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from miles.rollout.base_types import RolloutFnConstructorInput, RolloutFnEvalInput
    from miles.rollout.inference_rollout.inference_rollout_common import InferenceRolloutFn
    from miles.utils.async_utils import run
    from miles.utils.misc import SingletonMeta

    SingletonMeta._instances.clear()
    own, seen = miles.generate_and_rm_group, []
    source = data_source(miles.Sample, PROMPTS, N)
    if path == "class":

        async def evaluate(self: Any, input: Any) -> str:
            seen.append(miles.generate_and_rm_group)
            return "stock's"

        monkeypatch.setattr(InferenceRolloutFn, "__call__", evaluate)
        function = GroupRolloutFn(RolloutFnConstructorInput(arguments(), source))
        assert run(function(RolloutFnEvalInput(rollout_id=3))) == "stock's"
    else:
        monkeypatch.setattr(miles, "generate_rollout", lambda *_, **__: seen.append(miles.generate_and_rm_group))
        generate_rollout(arguments(), 3, source, evaluation=True)
    assert seen == [own]


@pytest.mark.parametrize("policy", ["consistent_hashing", "manual"])
def test_a_group_goes_by_its_first_samples_routing_key(arguments: Any, rollout: Any, server: Any, policy: str) -> None:
    output, requests = rollout(arguments(sglang_router_policy=policy), patched=True)
    keys = {group[0].routing_key for group in output.samples}
    assert len(requests) == output.metrics["rollout_patch/native_groups"] == len(PROMPTS)
    assert {headers["X-SMG-Routing-Key"] for headers in server.headers[-len(PROMPTS) :]} == keys
    assert len({sample.routing_key for group in output.samples for sample in group}) == N * len(PROMPTS)


def test_bad_gateways_are_retried_by_the_group(
    arguments: Any, rollout: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SECONDS_BETWEEN", 0.01)
    left = [1, 1]
    server.refuse = lambda body: (502, "bad gateway") if left and left.pop() else None
    output, requests = rollout(arguments(), patched=True)
    assert len(requests) == len(PROMPTS) + 2
    assert output.metrics["rollout_patch/retries"] == 2


def test_partial_outputs_of_an_abort_come_back(
    arguments: Any, rollout: Any, server: Any, miles: Any, data_source: Any
) -> None:
    args = arguments(partial_rollout=True, rollout_batch_size=1, over_sampling_batch_size=3)
    source = data_source(miles.Sample, PROMPTS, N)
    server.holds = lambda body: len(body["input_ids"]) > 5
    output, _ = rollout(args, True, source)
    assert [sample.prompt for sample in output.samples[0]] == ["two"] * N
    kept = [sample for group in source.given_back for sample in group]
    assert len(kept) == 2 * N
    assert all(sample.status == miles.Sample.Status.ABORTED for sample in kept)
    assert all(sample.response_length == len(sample.rollout_log_probs) == 1 for sample in kept)
    assert all(sample.metadata["start_rollout_id"] == 3 and sample.reward is None for sample in kept)


def test_a_group_aborted_half_in_the_queue_keeps_what_came_and_goes_on(
    arguments: Any, rollout: Any, server: Any, miles: Any, data_source: Any
) -> None:
    source = data_source(miles.Sample, PROMPTS, N)
    server.holds = lambda body: len(body["input_ids"]) > 5
    server.queued_slots = frozenset({1, 3})
    rollout(arguments(partial_rollout=True, rollout_batch_size=1, over_sampling_batch_size=3), True, source)
    kept = source.given_back
    assert [[sample.response_length for sample in group] for group in kept] == [[1, 0, 1, 0]] * 2
    assert all(sample.status == miles.Sample.Status.ABORTED for group in kept for sample in group)

    server.holds = lambda body: False
    resumed, _ = rollout(arguments(partial_rollout=True, rollout_batch_size=2), True, source)
    for sample in (sample for group in resumed.samples for sample in group):
        assert sample.status != miles.Sample.Status.ABORTED
        assert len(sample.tokens) == len(sample.prompt) + sample.response_length
        assert 0 < sample.response_length == len(sample.rollout_log_probs) <= 8


def test_sample_granularity_counts_every_sample_down(
    arguments: Any, rollout: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path == "legacy":
        pytest.skip("the legacy path knows groups alone")
    from miles.rollout import submission_scheduler

    made: list[Any] = []
    make = submission_scheduler.SampleBackfillSubmission.__init__
    monkeypatch.setattr(
        submission_scheduler.SampleBackfillSubmission,
        "__init__",
        lambda self, *given, **named: (made.append(self), make(self, *given, **named))[1],
    )
    for options in ({}, PROBING):
        made.clear()
        output, _ = rollout(arguments(rollout_submission_granularity="sample", **options), patched=True)
        assert output.metrics["rollout_patch/groups"] == len(PROMPTS)
        assert output.metrics.get("rollout_patch/compared", 0) == (len(PROMPTS) if options else 0)
        assert [scheduler.samples_in_flight for scheduler in made] == [0]


def test_a_probe_asks_in_both_arms_and_hands_over_one(
    arguments: Any, rollout: Any, miles: Any, data_source: Any, tmp_path: Path
) -> None:
    source = data_source(miles.Sample, PROMPTS, N)
    own = {id(sample) for group in source._groups for sample in group}
    output, requests = rollout(arguments(**PROBING, rollout_patch_record=str(tmp_path)), True, source)
    assert len(requests) == (1 + N) * len(PROMPTS)
    assert {id(sample) for group in output.samples for sample in group} == own
    assert [sample.index for group in output.samples for sample in group] == list(range(N * len(PROMPTS)))
    assert output.metrics["rollout_patch/groups"] == output.metrics["rollout_patch/compared"] == len(PROMPTS)
    trained, compared = (
        [json.loads(line) for line in (folder / "rollout.samples.jsonl").read_text().splitlines()]
        for folder in (tmp_path, tmp_path / "compared")
    )
    handed = {(sample.group_index, sample.response, sample.reward) for group in output.samples for sample in group}
    assert {(row["group_index"], row["text"], row["reward"]) for row in trained} == handed
    arms = {(row["group_index"], row["arm"]) for row in trained + compared}
    assert arms == {(group, arm) for group in range(len(PROMPTS)) for arm in ("native", "per-sample")}
    assert len(trained) == len(compared) == N * len(PROMPTS)


@pytest.mark.parametrize("options", [{}, PROBING])
def test_the_dashboard_sees_each_sample_begin_and_end(arguments: Any, rollout: Any, options: dict[str, Any]) -> None:
    from miles.utils.lifecycle import TrajectoryLifecycle

    class Sink:
        def __init__(self) -> None:
            self.seen: list[tuple[str, int]] = []

        def __getattr__(self, name: str) -> Callable[[Any], None]:
            return lambda sample: self.seen.append((name, sample.index))

    seen = []
    for patched in (False, True):
        sink, made = Sink(), TrajectoryLifecycle.__init__
        TrajectoryLifecycle.__init__ = lambda self, sink=sink: setattr(self, "sink", sink)
        try:
            rollout(arguments(**options), patched)
        finally:
            TrajectoryLifecycle.__init__ = made
        seen.append(sorted(sink.seen))
    assert seen[0] == seen[1]
    if not seen[0]:
        pytest.skip("this version's path tells no lifecycle")
    assert len(seen[0]) == 3 * N * len(PROMPTS)


def test_another_body_is_refused_by_name_or_allowed_and_said(
    miles: Any, path: str, arguments: Any, rollout: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Miles' retry loop would drop the group and fetch another for ever."""
    from miles.rollout.inference_rollout import inference_rollout_common as common

    module = miles if path == "legacy" else common
    stock = module.generate_and_rm

    async def newer(first: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> Any:
        sample.metadata["newer"] = True
        return await stock(first, sample, sampling_params, evaluation)

    monkeypatch.setattr(module, "generate_and_rm", newer)
    with pytest.raises(UnsupportedHost) as refused:
        rollout(arguments(), patched=True)
    assert f"{module.__name__}.generate_and_rm" in str(refused.value)
    assert "31f1ca961" in str(refused.value)
    allowed, _ = rollout(arguments(rollout_patch_allow_unknown_host=1, rollout_patch_record=str(tmp_path)), True)
    assert allowed.metrics["rollout_patch/unknown_host"] == 1
    assert all(sample.metadata["newer"] for group in allowed.samples for sample in group)
    lines = [json.loads(line) for line in (tmp_path / "rollout.groups.jsonl").read_text().splitlines()]
    assert all("generate_and_rm" in line["unknown_host"] for line in lines) and len(lines) == len(PROMPTS)


@pytest.mark.parametrize("planted", ["no group_index", "mixed versions, strict"])
def test_an_error_of_the_plug_in_ends_the_rollout_and_is_no_group_to_be_dropped(
    miles: Any, arguments: Any, rollout: Any, server: Any, data_source: Any, planted: str
) -> None:
    prompts = [f"{number}" for number in range(40)]
    source = data_source(miles.Sample, prompts, N)
    if planted == "no group_index":
        options, error = {"rollout_patch_design": "switchback"}, UnsupportedHost
        for sample in (sample for group in source._groups for sample in group):
            sample.group_index = None
    else:
        options, error = {"rollout_patch_strict": True}, ResponseRefused
        server.changes = lambda item: item["meta_info"].update(weight_version=len(item["text"]))
    with pytest.raises(error):
        rollout(arguments(**options), True, source)
    assert len(source._groups) >= len(prompts) - 2 * len(PROMPTS)
    assert len(server.requests) <= len(PROMPTS)


def test_what_stock_trains_on_is_trained_on_and_counted(miles: Any, arguments: Any, rollout: Any, server: Any) -> None:
    versions = itertools.count()

    def doubtful(item: dict[str, Any]) -> None:
        item["meta_info"]["weight_version"] = next(versions)
        item["meta_info"]["output_token_logprobs"][0][0] = 0.01
        del item["meta_info"]["id"]

    server.changes = doubtful
    stock, _ = rollout(arguments(), patched=False)
    server._asked.clear()
    server._number = 0
    patched, _ = rollout(arguments(), patched=True)
    names = ("mixed_weight_versions", "weight_version_type", "missing_id", "positive_logprob")
    counts = {name: patched.metrics[f"rollout_patch/doubts/{name}"] for name in names}
    assert counts == dict.fromkeys(names, len(PROMPTS))
    left_out = {"weight_versions"}
    kept = [
        [{name: value for name, value in row.items() if name not in left_out} for row in rows(one)]
        for one in (stock, patched)
    ]
    assert [len(one) for one in kept] == [N * len(PROMPTS)] * 2
    assert all(row["weight_versions"] for row in rows(patched))
    assert sorted(row["response"] for row in kept[0]) == sorted(row["response"] for row in kept[1])


@pytest.mark.timeout(600)
def test_through_an_engine_stock_and_patch_make_equal_samples(
    miles: Any, arguments: Any, rollout: Any, server: Any, data_source: Any, policy: Path, engine: Any
) -> None:
    from parity.trainer.tasks import get_task

    kind, server.upstream = engine
    seeded = kind == "embedded"
    prompts = get_task("arithmetic").prompts(seed=0, step=0, count=3)
    changes = {"hf_checkpoint": str(policy), **(SEEDED if seeded else {})}
    sources = [data_source(miles.Sample, prompts, N) for _ in range(2)]
    stock, stock_requests = rollout(arguments(**changes), False, sources[0])
    patched, requests = rollout(arguments(**changes, rollout_patch_seed_per_slot=seeded), True, sources[1])
    assert (len(stock_requests), len(requests)) == (3 * N, 3)
    drawn = {"tokens", "response", "response_length", "rollout_log_probs", "status", "reward"}
    left_out = {"prefix_cache_info"} | (set() if seeded else drawn)
    for one, other in zip(rows(patched), rows(stock), strict=True):
        assert {name: one[name] for name in one if name not in left_out} == {
            name: other[name] for name in other if name not in left_out
        }
        assert len(one["rollout_log_probs"]) == one["response_length"] > 0
    assert len({tuple(row["tokens"]) for row in rows(patched)}) > 3
