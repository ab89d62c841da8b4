"""Kinds of faults that were reported of real trainers, each beside the sound data that it is easily mistaken for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from parity.contract_checks import Rules, check_batches, check_exchanges, check_recording, check_samples
from parity.findings import Finding, Severity, Status
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout, Sample

Build = Callable[..., list[Sample]]
STOP, IMAGE, START, END = 2, 151655, 151652, 151653


def failing(findings: Sequence[Finding]) -> dict[str, Finding]:
    return {f.check: f for f in reversed(findings) if f.status is Status.FAIL and f.severity is Severity.ERROR}


def checked(samples: Sequence[Sample], rules: Rules | None = None) -> dict[str, Finding]:
    return failing(check_samples(Rollout.from_samples(samples), rules or Rules()))


# --- chains of requests: conversations with tools, and responses that go on after an abort


def exchange(
    prompt: list[int], output: list[int], *, reason: str = "stop", text: bool = False, **more: Any
) -> Exchange:
    """One answered request; log-probs are -0.1 times the token's number."""
    asked: dict[str, Any] = {"text": " ".join(map(str, prompt))} if text else {"input_ids": prompt}
    params = {"temperature": 1.0, "max_new_tokens": 64}
    meta = {
        "finish_reason": {"type": reason, "matched": STOP} if reason == "stop" else {"type": reason, "message": "gone"},
        "prompt_tokens": len(prompt),
        "completion_tokens": len(output),
        "output_token_logprobs": [[-0.1 * token, token, None] for token in output],
    }
    response = {"text": "", "output_ids": output, "meta_info": meta}
    place = {"rollout_id": 0, "group_index": 0, "arm": "per-sample", **more}
    return Exchange({**asked, "sampling_params": params, "return_logprob": True}, 200, response, **place)


def conversation(turns: Sequence[tuple[list[int], bool]], slot: int = 0, **changes: Any) -> Sample:
    """A sample of turns, each with its tokens and whether they were sampled."""
    ids = [token for tokens, _ in turns for token in tokens]
    mask = [int(sampled) for tokens, sampled in turns for _ in tokens]
    values: dict[str, Any] = {
        "prompt_ids": [41],
        "output_ids": ids,
        "logprobs": [-0.1 * token * kept for token, kept in zip(ids, mask, strict=True)],
        "loss_mask": mask,
        "finish_reason": "stop",
        "status": "completed",
    }
    return Sample(0, slot, rollout_id=0, response_length=len(ids), reward=1.0, **values | changes)


def recorded(samples: Sequence[Sample], exchanges: Sequence[Exchange], **rules: Any) -> dict[str, Finding]:
    return failing(check_recording([Rollout.from_samples(samples)], exchanges, Rules(**rules)))


TOOL = [([42, 43, STOP], True), ([44], False), ([45, STOP], True)]
ASKED = [exchange([41], [42, 43, STOP]), exchange([41, 42, 43, STOP, 44], [45, STOP])]


@pytest.mark.parametrize("text", [False, True], ids=["ids", "text"])
def test_a_sample_may_be_the_outputs_of_requests_whose_prompts_extend_each_other(text: bool) -> None:
    exchanges = [exchange([41], [42, 43, STOP], text=text), exchange([41, 42, 43, STOP, 44], [45, STOP], text=text)]
    findings = check_recording([Rollout.from_samples([conversation(TOOL)])], exchanges, Rules())
    assert failing(findings) == {}
    by_check = {finding.check: finding for finding in findings}
    assert by_check["samples_received"].status is by_check["requests_accounted"].status is Status.PASS


def test_siblings_may_take_different_numbers_of_turns_and_begin_alike() -> None:
    samples = [conversation(TOOL, 0), conversation([([42, 43, STOP], True)], 1), conversation([([50, STOP], True)], 2)]
    exchanges = [*ASKED, exchange([41], [42, 43, STOP]), exchange([41], [50, STOP])]
    assert recorded(samples, exchanges) == {}
    assert set(recorded(samples, exchanges[:-1])) == {"samples_received"}
    assert set(recorded(samples, [*exchanges, exchange([41], [60, STOP])])) == {"samples_received"}


def test_log_probs_of_another_prefix_break_the_chain_at_its_first_link() -> None:
    """A suffix of the first answer is kept and trained on with log-probs sampled under the whole of it."""
    kept = conversation([([43, STOP], True), ([44], False), ([45, STOP], True)])
    found = recorded([kept], [exchange([41], [42, 43, STOP]), exchange([41, 43, STOP, 44], [45, STOP])])
    assert set(found) == {"samples_received"}
    assert "link 1" in found["samples_received"].message


@pytest.mark.parametrize(
    ("change", "link"),
    [
        ({"logprobs": [-4.2, -4.3, -0.2, -0.5, -4.5, -0.2]}, None),  # a tool's token with a log-prob
        ({"loss_mask": [1, 1, 1, 1, 1, 1]}, 2),  # a tool's token that is trained on
        ({"loss_mask": [1, 0, 1, 0, 1, 1]}, 1),  # half an answer
        ({"logprobs": [-4.2, -4.3, -0.2, 0.0, -4.4, -0.2]}, 2),  # another answer's log-prob
        ({"finish_reason": "length", "status": "truncated"}, 2),
    ],
)
def test_what_breaks_a_chain_is_named_by_its_link(change: dict[str, Any], link: int | None) -> None:
    found = recorded([conversation(TOOL, **change)], ASKED)
    assert "samples_received" in found
    assert link is None or f"link {link}" in found["samples_received"].message


def test_a_conversation_without_a_recorded_mask_is_held_to_its_prompts() -> None:
    assert recorded([conversation(TOOL, loss_mask=None)], ASKED) == {}
    twice = [([42, 43, STOP, 42, 43, STOP], True), ([44], False), ([45, STOP], True)]
    assert set(recorded([conversation(twice, loss_mask=None)], ASKED)) >= {"samples_received"}


ABORTED = exchange([41], [42, 43], reason="abort")
RESUMED = exchange([41, 42, 43], [45, STOP])


def test_a_response_may_go_on_after_an_abort() -> None:
    whole = conversation([([42, 43, 45, STOP], True)])
    assert recorded([whole], [ABORTED, RESUMED], partial_versions=True) == {}
    off_policy = conversation([([42, 43, 45, STOP], True)], loss_mask=[0, 0, 1, 1])
    assert recorded([off_policy], [ABORTED, RESUMED], partial_versions=True) == {}


def test_a_response_may_go_on_in_a_later_rollout() -> None:
    whole = conversation([([42, 43, 45, STOP], True)])
    whole.rollout_id = 1
    earlier, later = exchange([41], [42, 43], reason="abort"), exchange([41, 42, 43], [45, STOP], rollout_id=1)
    assert recorded([whole], [earlier, later], partial_versions=True) == {}
    assert set(recorded([whole], [later], partial_versions=True)) == {"samples_received"}


def test_a_prefix_kept_twice_is_told_apart_from_a_lost_output() -> None:
    twice = recorded([conversation([([42, 43, 42, 43, 45, STOP], True)])], [ABORTED, RESUMED], partial_versions=True)
    lost = recorded([conversation([([42, 43], True)])], [ABORTED, RESUMED], partial_versions=True)
    assert "kept twice" in twice["samples_received"].message
    assert "samples_received" in lost and "kept twice" not in lost["samples_received"].message
    assert lost["samples_received"].observed["unused"] == 1


# --- masks, weight versions, groups


def test_overlong_filtering_may_mask_what_was_cut_off_and_nothing_that_finished(valid_samples: Build) -> None:
    samples = valid_samples(cap=8)
    cut = [sample for sample in samples if sample.finish_reason == "length"]
    ended = [sample for sample in samples if sample.finish_reason == "stop"]
    assert cut and ended
    for sample in cut:
        sample.loss_mask = [0] * len(sample.output_ids or ())
    assert checked(samples) == {}
    ended[0].loss_mask = [0] * len(ended[0].output_ids or ())
    assert set(checked(samples)) == {"loss_mask_values"}


def test_a_group_that_was_aborted_and_put_back_has_no_version_yet(valid_samples: Build) -> None:
    samples = valid_samples()
    for sample in samples[:4]:
        sample.output_ids, sample.logprobs, sample.loss_mask, sample.response_length = [], None, None, 0
        sample.finish_reason, sample.status, sample.weight_versions = "abort", "aborted", []
        sample.reward = sample.advantage = None
    assert checked(samples) == {}
    samples[4].weight_versions = []
    assert set(checked(samples)) == {"weight_version"}


def test_a_group_of_several_draws_of_its_prompt_is_called_that(valid_samples: Build) -> None:
    samples = valid_samples(groups=1, n=8)
    found = checked(samples, Rules(group_size=4))["output_count"]
    assert (found.expected, found.observed) == (4, 8)
    assert "drawn 2 times" in found.message


# --- copies beyond the group


def test_a_batch_that_is_trained_on_twice_is_found(valid_samples: Build) -> None:
    samples = valid_samples(steps=3)
    assert checked(samples) == {}
    again = valid_samples(steps=3)
    for ours, theirs in zip(again[32:], again[:16], strict=True):
        for name in ("prompt_ids", "output_ids", "logprobs", "text", "loss_mask", "response_length", "prompt_tokens"):
            setattr(ours, name, getattr(theirs, name))
        for name in ("reward", "advantage", "finish_reason", "status", "cached_tokens"):
            setattr(ours, name, getattr(theirs, name))
    found = checked(again)
    assert set(found) == {"groups_once", "clones_elsewhere"}
    assert found["groups_once"].where.rollout_id == 2
    assert found["groups_once"].observed == {"rollout_id": 0, "group_index": found["groups_once"].where.group_index}


def test_short_answers_may_come_again_in_another_rollout(valid_samples: Build) -> None:
    samples = valid_samples(steps=4, groups=2, n=8, cap=1, words=3)
    for sample in samples:
        sample.prompt_ids, sample.prompt_tokens, sample.cached_tokens = [5, 6], 2, 0
    assert checked(samples) == {}


def texts(alike: bool, length: int = 120, groups: int = 16) -> list[Sample]:
    rng = random.Random(7)
    words = ["".join(rng.choices("abcdefgh ", k=length)) for _ in range(8 * groups)]
    return [Sample(g, i, text=words[8 * g] if alike else words[8 * g + i]) for g in range(groups) for i in range(8)]


def test_groups_of_one_long_text_are_copies_and_others_are_not() -> None:
    assert set(checked(texts(alike=True))) == {"text_clones"}
    assert checked(texts(alike=False)) == {}
    assert checked(texts(alike=True, length=12)) == {}  # a short answer is honestly the same


def test_a_few_texts_alike_are_not_compared_rather_than_passed() -> None:
    samples = texts(alike=False)
    samples[1].text = samples[0].text
    found = {f.check: f for f in check_samples(Rollout.from_samples(samples), Rules())}
    assert failing(list(found.values())) == {}
    assert [f.evidence["not_compared"] for f in found.values() if f.check == "text_clones"] == [1]


# --- media and lists beside the tokens


def with_images(valid: list[Sample]) -> list[Sample]:
    """Two images a prompt, expanded to 6 tokens and 5."""
    for sample in valid:
        words = (sample.prompt_ids or [])[:3]
        sample.prompt_ids = [START, *[IMAGE] * 6, END, *words, START, *[IMAGE] * 5, END, 9]
        sample.prompt_tokens, sample.cached_tokens = len(sample.prompt_ids), 0
        sample.media_sha256 = ["a" * 64, "b" * 64]
    return valid


def test_a_generated_placeholder_is_found_without_being_told_which_token_it_is(valid_samples: Build) -> None:
    samples = with_images(valid_samples())
    assert checked(samples) == {}
    assert samples[5].output_ids
    samples[5].output_ids[0] = IMAGE
    found = checked(samples)
    assert set(found) == {"generated_placeholders"}
    assert (found["generated_placeholders"].where.index, found["generated_placeholders"].observed) == (1, IMAGE)


def test_a_tool_may_answer_with_an_image(valid_samples: Build) -> None:
    samples = with_images(valid_samples())
    sample = next(s for s in samples if len(s.output_ids or ()) > 5)
    assert sample.output_ids and sample.logprobs and sample.loss_mask
    sample.output_ids[1:3], sample.logprobs[1:3], sample.loss_mask[1:3] = [IMAGE, IMAGE], [0.0, 0.0], [0, 0]
    assert checked(samples) == {}


@pytest.mark.parametrize(
    "cut",
    [
        lambda ids: ids[8:],  # the first image is gone
        lambda ids: ids[3:],  # it is cut through
        lambda ids: [*ids[:3], *ids[5:]],  # it lost tokens in between
    ],
)
def test_a_truncated_prompt_with_an_image_is_found(cut: Callable[[list[int]], list[int]], valid_samples: Build) -> None:
    samples = with_images(valid_samples(groups=12))
    for sample in samples[4:8]:
        sample.prompt_ids = cut(sample.prompt_ids or [])
        sample.prompt_tokens = len(sample.prompt_ids)
    found = checked(samples)
    assert set(found) == {"media_placeholders"}
    assert found["media_placeholders"].where.group_index == 1


def test_an_unknown_familys_placeholder_is_what_repeats_as_often_as_there_are_media(valid_samples: Build) -> None:
    samples = valid_samples()
    for sample in samples:
        sample.prompt_ids = [7, *[190] * 5, 8, *[190] * 4, 9]
        sample.prompt_tokens, sample.cached_tokens, sample.media_sha256 = len(sample.prompt_ids), 0, ["a", "b"]
        sample.output_ids = [token if token != 190 else 189 for token in sample.output_ids or ()]
    assert checked(samples) == {}
    assert samples[5].output_ids
    samples[5].output_ids[0] = 190
    assert set(checked(samples)) == {"generated_placeholders"}


@pytest.mark.parametrize(("described", "name"), [(False, "rollout_routed_experts"), (True, "my_mask_of_tokens")])
def test_a_list_beside_the_tokens_that_is_recorded_twice_is_found(
    described: bool, name: str, valid_samples: Build
) -> None:
    samples = valid_samples(groups=6)
    for sample in samples:
        total = len(sample.prompt_ids or ()) + len(sample.output_ids or ()) - 1
        sample.extra[name] = {"shape": [total, 2, 8]} if described else [0.5] * total
    assert checked(samples) == {}
    total = len(samples[9].prompt_ids or ()) + len(samples[9].output_ids or ()) - 1
    samples[9].extra[name] = {"shape": [2 * total, 2, 8]} if described else [0.5] * (2 * total)
    found = checked(samples)
    assert set(found) == {"token_arrays"}
    assert (found["token_arrays"].where.group_index, found["token_arrays"].observed) == (2, 2 * total)


def image_request(images: int, placeholders: int, **fields: Any) -> list[Finding]:
    prompt = " ".join(["<|vision_start|><|image_pad|><|vision_end|>"] * placeholders) + " what is this?"
    given = {"text": prompt, "image_data": ["data"] * images, "sampling_params": {"max_new_tokens": 1}, **fields}
    return check_exchanges([Exchange(given, 200, {"text": "x", "meta_info": {}})], Rules())


def test_an_image_more_than_placeholders_in_a_request_is_found_without_being_told_the_placeholder() -> None:
    assert "exchange_request_honoured" not in failing(image_request(2, 2))
    assert "exchange_request_honoured" in failing(image_request(3, 2))
    assert "exchange_request_honoured" not in failing(image_request(1, 0))  # of no known family


def test_filled_up_log_probs_of_an_answer_warn() -> None:
    answer = exchange([41], [42, 43, 44, 45])
    answer.response["meta_info"]["output_token_logprobs"][2:] = [[0.0, 44, None], [0.0, 45, None]]
    found = {f.check: f for f in check_exchanges([answer], Rules()) if f.status is Status.FAIL}
    assert found["exchange_logprob_tail"].severity is Severity.WARNING


def test_parts_of_a_stream_give_what_the_whole_gives(valid_samples: Build) -> None:
    samples = with_images(valid_samples(groups=6))
    samples[5].output_ids[0] = IMAGE  # type: ignore[index]
    parts = [Rollout.from_samples(samples[start : start + 7]) for start in range(0, len(samples), 7)]
    assert check_batches(parts, Rules()) == check_samples(Rollout.from_samples(samples), Rules())
