"""slime's own code, unmodified: its stock rollout and the patched one side by side."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import two_images
from host_rollouts import PROMPTS, REPLAY, N, as_queued, common_arguments, routed, rows_without, settle

from rollout_patch import PatchError, UnsupportedHost, probe
from rollout_patch.hosts import calls
from rollout_patch.hosts.engines import Engines
from rollout_patch.hosts.options import Options
from rollout_patch.hosts.slime import generate_rollout

pytestmark = [pytest.mark.hosts, pytest.mark.filterwarnings("ignore")]

CHECKOUT = "SLIME_CHECKOUT"


@pytest.fixture
def slime(host_importer: Callable[..., Any]) -> Any:
    return host_importer(CHECKOUT, "slime.rollout.sglang_rollout", ("httpx", "ray", "pylatexenc"))


@pytest.fixture
def arguments(slime: Any, server: Any, byte_tokenizer: Path) -> Callable[..., Namespace]:
    def make(**changes: Any) -> Namespace:
        given = dict(
            **common_arguments(server.port, byte_tokenizer),
            rollout_num_engines=1,
            rollout_num_gpus=1,
            rollout_num_gpus_per_engine=1,
            sglang_speculative_algorithm=None,  # which older versions look up
            use_slime_router=False,  # likewise
            sglang_router_policy=None,  # likewise
            group_rm=False,
            rm_type=None,
            rollout_sample_filter_path=None,
            rollout_all_samples_process_path=None,
        )
        return Namespace(**{**given, **changes})

    return make


@pytest.fixture
def rollout(slime: Any, server: Any, data_source: Any) -> Callable[..., Any]:
    """Runs one rollout with fresh state, and returns its output and the requests that it took."""
    from slime.utils import http_utils
    from slime.utils.async_utils import run
    from slime.utils.misc import SingletonMeta

    def go(function: Callable[..., Any], args: Namespace, source: Any = None) -> tuple[Any, list[dict[str, Any]]]:
        SingletonMeta._instances.clear()
        http_utils._http_client = None
        http_utils.init_http_client(args)
        server.requests.clear()
        source = source or data_source(slime.Sample, PROMPTS, N)
        try:
            output = function(args, 3, source, evaluation=False)
        finally:
            run(settle(http_utils._http_client))
            http_utils._http_client = None
        return output, list(server.requests)

    return go


SEEDED = {"sglang_enable_deterministic_inference": True}
rows = partial(rows_without, {"session_id", "trace"})


@pytest.mark.parametrize(
    ("options", "arm"),
    [
        ({"rollout_patch_seed_per_slot": True}, "native"),
        ({"rollout_patch_parameter_lists": True}, "batched"),
        ({"rollout_patch_arm": "batched", "rollout_patch_parameter_lists": True}, "batched"),
    ],
)
@pytest.mark.parametrize("group_rm", [False, True])
def test_seeded_samples_are_equal_field_by_field_for_a_request_a_group(
    slime: Any, arguments: Any, rollout: Any, options: dict[str, Any], arm: str, group_rm: bool
) -> None:
    stock, stock_requests = rollout(slime.generate_rollout, arguments(**SEEDED, group_rm=group_rm))
    patched, requests = rollout(generate_rollout, arguments(**SEEDED, group_rm=group_rm, **options))
    assert (len(stock_requests), len(requests)) == (N * len(PROMPTS), len(PROMPTS))
    assert rows(patched) == rows(stock)
    assert len({tuple(sample["tokens"]) for sample in rows(patched)}) == N * len(PROMPTS)
    assert all(sample["reward"] is not None for sample in rows(patched))
    assert patched.metrics[f"rollout_patch/{arm}_groups"] == len(PROMPTS)
    assert patched.metrics["rollout_patch/requests"] == len(PROMPTS)


def test_one_native_body_is_the_stock_body_with_n(slime: Any, arguments: Any, rollout: Any) -> None:
    _, stock_requests = rollout(slime.generate_rollout, arguments())
    patched, requests = rollout(generate_rollout, arguments())
    for body in requests:
        assert body["sampling_params"].pop("n") == N
        assert stock_requests.count(body) == N
    assert patched.metrics["rollout_patch/native_groups"] == len(PROMPTS)
    lists = [id(sample.tokens) for group in patched.samples for sample in group]
    assert len(set(lists)) == len(lists)


def spans_of(sample: Any) -> list[tuple[Any, ...]]:
    """Each event of a sample's trace in order: its type, name, the span that it is in, and its attributes' names."""
    names = {event["span_id"]: event["name"] for event in sample.trace["events"] if "span_id" in event}
    return [
        (event["type"], event["name"], names.get(event.get("parent_span_id")), sorted(event.get("attrs") or {}))
        for event in sample.trace["events"]
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"custom_generate_function_path": "host_test_reward.custom_generate"},
        {"group_rm": True},
        {"rollout_sample_hook_path": ["host_test_reward.hook"]},
        {**SEEDED, "rollout_patch_parameter_lists": True},
    ],
)
def test_traces_are_stocks_span_by_span(
    slime: Any, arguments: Any, rollout: Any, server: Any, changes: dict[str, Any]
) -> None:
    traces = []
    for function in (slime.generate_rollout, generate_rollout):
        output, _ = rollout(function, arguments(**changes))
        traces.append([spans_of(sample) for group in output.samples for sample in group])
        for event in (one for group in output.samples for sample in group for one in sample.trace["events"]):
            if event["name"] == "sglang_generate" and event["type"] == "span_end":
                start = next(
                    one["ts"]
                    for one in (e for g in output.samples for s in g for e in s.trace["events"])
                    if one.get("span_id") == event["span_id"] and one["type"] == "span_start"
                )
                assert any(start <= at <= event["ts"] for at in server.received)  # it holds the request
    assert traces[0] == traces[1]
    assert all(len(trace) > 4 for trace in traces[1])


def test_traces_of_aborted_groups_are_stocks(
    slime: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    kept = []
    for function in (slime.generate_rollout, generate_rollout):
        source = data_source(slime.Sample, PROMPTS, N)
        server._aborting_until = 0.0
        server.holds = lambda body: len(body["input_ids"]) > 5
        changes = {"partial_rollout": True, "rollout_batch_size": 1, "over_sampling_batch_size": 3}
        rollout(function, arguments(**changes), source)
        # without attributes: a group that the abort overtakes on its way to the engine has none of the engine's numbers
        kept.append([[event[:3] for event in spans_of(sample)] for group in source.given_back for sample in group])
    assert kept[0] == kept[1]
    started = [event for trace in kept[1] for event in trace if event[0] == "span_start"]
    ended = [event for trace in kept[1] for event in trace if event[0] == "span_end"]
    assert len(started) == len(ended) > 0


def test_the_experts_of_each_sample_are_stocks(slime: Any, arguments: Any, rollout: Any) -> None:
    stock, _ = rollout(slime.generate_rollout, arguments(**SEEDED, **REPLAY))
    patched, requests = rollout(generate_rollout, arguments(**SEEDED, **REPLAY, rollout_patch_seed_per_slot=1))
    assert all(body["return_routed_experts"] for body in requests) and len(requests) == len(PROMPTS)
    assert routed(patched) == routed(stock)
    assert len(set(map(repr, routed(patched)))) == N * len(PROMPTS)


def test_fewer_permits_than_samples_complete(arguments: Any, rollout: Any, server: Any) -> None:
    output, requests = rollout(generate_rollout, arguments(sglang_server_concurrency=2))
    assert len(requests) == len(PROMPTS)
    assert server.most_in_flight == 1
    assert output.metrics["rollout_patch/permits_short"] == len(PROMPTS)


def test_hooks_run_once_a_sample(arguments: Any, rollout: Any) -> None:
    output, _ = rollout(generate_rollout, arguments(rollout_sample_hook_path=["host_test_reward.hook"]))
    assert [sample.metadata["hooked"] for group in output.samples for sample in group] == [1] * N * len(PROMPTS)


def test_a_dynamic_filter_drops_groups_as_in_stock(slime: Any, arguments: Any, rollout: Any, data_source: Any) -> None:
    prompts = [*PROMPTS, "seven"]
    filtered = {"dynamic_sampling_filter_path": "host_test_reward.keep", "over_sampling_batch_size": 2}
    output, requests = rollout(generate_rollout, arguments(**filtered), data_source(slime.Sample, prompts, N))
    assert sorted({group[0].prompt for group in output.samples}) == sorted(set(prompts) - {"two"})
    assert [len(group) for group in output.samples] == [N] * 3
    assert output.metrics["rollout_patch/native_groups"] == len(requests) == 4


def test_evaluation_is_stocks_own_and_refused_by_groups(
    slime: Any, arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def evaluate(*given: Any, **named: Any) -> str:
        seen.append((given[1:], named, slime.generate_and_rm_group))
        return "stock's"

    own = slime.generate_and_rm_group
    monkeypatch.setattr(slime, "generate_rollout", evaluate)
    assert generate_rollout(arguments(), 3, "source", evaluation=True) == "stock's"
    assert seen == [((3, "source"), {"evaluation": True}, own)]
    with pytest.raises(UnsupportedHost, match="sample by sample"):
        generate_rollout(arguments(rollout_patch_evaluation=True), 3, "source")


def test_a_custom_generate_function_keeps_the_stock_way_and_is_counted(arguments: Any, rollout: Any) -> None:
    output, requests = rollout(
        generate_rollout, arguments(custom_generate_function_path="host_test_reward.custom_generate")
    )
    assert requests == []
    assert output.metrics["rollout_patch/fallback/custom_generate"] == len(PROMPTS)
    assert output.metrics["rollout_patch/per_sample_groups"] == len(PROMPTS)


def test_seeds_that_no_single_request_can_carry_go_per_sample_and_equal_stock(
    slime: Any, arguments: Any, rollout: Any
) -> None:
    stock, _ = rollout(slime.generate_rollout, arguments(**SEEDED))
    patched, requests = rollout(generate_rollout, arguments(**SEEDED))
    assert len(requests) == N * len(PROMPTS)
    assert rows(patched) == rows(stock)
    assert patched.metrics["rollout_patch/fallback/deterministic_inference"] == len(PROMPTS)


def test_an_engine_that_refuses_n_is_asked_per_sample(arguments: Any, rollout: Any, server: Any) -> None:
    refusal = {"error": {"message": "parallel sampling is not supported"}}
    server.refuse = lambda body: (400, refusal) if len(body.get("input_ids", [])) and _is_many(body) else None
    output, requests = rollout(generate_rollout, arguments())
    assert len(requests) == (2 + N) * len(PROMPTS)
    assert output.metrics["rollout_patch/fallback/refused_native"] == len(PROMPTS)
    assert output.metrics["rollout_patch/fallback/refused_batched"] == len(PROMPTS)
    assert all(sample.response for group in output.samples for sample in group)


def test_a_router_that_drops_n_costs_the_groups_of_one_rollout_a_request_each(
    arguments: Any, rollout: Any, server: Any
) -> None:
    def dropped(body: dict[str, Any]) -> tuple[int, Any] | None:
        return (200, server._answer(body, False)) if body["sampling_params"].pop("n", None) else None

    server.refuse = dropped
    output, requests = rollout(generate_rollout, arguments())
    assert len(requests) == 2 * len(PROMPTS)
    assert output.metrics["rollout_patch/fallback/refused_native"] == len(PROMPTS)
    assert output.metrics["rollout_patch/batched_groups"] == len(PROMPTS)
    tokens = [tuple(sample.tokens) for group in output.samples for sample in group]
    assert len(set(tokens)) == len(tokens)


def test_a_group_that_the_engine_aborts_by_itself_is_what_stock_makes(
    slime: Any, arguments: Any, rollout: Any, server: Any
) -> None:
    def queued(body: dict[str, Any]) -> tuple[int, Any]:
        answer = server._answer(body, True)
        for item in answer if isinstance(answer, list) else [answer]:
            as_queued(item)
        return 200, answer

    server.refuse = queued
    stock, _ = rollout(slime.generate_rollout, arguments())
    patched, requests = rollout(generate_rollout, arguments())
    assert len(requests) == len(PROMPTS)
    assert rows(patched) == rows(stock)
    assert {sample["status"] for sample in rows(patched)} == {"aborted"}


def _is_many(body: dict[str, Any]) -> bool:
    return isinstance(body["input_ids"][0], list) or body["sampling_params"].get("n", 1) > 1


def test_bad_gateways_are_retried_by_the_group(
    arguments: Any, rollout: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "SECONDS_BETWEEN", 0.01)
    left = [1, 1]
    server.refuse = lambda body: (502, "bad gateway") if left and left.pop() else None
    output, requests = rollout(generate_rollout, arguments())
    assert len(requests) == len(PROMPTS) + 2
    assert output.metrics["rollout_patch/retries"] == 2
    assert {len(group) for group in output.samples} == {N}


def test_two_images_are_nested_and_encoded_once_a_group(
    slime: Any, arguments: Any, rollout: Any, data_source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    image_module = pytest.importorskip("PIL.Image")

    def images(prompt: str) -> list[Any]:
        return [image_module.new("RGB", (4, 4), (len(prompt), shade, 0)) for shade in (1, 2)]

    encoded: list[Any] = []
    encode = slime.encode_image_for_rollout_engine
    monkeypatch.setattr(
        slime, "encode_image_for_rollout_engine", lambda image: (encoded.append(image), encode(image))[1]
    )
    _, stock_requests = rollout(slime.generate_rollout, arguments(), data_source(slime.Sample, PROMPTS, N, images))
    assert len(encoded) == 2 * N * len(PROMPTS)
    encoded.clear()
    patched, requests = rollout(generate_rollout, arguments(), data_source(slime.Sample, PROMPTS, N, images))
    assert len(encoded) == 2 * len(PROMPTS)
    for body in requests:
        assert body["sampling_params"].pop("n") == N
        (body["image_data"],) = body["image_data"]
        assert stock_requests.count(body) == N
    assert "base64" not in repr([sample.to_dict() for group in patched.samples for sample in group])
    assert patched.metrics["rollout_patch/native_groups"] == len(PROMPTS)


def test_two_images_are_asked_and_answered_as_the_real_engine_was_seen_to(
    slime: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    pytest.importorskip("PIL.Image")
    row = two_images.exchange("two-images-native-nested")
    (urls,) = row["request"]["image_data"]
    server.refuse = two_images.answer
    source = data_source(
        slime.Sample, [row["request"]["text"]], N, lambda prompt: [two_images.image(url) for url in urls]
    )
    output, (body,) = rollout(generate_rollout, arguments(rollout_batch_size=1, over_sampling_batch_size=1), source)
    assert body["text"] == row["request"]["text"]
    assert row["request"]["sampling_params"]["n"] == N
    two_images.assert_asked_and_answered(body, output, row)


def test_partial_outputs_of_an_abort_come_back_and_are_resumed(
    slime: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    args = arguments(partial_rollout=True, rollout_batch_size=1, over_sampling_batch_size=3)
    source = data_source(slime.Sample, PROMPTS, N)
    server.holds = lambda body: len(body["input_ids"]) > 5
    output, _ = rollout(generate_rollout, args, source)
    assert [sample.prompt for sample in output.samples[0]] == ["two"] * N
    kept = [sample for group in source.given_back for sample in group]
    assert len(kept) == 2 * N
    assert all(sample.status == slime.Sample.Status.ABORTED for sample in kept)
    assert all(sample.response_length == len(sample.rollout_log_probs) == 1 for sample in kept)
    assert all(sample.metadata["start_rollout_id"] == 3 for sample in kept)
    assert all(sample.reward is None for sample in kept)

    server.holds = lambda body: False
    resumed, requests = rollout(generate_rollout, arguments(partial_rollout=True, rollout_batch_size=2), source)
    assert resumed.metrics["rollout_patch/fallback/resumed"] == 2
    assert len(requests) == 2 * N or resumed.metrics["rollout_patch/batched_groups"] == 2
    masks = []
    for group in resumed.samples:
        for sample in group:
            assert sample.status != slime.Sample.Status.ABORTED
            assert len(sample.tokens) == len(sample.prompt) + sample.response_length
            assert sample.response_length == len(sample.rollout_log_probs)
            masks.append(sample.loss_mask and len(sample.loss_mask) - sample.response_length)
    stock, _ = rollout(slime.generate_rollout, arguments())
    masked = stock.samples[0][0].loss_mask is not None  # versions before mid-2026 leave it to the trainer
    assert masks == [0 if masked else None] * len(masks) and masks


def test_tokens_of_an_earlier_rollout_are_masked_where_asked(
    slime: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    masked = {"partial_rollout": True, "mask_offpolicy_in_partial_rollout": True}
    source = data_source(slime.Sample, PROMPTS, N)
    server.holds = lambda body: len(body["input_ids"]) > 5
    rollout(generate_rollout, arguments(**masked, rollout_batch_size=1, over_sampling_batch_size=3), source)
    server.holds = lambda body: False
    resumed, _ = rollout(generate_rollout, arguments(**masked, rollout_batch_size=2), source)
    for sample in (sample for group in resumed.samples for sample in group):
        assert sample.loss_mask == [0] + [1] * (sample.response_length - 1)


def test_a_group_aborted_half_in_the_queue_keeps_what_came_and_goes_on(
    slime: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    source = data_source(slime.Sample, PROMPTS, N)
    server.holds = lambda body: len(body["input_ids"]) > 5
    server.queued_slots = frozenset({1, 3})
    rollout(generate_rollout, arguments(partial_rollout=True, rollout_batch_size=1, over_sampling_batch_size=3), source)
    kept = source.given_back
    assert [[sample.response_length for sample in group] for group in kept] == [[1, 0, 1, 0]] * 2
    assert all(sample.status == slime.Sample.Status.ABORTED for group in kept for sample in group)

    server.holds = lambda body: False
    resumed, _ = rollout(generate_rollout, arguments(partial_rollout=True, rollout_batch_size=2), source)
    budget = 8 if '"max_new_tokens"] -= sample.response_length' in inspect.getsource(slime.generate) else 9
    for sample in (sample for group in resumed.samples for sample in group):
        assert sample.status != slime.Sample.Status.ABORTED
        assert len(sample.tokens) == len(sample.prompt) + sample.response_length
        assert 0 < sample.response_length == len(sample.rollout_log_probs) == len(sample.loss_mask) <= budget


def test_a_group_aborted_before_any_output_is_marked_aborted_and_goes_native_again(
    slime: Any, arguments: Any, rollout: Any, server: Any, data_source: Any
) -> None:
    source = data_source(slime.Sample, ["two", *PROMPTS[::2]], N)
    server.holds = lambda body: len(body["input_ids"]) > 5
    scarce = {"partial_rollout": True, "rollout_batch_size": 1, "sglang_server_concurrency": N}
    rollout(generate_rollout, arguments(**scarce, over_sampling_batch_size=3), source)
    empty = [sample for group in source.given_back for sample in group if not sample.response]
    assert {(sample.status, sample.response_length, sample.reward) for sample in empty} == {
        (slime.Sample.Status.ABORTED, 0, None)
    }
    unsent = {sample.group_index for sample in empty}
    server.holds = lambda body: False
    resumed, _ = rollout(generate_rollout, arguments(partial_rollout=True, rollout_batch_size=2), source)
    assert resumed.metrics["rollout_patch/native_groups"] == len(unsent)
    for sample in (sample for group in resumed.samples for sample in group):
        assert len(sample.tokens) == len(sample.prompt) + sample.response_length


def test_exchanges_samples_and_assignments_are_recorded(arguments: Any, rollout: Any, tmp_path: Path) -> None:
    from parity.contract_checks import check_accounting, check_exchanges, check_samples
    from parity.evidence.contract.rules import Rules
    from parity.records.exchanges import read_exchanges
    from parity.records.samples import Rollout, Sample

    options = {"rollout_patch_record": str(tmp_path), "rollout_patch_design": "switchback"}
    options_of = Options(design="switchback")
    output, requests = rollout(generate_rollout, arguments(**options))
    rules = Rules(group_size=N)
    exchanges = list(read_exchanges(tmp_path / "rollout.exchanges.jsonl"))
    lines = (tmp_path / "rollout.samples.jsonl").read_text().splitlines()
    assert len(lines) == N * len(PROMPTS)
    samples = Rollout.from_samples(Sample(**json.loads(line)) for line in lines)
    findings = [
        *check_exchanges(exchanges, rules),
        *check_samples(samples, rules),
        *check_accounting(samples, exchanges),
    ]
    assert [finding.message for finding in findings if finding.fails] == []
    drawn = {sample.group_index: sample.extra["assignment"] for sample in samples.samples()}
    asked = [options_of.assign(seed=11, rollout_id=3, group_index=group) for group in range(len(PROMPTS))]
    assert [drawn[group]["arm"] for group in sorted(drawn)] == [one.arms[0] for one in asked]
    assert drawn[1] == {
        "policy": "switchback",
        "seed": 11,
        "unit": "3/1",
        "arm": asked[1].arms[0],
        "probability": 0.5,
        "trained": True,
    }
    groups = (tmp_path / "rollout.groups.jsonl").read_text().splitlines()
    assert len(groups) == len(PROMPTS)
    assert all('"design":"switchback"' in line for line in groups)
    assert len(exchanges) == len(requests) == output.metrics["rollout_patch/requests"]


def probing(record: Path, seed: int = 11) -> dict[str, Any]:
    """Every group in both arms."""
    return {
        "rollout_patch_design": "probe",
        "rollout_patch_share": 1,
        "rollout_patch_record": str(record),
        "rollout_seed": seed,
    }


def seed_of(*first_arms: str) -> int:
    """A seed with which the groups of rollout 3 are trained on in these arms."""
    for seed in range(1000):
        drawn = [
            probe("per-sample", "native", share=1, seed=seed, rollout_id=3, group_index=group).arms[0]
            for group in range(len(first_arms))
        ]
        if drawn == list(first_arms):
            return seed
    raise AssertionError(first_arms)


def recorded(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rollout.samples.jsonl").read_text().splitlines()]


def test_a_probe_asks_in_both_arms_and_hands_over_one(
    slime: Any, arguments: Any, rollout: Any, data_source: Any, tmp_path: Path
) -> None:
    from parity.commands.check import check_paths
    from parity.commands.watch import Watch, follow, watch
    from parity.evidence.contract.rules import Rules
    from parity.evidence.sampling.trajectory import GroupBounds

    arms = ["native", "per-sample", "native"]
    hooked = {"rollout_sample_hook_path": ["host_test_reward.hook"]}
    source = data_source(slime.Sample, PROMPTS, N)
    own = {id(sample) for group in source._groups for sample in group}
    output, requests = rollout(generate_rollout, arguments(**probing(tmp_path, seed_of(*arms)), **hooked), source)

    assert len(requests) == (1 + N) * len(PROMPTS)
    assert {id(sample) for group in output.samples for sample in group} == own
    assert [sample.index for group in output.samples for sample in group] == list(range(N * len(PROMPTS)))
    assert [sample.metadata["hooked"] for group in output.samples for sample in group] == [1] * N * len(PROMPTS)
    assert output.metrics["rollout_patch/native_groups"] == 2
    assert output.metrics["rollout_patch/per_sample_groups"] == 1
    assert output.metrics["rollout_patch/compared"] == len(PROMPTS)
    assert output.metrics["rollout_patch/compared_requests"] == N + 1 + N
    assert output.metrics["rollout_patch/compared_lost"] == 0

    trained, compared = recorded(tmp_path), recorded(tmp_path / "compared")
    texts = {(row["group_index"], row["index"]): row["text"] for row in trained}
    assert texts == {
        (sample.group_index, sample.index % N): sample.response for group in output.samples for sample in group
    }
    for rows_of_arm, is_trained in ((trained, True), (compared, False)):
        assert len({(row["group_index"], row["index"]) for row in rows_of_arm}) == len(rows_of_arm) == N * len(PROMPTS)
        assert all(row["extra"]["assignment"]["trained"] is is_trained for row in rows_of_arm)
        assert all(row["extra"]["assignment"]["probability"] == 0.5 for row in rows_of_arm)
        assert all(row["extra"]["assignment"]["arm"] == row["arm"] for row in rows_of_arm)
        assert all(isinstance(row["reward"], float) for row in rows_of_arm)
    assert {(row["group_index"], row["arm"]) for row in trained} == set(enumerate(arms))
    assert {(row["group_index"], row["arm"]) for row in trained + compared} == {
        (group, arm) for group in range(len(PROMPTS)) for arm in ("native", "per-sample")
    }
    result = check_paths([tmp_path], Rules(group_size=N))
    assert [finding.message for finding in result.findings if finding.fails] == []
    assert result.counts["samples"] == 2 * N * len(PROMPTS)
    *_, seen = watch(follow(tmp_path), Watch(GroupBounds((0.0, 1.0), None)), once=True)
    assert (seen.failing, seen.undrawn, seen.arms) == ((), 0, ("per-sample", "native"))
    assert seen.trajectories["probe"].groups == len(PROMPTS)


def test_a_comparison_that_fails_takes_nothing_from_the_group(
    arguments: Any, rollout: Any, server: Any, tmp_path: Path
) -> None:
    server.refuse = lambda body: None if _is_many(body) else (400, {"error": {"message": "planted"}})
    output, _ = rollout(generate_rollout, arguments(**probing(tmp_path, seed_of(*["native"] * len(PROMPTS)))))
    assert all(sample.reward is not None and sample.response for group in output.samples for sample in group)
    assert output.metrics["rollout_patch/compared_lost"] == len(PROMPTS)
    assert not (tmp_path / "compared" / "rollout.samples.jsonl").exists()

    with pytest.raises(Exception, match="planted"):
        rollout(generate_rollout, arguments(**probing(tmp_path, seed_of(*["per-sample"] * len(PROMPTS)))))


def test_a_group_that_flags_send_the_hosts_way_is_not_probed(arguments: Any, rollout: Any, tmp_path: Path) -> None:
    given = {**probing(tmp_path), "custom_generate_function_path": "host_test_reward.custom_generate"}
    output, requests = rollout(generate_rollout, arguments(**given))
    assert requests == []
    assert output.metrics["rollout_patch/compared"] == 0
    assert output.metrics["rollout_patch/per_sample_groups"] == len(PROMPTS)


def test_a_failed_group_is_the_hosts_error_as_in_stock(arguments: Any, rollout: Any, server: Any) -> None:
    server.refuse = lambda body: (400, {"error": {"message": "input is too long"}})
    with pytest.raises(Exception, match="too long"):
        rollout(generate_rollout, arguments())


def test_another_body_is_refused_by_name_or_allowed_and_said(
    slime: Any, arguments: Any, rollout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def post(client: Any, url: str, payload: Any, max_retries: int = 60, headers: Any = None) -> Any:
        return await stock(client, url, payload, max_retries, headers)

    from slime.utils import http_utils

    stock = http_utils._post
    monkeypatch.setattr(http_utils, "_post", post)
    with pytest.raises(UnsupportedHost) as refused:
        rollout(generate_rollout, arguments())
    assert all(word in str(refused.value) for word in ("slime.utils.http_utils._post", "624b824a8", "a6272da0d"))
    output, _ = rollout(generate_rollout, arguments(rollout_patch_allow_unknown_host=True))
    assert output.metrics["rollout_patch/unknown_host"] == 1
    assert output.metrics["rollout_patch/native_groups"] == len(PROMPTS)


@pytest.mark.parametrize(("name", "allowed"), [("generate_and_rm", False), ("GenerateState", True)])
def test_a_name_that_is_missing_is_refused_whatever_is_allowed(
    slime: Any, arguments: Any, rollout: Any, monkeypatch: pytest.MonkeyPatch, name: str, allowed: bool
) -> None:
    args = arguments(rollout_patch_allow_unknown_host=allowed)
    monkeypatch.delattr(slime, name)
    with pytest.raises(UnsupportedHost, match=f"has no slime.rollout.sglang_rollout.{name};"):
        generate_rollout(args, 3, "source")


def test_a_rollout_that_no_longer_calls_the_plug_in_is_an_error(
    slime: Any, arguments: Any, rollout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock_group = slime.generate_and_rm_group

    def submit(self: Any, samples: list[Any]) -> None:
        for group in samples:
            work = stock_group(self.args, group, sampling_params=self.sampling_params.copy(), evaluation=False)
            self.pendings.add(asyncio.create_task(work))
        self.remaining_batch_size += len(samples)

    monkeypatch.setattr(slime.GenerateState, "submit_generate_tasks", submit)
    with pytest.raises(UnsupportedHost, match="no group came by"):
        rollout(generate_rollout, arguments())


def test_a_step_that_the_host_adds_is_run(
    slime: Any, arguments: Any, rollout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = slime.generate_and_rm

    async def generate_and_rm(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> Any:
        done = await stock(args, sample, sampling_params, evaluation=evaluation)
        done.metadata["another step"] = done.response_length
        return done

    monkeypatch.setattr(slime, "generate_and_rm", generate_and_rm)
    output, requests = rollout(generate_rollout, arguments(rollout_patch_allow_unknown_host=True))
    assert len(requests) == len(PROMPTS)
    assert all(one.metadata["another step"] == one.response_length for group in output.samples for one in group)


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        ({"disaggregation_mode": "prefill"}, "disaggregated_prefill"),
        ({"speculative_algorithm": "NGRAM"}, "speculative_decoding"),
    ],
)
def test_what_the_engine_says_of_itself_rules_groups_out(
    arguments: Any, rollout: Any, server: Any, info: dict[str, Any], reason: str
) -> None:
    server.info = info
    output, requests = rollout(generate_rollout, arguments())
    assert len(requests) == N * len(PROMPTS)
    assert output.metrics[f"rollout_patch/fallback/{reason}"] == len(PROMPTS)


def test_an_engine_that_is_deterministic_without_a_flag_of_the_host_gets_no_n(
    arguments: Any, rollout: Any, server: Any
) -> None:
    server.info = {"enable_deterministic_inference": True}
    output, _ = rollout(generate_rollout, arguments())
    assert output.metrics["rollout_patch/fallback/deterministic_inference"] == len(PROMPTS)
    assert output.metrics["rollout_patch/native_groups"] == 0


def test_engines_of_a_file_that_say_nothing_are_not_asked_for_groups(
    arguments: Any, rollout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "ask_engines", _asked_in_vain)
    for given, native in (({}, len(PROMPTS)), ({"sglang_config": "engines.yaml"}, 0)):
        output, _ = rollout(generate_rollout, arguments(**given))
        assert output.metrics["rollout_patch/native_groups"] == native
        assert output.metrics.get("rollout_patch/fallback/engine_unknown", 0) == (0 if native else len(PROMPTS))


async def _asked_in_vain(router: str, get: Any) -> Engines:
    return Engines({}, (router,))


@pytest.mark.parametrize("wrong", [-1, 1])
def test_group_rewards_of_another_number_are_named(
    arguments: Any, rollout: Any, reward_module: Any, wrong: int
) -> None:
    right = reward_module.reward
    name = f"reward_of_another_number_{wrong + 1}"

    async def reward(args: Any, samples: Any, **named: Any) -> Any:
        rewards = await right(args, samples, **named)
        return rewards[:-1] if wrong < 0 else [*rewards, 1.0]

    setattr(reward_module, name, reward)
    group_reward = {"group_rm": True, "custom_rm_path": f"host_test_reward.{name}"}
    output, _ = rollout(generate_rollout, arguments(**group_reward))
    assert output.metrics["rollout_patch/doubts/reward_count"] == len(PROMPTS)
    missing = [sample.reward is None for group in output.samples for sample in group]
    assert sum(missing) == (len(PROMPTS) if wrong < 0 else 0)
    with pytest.raises(PatchError, match=f"returned {N + wrong} rewards for {N} samples"):
        rollout(generate_rollout, arguments(**group_reward, rollout_patch_strict=1))


def test_text_that_is_missing_is_stocks_error(slime: Any, arguments: Any, rollout: Any, server: Any) -> None:
    server.changes = lambda item: item.pop("text")
    for function in (slime.generate_rollout, generate_rollout):
        with pytest.raises(KeyError, match="text"):
            rollout(function, arguments())


def test_equal_answers_of_a_group_are_counted(arguments: Any, rollout: Any, server: Any) -> None:
    def alike(item: dict[str, Any]) -> None:
        item.update(text="a", output_ids=[97])
        item["meta_info"].update(completion_tokens=1, output_token_logprobs=[[-0.5, 97, None]])

    output, _ = rollout(generate_rollout, arguments())
    assert "rollout_patch/equal_answers" not in output.metrics
    server.changes = alike
    output, _ = rollout(generate_rollout, arguments())
    assert output.metrics["rollout_patch/equal_answers"] == len(PROMPTS)


def test_metadata_need_not_be_made_to_be_copied(slime: Any, arguments: Any, rollout: Any, data_source: Any) -> None:
    lock = threading.Lock()
    for options in ({}, {"rollout_patch_design": "probe", "rollout_patch_share": 1}):
        source = data_source(slime.Sample, PROMPTS, N)
        for sample in (sample for group in source._groups for sample in group):
            sample.metadata.update(lock=lock, module=threading)
        output, _ = rollout(generate_rollout, arguments(**options), source)
        assert all(sample.metadata["lock"] is lock for group in output.samples for sample in group)


def test_the_hosts_functions_are_its_own_again_afterwards(slime: Any, arguments: Any, rollout: Any) -> None:
    own = dict(vars(slime))
    rollout(generate_rollout, arguments())
    assert dict(vars(slime)) == own


@pytest.mark.timeout(600)
def test_through_an_engine_stock_and_patch_make_equal_samples(
    slime: Any, arguments: Any, rollout: Any, server: Any, data_source: Any, policy: Path, engine: Any
) -> None:
    from parity.trainer.tasks import get_task

    kind, server.upstream = engine
    prompts = get_task("arithmetic").prompts(seed=0, step=0, count=3)
    changes = {"hf_checkpoint": str(policy), **(SEEDED if kind == "embedded" else {})}
    sources = [data_source(slime.Sample, prompts, N) for _ in range(2)]
    stock, stock_requests = rollout(slime.generate_rollout, arguments(**changes), sources[0])
    options = {"rollout_patch_seed_per_slot": True} if kind == "embedded" else {}
    patched, requests = rollout(generate_rollout, arguments(**changes, **options), sources[1])
    assert (len(stock_requests), len(requests)) == (3 * N, 3)
    assert patched.metrics["rollout_patch/native_groups"] == 3
    kept = [{name: value for name, value in row.items() if name != "prefix_cache_info"} for row in rows(patched)]
    asked = [{name: value for name, value in row.items() if name != "prefix_cache_info"} for row in rows(stock)]
    if kind == "embedded":
        assert kept == asked
    for one, other in zip(kept, asked, strict=True):
        drawn = {"tokens", "response", "response_length", "rollout_log_probs", "loss_mask", "status", "reward"}
        assert {name: one[name] for name in one if name not in drawn} == {
            name: other[name] for name in other if name not in drawn
        }
        assert len(one["rollout_log_probs"]) == len(one["loss_mask"]) == one["response_length"] > 0
    assert len({tuple(row["tokens"]) for row in kept}) > 3
