"""Parsing of request bodies: whatever comes in, a request or a refusal comes out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.engines.embedded.protocol import GenerateRequest, Limits, parse_generate
from parity.engines.embedded.refusals import RequestRefused

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(-2, 2) | st.sampled_from(["", "a", "4"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["n", "stop", "a"]), inner, max_size=2),
    max_leaves=5,
)
SAMPLING = st.fixed_dictionaries(
    {},
    optional={
        name: JSON
        for name in ("n", "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "stop", "stop_token_ids")
    },
)
BODIES = JSON | st.fixed_dictionaries(
    {},
    optional={
        "text": JSON | st.just("a"),
        "input_ids": JSON | st.lists(st.integers(0, 9), min_size=1),
        "rid": JSON,
        "stream": JSON,
        "sampling_params": JSON | SAMPLING | st.lists(SAMPLING, max_size=2),
        "return_logprob": JSON,
        "logprob_start_len": JSON,
        "top_logprobs_num": JSON,
        "image_data": JSON,
    },
)


def parse(body):
    numbers = iter(range(100_000))
    return parse_generate(body, Limits(64, 272), lambda text: list(text.encode()), lambda: f"id{next(numbers)}")


@settings(derandomize=True, max_examples=200, deadline=None)
@given(BODIES)
def test_any_body_is_parsed_whole_or_refused(body):
    try:
        request = parse(body)
    except RequestRefused as refusal:
        assert refusal.status == 400
        assert set(refusal.body) == {"error"}
    else:
        assert isinstance(request, GenerateRequest)
        assert request.sequences
        assert len({sequence.id for sequence in request.sequences}) == len(request.sequences)
        for sequence in request.sequences:
            assert 0 < len(sequence.input_ids) < 64
            assert len(sequence.input_ids) + sequence.sampling.max_new_tokens <= 64


def test_prompts_are_major_and_sample_i_takes_seed_plus_i():
    request = parse({"input_ids": [[1], [2]], "sampling_params": {"n": 3, "sampling_seed": 40}})
    assert request.is_list
    assert [(sequence.input_ids, sequence.sampling.seed) for sequence in request.sequences] == [
        ((prompt,), seed) for prompt in (1, 2) for seed in (40, 41, 42)
    ]


@pytest.mark.parametrize(
    ("body", "is_list"),
    [
        ({"text": "a"}, False),
        ({"text": ["a"]}, True),
        ({"input_ids": [1]}, False),
        ({"input_ids": [[1]]}, True),
        ({"input_ids": [1], "sampling_params": {"n": 0}}, False),
        ({"input_ids": [1], "sampling_params": {"n": 2}}, True),
        ({"input_ids": [1], "n": 4}, False),
    ],
)
def test_an_object_for_one_prompt_and_one_sample_and_a_list_otherwise(body, is_list):
    assert parse(body).is_list is is_list
