"""Every answer that the real engine was seen to give is read; every one that breaks the protocol is refused by name."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollout_patch import ResponseRefused, SampleRequest
from rollout_patch.dialects.sglang import read_response
from rollout_patch.errors import OneSampleOnly
from rollout_patch.requests import PlannedRequest
from rollout_patch.responses import check_group

ASKED = SampleRequest({}, input_ids=[1, 2, 3], options={"return_logprob": True})


def item(**changes: Any) -> dict[str, Any]:
    meta = {
        "id": "one",
        "finish_reason": {"type": "length", "length": 3},
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "weight_version": "w1",
        "output_token_logprobs": [[-0.1, 5, None], [-0.2, 6, "x"], [-0.0, 7, None]],
    }
    whole = {"text": "abc", "output_ids": [5, 6, 7], "meta_info": meta}
    for name, value in changes.items():
        place = whole if name in whole else meta
        if value is ...:
            del place[name]
        else:
            place[name] = value
    return whole


def read(response: Any, slots: int = 1, asked: SampleRequest = ASKED) -> Any:
    planned = PlannedRequest({}, {}, tuple(range(slots)))
    return read_response(planned, response, [asked] * slots)


def asked_in(request: dict[str, Any]) -> list[SampleRequest]:
    """What each slot of a recorded request asked for, prompt-major."""
    prompt = request.get("text", request.get("input_ids"))
    prompts = prompt if isinstance(prompt, list) and isinstance(prompt[0], (list, str)) else [prompt]
    params = request["sampling_params"]
    n = max(params.get("n", 1), 1) if isinstance(params, dict) else 1
    media = {key: value for key, value in request.items() if key.endswith("_data")}
    options = {"return_logprob": request.get("return_logprob", False)}
    kinds = ["text" if isinstance(one, str) else "input_ids" for one in prompts]
    return [
        SampleRequest({}, media=media, options=options, **{kind: one})
        for kind, one in zip(kinds, prompts, strict=True)
        for _ in range(n)
    ]


def test_every_recorded_answer_is_read(recorded: dict[str, Any]) -> None:
    read_cases = 0
    for row in recorded.values():
        if row["status"] != 200 or "sampling_params" not in row["request"] or row["request"].get("stream"):
            continue
        asked = asked_in(row["request"])
        outputs = read_response(PlannedRequest({}, {}, tuple(range(len(asked)))), row["response"], asked)
        check_group(outputs, asked)
        items = row["response"] if isinstance(row["response"], list) else [row["response"]]
        assert [output.output_ids for output in outputs] == [one["output_ids"] for one in items]
        assert [output.finish_reason for output in outputs] == [
            one["meta_info"]["finish_reason"]["type"] for one in items
        ]
        read_cases += 1
    assert read_cases > 30


def test_a_recorded_group_is_read_field_by_field(recorded: dict[str, Any]) -> None:
    row = recorded["native-n8"]
    outputs = read(row["response"], 8, SampleRequest({}, input_ids=row["request"]["input_ids"]))
    first, meta = outputs[0], row["response"][0]["meta_info"]
    assert first.logprobs == [triple[0] for triple in meta["output_token_logprobs"]]
    assert (first.prompt_tokens, first.cached_tokens, first.weight_version) == (11, meta["cached_tokens"], "default")
    assert (first.text, first.id, first.meta_info) == (row["response"][0]["text"], meta["id"], meta)


def test_items_aborted_in_the_queue_are_read_without_their_missing_fields(recorded: dict[str, Any]) -> None:
    row = recorded["abort-mixed-queue-n8"]
    outputs = read(row["response"], 8, asked_in(row["request"])[0])
    queued = [output for output in outputs if not output.output_ids]
    partial = [output for output in outputs if output.output_ids]
    assert len(queued) + len(partial) == 8
    assert all(output.finish_reason == "abort" and output.logprobs == [] for output in queued)
    assert all(output.prompt_tokens is None and output.cached_tokens is None for output in queued)
    assert all(output.prompt_tokens == 12 and len(output.logprobs) == len(output.output_ids) for output in partial)


def test_ids_come_from_the_triples_where_the_engine_sends_no_output_ids() -> None:
    (output,) = read(item(output_ids=...))
    assert (output.output_ids, output.logprobs) == ([5, 6, 7], [-0.1, -0.2, -0.0])


def test_the_least_log_probs_are_finite_although_their_sum_is_not() -> None:
    least = [[-1.7e308, token, None] for token in (5, 6, 7)]
    assert read(item(output_token_logprobs=least))[0].logprobs == [-1.7e308] * 3


def test_without_log_probs_asked_for_none_are_made_up() -> None:
    (output,) = read(item(output_token_logprobs=...), asked=SampleRequest({}, input_ids=[1, 2, 3]))
    assert output.logprobs is None


REFUSED: list[tuple[Any, str]] = [
    ([item()], "dict"),
    ("<html>bad gateway</html>", "bad gateway"),
    (None, "NoneType"),
    (item(meta_info=...), "meta_info"),
    ({"error": {"message": "out of memory"}}, "out of memory"),
    (item(meta_info=[]), "meta_info"),
    (item(finish_reason=...), "finish_reason"),
    (item(finish_reason=None), "None"),
    (item(finish_reason="stop"), "'stop'"),
    (item(finish_reason={"type": "eos"}), "eos"),
    (item(finish_reason={"type": ["stop"]}), "stop"),
    (item(output_ids=[5, 6]), "2 output_ids and 3 output_token_logprobs"),
    (item(output_ids=[5, 9, 7]), "token 1 is 9 in output_ids and 6"),
    (item(output_ids=[5, 6, 7, 8]), "4 output_ids and 3"),
    (item(output_ids="567"), "output_ids is list"),
    (item(output_token_logprobs=..., output_ids=...), "neither"),
    (item(output_token_logprobs=...), "asked for"),
    (item(output_token_logprobs=[]), "3 output_ids and 0"),
    (item(output_token_logprobs=[-0.1, -0.2, -0.3]), "triples"),
    (item(output_token_logprobs=[[-0.1, 5, None], [-0.2, 6], [-0.3, 7, None]]), "triples"),
    (item(output_token_logprobs=[[-0.1], [-0.2], [-0.3]]), "1 columns"),
    (item(output_token_logprobs=[[-0.1, 5, None], [None, 6, None], [-0.3, 7, None]]), "token 1 is NoneType"),
    (item(output_token_logprobs=[[-0.1, 5, None], [-0.2, 6, None], [float("nan"), 7, None]]), "token 2 is float nan"),
    (item(output_token_logprobs=[[float("-inf"), 5, None], [-0.2, 6, None], [-0.3, 7, None]]), "token 0 is float -inf"),
    (item(output_token_logprobs=[[-0.1, 5, None], [0.7, 6, None], [-0.3, 7, None]]), "token 1 is float 0.7"),
    (item(output_token_logprobs=[["-0.1", 5, None], [-0.2, 6, None], [-0.3, 7, None]]), "token 0 is str"),
    (
        item(output_ids=[5.0, 6, 7], output_token_logprobs=[[-0.1, 5, None], [-0.2, 6, None], [-0.3, 7, None]]),
        "token 0",
    ),
    (
        item(output_ids=[-1, 6, 7], output_token_logprobs=[[-0.1, -1, None], [-0.2, 6, None], [-0.3, 7, None]]),
        "token 0",
    ),
    (
        item(output_ids=[True, 6, 7], output_token_logprobs=[[-0.1, 1, None], [-0.2, 6, None], [-0.3, 7, None]]),
        "token 0",
    ),
    (
        item(output_ids=[5, 2**31, 7], output_token_logprobs=[[-0.1, 5, None], [-0.2, 2**31, None], [-0.3, 7, None]]),
        "token 1",
    ),
    (item(output_token_logprobs=[[-0.1, 5, None], [10**400, 6, None], [-0.3, 7, None]]), "token 1 is int 1000"),
    (item(output_token_logprobs=[[-0.1, 5, None], [-(10**400), 6, None], [-0.3, 7, None]]), "token 1 is int -1000"),
    (item(completion_tokens=4), "3 output_ids and completion_tokens 4"),
    (item(completion_tokens="3"), "completion_tokens"),
    (item(prompt_tokens=...), "no prompt_tokens"),
    (item(prompt_tokens=1), "3 tokens, the answer counts 1"),
    (item(prompt_tokens=3.0), "prompt_tokens is int"),
    (item(id=...), "no id"),
    (item(id=""), "no id"),
    (item(id=7), "id is str"),
    (item(text=7), "text is str"),
    (item(weight_version=3), "weight_version is str"),
    (item(weight_versions=[{"version": "w1"}, {"version": "w2"}]), "2 weight versions"),
    (item(weight_versions=["w1"]), "list of objects"),
]


@pytest.mark.parametrize(("response", "message"), REFUSED, ids=range(len(REFUSED)))
def test_an_answer_that_breaks_the_protocol_is_refused_and_says_what_it_was(response: Any, message: str) -> None:
    assert read(item())[0].output_ids == [5, 6, 7]
    with pytest.raises(ResponseRefused) as refused:
        read(response)
    assert message in str(refused.value)


@pytest.mark.parametrize("count", [0, 1, 3, 5, 16])
def test_another_number_of_items_is_refused_with_both_numbers(count: int) -> None:
    with pytest.raises(ResponseRefused, match=f"asked for 4 samples, got {count}"):
        read([item(id=str(number)) for number in range(count)], slots=4)


def test_one_object_for_a_group_is_refused_and_one_sample_is_told_from_an_error() -> None:
    with pytest.raises(OneSampleOnly, match="4 samples is answered with a list, not dict"):
        read(item(), slots=4)
    with pytest.raises(ResponseRefused, match="out of memory") as refused:
        read({"error": {"message": "out of memory"}}, slots=4)
    assert not isinstance(refused.value, OneSampleOnly)


def test_the_place_of_a_broken_item_is_named() -> None:
    group = [item(id="a"), item(id="b"), item(id="c", finish_reason=None)]
    with pytest.raises(ResponseRefused, match="slot 2"):
        read(group, slots=3)


def group_of(*changes: dict[str, Any], asked: SampleRequest = ASKED) -> None:
    items = [item(**{"id": str(slot), **change}) for slot, change in enumerate(changes)]
    check_group(read(items, len(items), asked), [asked] * len(items))


def test_samples_of_a_group_have_own_ids_and_one_weight_version() -> None:
    group_of({}, {}, {})
    with pytest.raises(ResponseRefused, match="3 samples have 2 different ids"):
        group_of({}, {"id": "0"}, {})
    with pytest.raises(ResponseRefused, match=r"2 weight versions: \['w1', 'w2'\]"):
        group_of({}, {"weight_version": "w2"}, {})
    with pytest.raises(ResponseRefused, match="2 weight versions"):
        group_of({}, {"weight_version": None})


def test_equal_text_prompts_have_equal_token_counts() -> None:
    asked = SampleRequest({}, text="abc")
    group_of({"prompt_tokens": 4}, {"prompt_tokens": 4}, asked=asked)
    with pytest.raises(ResponseRefused, match="slots 0 and 1 ask the same and have 4 and 5 prompt tokens"):
        group_of({"prompt_tokens": 4}, {"prompt_tokens": 5}, asked=asked)


def test_different_prompts_in_another_order_are_noticed_by_their_length() -> None:
    asked = [SampleRequest({}, input_ids=[1] * length) for length in (7, 5, 9)]
    planned = PlannedRequest({}, {}, (0, 1, 2))
    items = [item(id=str(length), prompt_tokens=length) for length in (7, 5, 9)]
    read_response(planned, items, asked)
    with pytest.raises(ResponseRefused, match="slot 0: the prompt sent has 7 tokens, the answer counts 5"):
        read_response(planned, [items[1], items[0], items[2]], asked)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.just(10**400)
    | st.just(-1e308)
    | st.floats()
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [at, *(path for key in keys for path in paths(value[key], (*at, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    value = copy.copy(value)
    value[path[0]] = replaced(value[path[0]], path[1:], new)
    return value


@settings(derandomize=True, max_examples=300, deadline=None)
@given(st.data())
def test_whatever_stands_anywhere_in_an_answer_it_is_read_soundly_or_refused(data: st.DataObject) -> None:
    sound = [item(id="a"), item(id="b")]
    path = data.draw(st.sampled_from(paths(sound)))
    response = replaced(sound, path, data.draw(json_values))
    try:
        outputs = read(response, slots=2)
    except ResponseRefused:
        return
    for output in outputs:
        assert output.finish_reason in ("stop", "length", "abort")
        assert len(output.output_ids) == len(output.logprobs)
        assert json.loads(json.dumps(output.logprobs, allow_nan=False)) == output.logprobs
        assert all(isinstance(token, int) for token in output.output_ids)


def test_reading_changes_nothing_in_the_answer() -> None:
    response = [item(id="a"), item(id="b")]
    before = copy.deepcopy(response)
    outputs = read(response, slots=2)
    outputs[0].logprobs.append(0.0)
    assert response == before
