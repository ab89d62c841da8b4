"""Images: answered as recorded, computed as transformers does, told apart by content, encoded once, bounded."""

import asyncio
import json
import threading
import time
from pathlib import Path

import pytest
import torch
from answers import described, everything_at_once, fixed, items, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import data_url, png, png_of
from transformers import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from two_images import image

from parity.engines.embedded import images
from parity.engines.embedded.protocol import Limits, parse_generate
from parity.engines.embedded.recently_used import RecentlyUsed
from parity.engines.embedded.refusals import RequestRefused
from parity.engines.embedded.sampling import LOGPROB_GRID

DATA = Path(__file__).parents[2] / "data"
RECORDED = [
    [
        json.loads(line)
        for line in (DATA / f"sglang-0.5.23-cpu-qwen2.5-vl{part}.exchanges.jsonl").read_text().split("\n")
        if line
    ]
    for part in ("", "-shapes")
]
A, B, WIDE = (data_url(picture) for picture in (png(56, 56, 1), png(56, 56, 2), png(84, 56, 3)))
START, END, PAD = 259, 260, 262
PICTURE = [START, PAD, END]
ONE = "a<|vision_start|><|image_pad|><|vision_end|>b"
TWO = "a<|vision_start|><|image_pad|><|vision_end|><|vision_start|><|image_pad|><|vision_end|>b"


def body(prompt, pictures=None, fields=None, **params):
    sampling = {"max_new_tokens": 6, "temperature": 0.0, **params}
    kind = "text" if isinstance(prompt, str) or isinstance(prompt[0], str) else "input_ids"
    request = {kind: prompt, "sampling_params": sampling, "return_logprob": True, **(fields or {})}
    return request | ({} if pictures is None else {"image_data": pictures})


def counted(ask, url):
    """Images encoded and images found encoded, since the start."""
    lines = ask(url, "/metrics")[1].splitlines()
    values = dict(line.split() for line in lines if not line.startswith("#"))
    return [int(values[f"sglang:images_{name}_total"]) for name in ("encoded", "cached")]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rows", RECORDED, ids=["first", "shapes"])
def test_every_recorded_request_gets_the_recorded_structure(vision_url, ask, rows):
    if rows is RECORDED[1]:  # when these were recorded, the first image had been asked for before
        ask(vision_url, "/generate", rows[0]["request"])
    for row in rows:
        status, response = ask(vision_url, row["url"], row["request"])
        assert status == row["status"], (row["case"], response)
        assert type(response) is type(row["response"]), row["case"]
        if status != 200:
            assert described(response) == described(row["response"]), row["case"]
            continue
        assert len(items(response)) == len(items(row["response"])), row["case"]
        for ours, theirs in zip(items(response), items(row["response"]), strict=True):
            metas = [item["meta_info"] for item in (ours, theirs)]
            assert list(metas[0]) == list(metas[1]), row["case"]
            counts = [[meta.get(name) for name in ("prompt_tokens", "cached_tokens", "image_tokens")] for meta in metas]
            assert counts[0] == counts[1], row["case"]
            scored = [[row[1] for row in meta.get("input_token_logprobs") or []] for meta in metas]
            assert scored[0] == scored[1], row["case"]
            ends = {meta["finish_reason"]["type"] for meta in metas}
            if ends == {"length"} and "top_logprobs_num" not in row["request"]:  # which weights decide
                assert fixed(ours) == fixed(theirs), row["case"]


@pytest.fixture(scope="module")
def reference(vision_checkpoint):
    """Transformers' own model in float64; its norms, and its eager attention, would round to float32."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(vision_checkpoint, attn_implementation="sdpa").double()
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            norm = torch.nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon, dtype=torch.float64)
            norm.weight = module.weight
            model.set_submodule(name, norm)
    return model.eval(), Qwen2VLImageProcessorPil.from_pretrained(vision_checkpoint)


def logprobs_of_transformers(reference, ids, urls):
    """Log-probs after each token of expanded ids, with transformers' own processing, positions and forward pass."""
    model, processor = reference
    what = {"input_ids": torch.tensor([ids])}
    if urls:
        cut = processor(images=list(map(image, urls)), return_tensors="pt")
        what |= {"pixel_values": cut["pixel_values"].double(), "image_grid_thw": cut["image_grid_thw"]}
        what["mm_token_type_ids"] = (what["input_ids"] == PAD).int()
    with torch.inference_mode():
        return model(**what).logits[0].log_softmax(-1)


def expanded(prompt, tokens):
    """The ids with each placeholder repeated, as many times as its image has tokens."""
    counts = iter(tokens)
    return [id for token in prompt for id in [token] * (next(counts) if token == PAD else 1)]


def test_logprobs_are_those_of_transformers_in_batches_of_text_and_images(vision_url, ask, reference):
    cases = [
        ([65, *PICTURE, 66, 67], [A], [4]),
        ([70, 71, 72, 73, 74, 75, 76, 77, 78, 79], [], []),
        ([*PICTURE, *PICTURE, 65], [WIDE, B], [6, 4]),
        ([65, *PICTURE, 66, 68], [B], [4]),
        ([1, 2, 3, *PICTURE, 4, *PICTURE, *PICTURE, 5, 6], [A, WIDE, A], [4, 6, 4]),
        ([65], [], []),
        ([65, *PICTURE, 66, 67, 68, 69], [A], [4]),
    ]
    prompts, pictures = [case[0] for case in cases], [case[1] for case in cases]
    # With this seed no response holds a placeholder, which transformers would want another image for.
    params = {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True, "sampling_seed": 4}
    for start in (0, -1, -1):  # scored whole, sampled after a prefix that is cached, and wholly from the cache
        fields = {"logprob_start_len": start}
        status, answers = ask(vision_url, "/generate", body(prompts, pictures, fields, **params))
        assert status == 200, answers
        for (prompt, urls, tokens), item in zip(cases, answers, strict=True):
            ids = expanded(prompt, tokens)
            meta = item["meta_info"]
            assert meta["prompt_tokens"] == len(ids)
            want = logprobs_of_transformers(reference, ids + item["output_ids"], urls)
            given = [*meta["input_token_logprobs"][1:], *meta["output_token_logprobs"]]
            following = (ids + item["output_ids"])[-len(given) :]
            for (value, _, _), token, row in zip(given, following, want[-len(given) - 1 : -1], strict=True):
                # What the engine says of an image's token is the log-prob of the last id of the vocabulary.
                exact = row[271 if token == PAD else token].item()
                assert abs(value - exact) <= LOGPROB_GRID / 2 + 1e-9


PROMPTS = [([65, *PICTURE, 66], [A]), ([65, *PICTURE, 66], [B]), ([*PICTURE, 67, *PICTURE], [WIDE, A]), ([70, 71], [])]


@pytest.mark.bits
@settings(derandomize=True, max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PROMPTS), st.integers(0, 2**40), st.randoms(use_true_random=False))
def test_a_seeded_response_is_the_same_alone_batched_native_and_amid_images(vision_engine, ask, prompt, seed, rng):
    url, _ = vision_engine
    ids, pictures = prompt
    assert ask(url, "/flush_cache?timeout=20", {})[0] == 200
    params = {"max_new_tokens": 10, "temperature": 1.0}
    each = [params | {"sampling_seed": seed + slot} for slot in range(4)]
    alone = [outcome(ask(url, "/generate", body(ids, pictures, **one))[1]) for one in each]
    native = body(ids, [pictures], **params, sampling_seed=seed, n=4)
    batched = body([ids] * 4, [pictures] * 4) | {"sampling_params": each}
    others = [body(rng.choice([prompt[0] for prompt in PROMPTS if prompt[1]]), [WIDE, B], n=1) for _ in range(2)]
    for other in others:
        if other["input_ids"].count(PAD) == 1:
            other["image_data"] = other["image_data"][:1]
    text = body([rng.randrange(256) for _ in range(30)], n=3, temperature=1.0)
    for _ in range(2):  # with the prefix cached, then without it
        sent = [native, batched, *[body(ids, pictures, **one) for one in each], *others, text]
        answers = asyncio.run(everything_at_once(url, sent))
        assert [outcome(item) for item in answers[0]] == alone
        assert [outcome(item) for item in answers[1]] == alone
        assert [outcome(answers[place]) for place in range(2, 6)] == alone
        assert ask(url, "/flush_cache?timeout=20", {})[0] == 200


def test_prompts_of_equal_ids_and_other_images_share_no_more_than_what_stands_before(vision_url, ask):
    alone = []
    for picture in (A, B):
        assert ask(vision_url, "/flush_cache", {})[0] == 200
        alone.append(ask(vision_url, "/generate", body([65, *PICTURE, 66], [picture]))[1])
    assert outcome(alone[0]) != outcome(alone[1])  # the images matter
    after = ask(vision_url, "/generate", body([65, *PICTURE, 66], [A]))[1]  # B has been seen
    assert after["meta_info"]["cached_tokens"] == 2
    assert outcome(after) == outcome(alone[0])
    # One pass over both, and the second of two images another.
    both = ask(vision_url, "/generate", body([[65, *PICTURE, 66]] * 2, [[B], [A]]))[1]
    assert [outcome(item) for item in both] == [outcome(alone[1]), outcome(alone[0])]
    pair = ask(vision_url, "/generate", body([65, *PICTURE, *PICTURE], [A, A]))[1]
    other = ask(vision_url, "/generate", body([65, *PICTURE, *PICTURE], [A, B]))[1]
    assert other["meta_info"]["cached_tokens"] == 1 + 1 + 4 + 1 + 1
    assert pair["meta_info"]["output_token_logprobs"][0] != other["meta_info"]["output_token_logprobs"][0]


def test_a_native_group_encodes_and_prefills_its_image_once(vision_url, ask):
    before = counted(ask, vision_url)
    group = ask(vision_url, "/generate", body(ONE, [[A]], n=8, temperature=1.0))[1]
    assert [item["meta_info"]["cached_tokens"] for item in group] == [7] * 8
    assert [item["meta_info"]["image_tokens"] for item in group] == [4] * 8
    assert counted(ask, vision_url) == [before[0] + 1, before[1]]


def test_an_image_is_encoded_once_whoever_asks_and_in_whatever_place(vision_url, ask):
    before = counted(ask, vision_url)
    singles = [ask(vision_url, "/generate", body(ONE, [A]))[1] for _ in range(3)]
    assert [item["meta_info"]["cached_tokens"] for item in singles] == [0, 7, 7]
    assert counted(ask, vision_url) == [before[0] + 1, before[1]]  # later ones lie in the prefix
    ask(vision_url, "/generate", body("xyz" + ONE, [A]))
    assert counted(ask, vision_url) == [before[0] + 1, before[1] + 1]
    # The same colours in another file are the same image.
    ask(vision_url, "/generate", body("other" + ONE, [A.partition(",")[2]]))
    assert counted(ask, vision_url) == [before[0] + 1, before[1] + 2]
    ask(vision_url, "/generate", body("xyz" + ONE, [B]))
    assert counted(ask, vision_url) == [before[0] + 2, before[1] + 2]


def test_new_weights_encode_images_anew(vision_checkpoint, other_vision_checkpoint, serving, ask):
    asked = body(TWO, [A, WIDE], {"logprob_start_len": 0})
    with serving(other_vision_checkpoint, 4) as (url, _):
        want = outcome(ask(url, "/generate", asked)[1])
    with serving(vision_checkpoint, 4) as (url, _):
        first = outcome(ask(url, "/generate", asked)[1])
        update = {"model_path": str(other_vision_checkpoint), "weight_version": "2"}
        assert ask(url, "/update_weights_from_disk", update)[0] == 200
        assert outcome(ask(url, "/generate", asked)[1]) == want != first
        assert ask(url, "/update_weights_from_disk", {"model_path": str(vision_checkpoint)})[0] == 200
        assert outcome(ask(url, "/generate", asked)[1]) == first


@pytest.mark.bits
def test_a_retracted_sequence_with_images_goes_on_as_if_nothing_had_happened(vision_url, ask):
    params = {"max_new_tokens": 250, "temperature": 1.0, "sampling_seed": 3, "ignore_eos": True}
    asked = body([65, *PICTURE, 66, *PICTURE], [A, WIDE], **params)
    undisturbed = outcome(ask(vision_url, "/generate", asked)[1])
    box = []
    thread = threading.Thread(target=lambda: box.append(ask(vision_url, "/generate", asked)[1]))
    thread.start()
    until = time.monotonic() + 60
    while not ask(vision_url, "/v1/loads")[1]["loads"][0]["num_running_reqs"]:
        assert time.monotonic() < until
    time.sleep(0.1)
    assert ask(vision_url, "/pause_generation", {"mode": "retract"})[0] == 200
    assert ask(vision_url, "/flush_cache", {})[0] == 200
    assert ask(vision_url, "/continue_generation", {})[0] == 200
    thread.join(timeout=100)
    assert outcome(box[0]) == undisturbed
    assert box[0]["meta_info"]["num_retractions"] == 1


# --- what is refused, and how


def refusal(ask, url, request):
    status, answer = ask(url, "/generate", request)
    assert status == 400, answer
    return answer["error"]["message"]


def test_nothing_is_fetched_and_no_file_is_read(vision_url, ask, tmp_path):
    (tmp_path / "real.png").write_bytes(png(56, 56))
    for address in (
        "http://127.0.0.1:9/a.png", "https://example.org/a.png", f"file://{tmp_path}/real.png", f"{tmp_path}/real.png",
        "/etc/passwd", "real.png",
    ):  # fmt: skip
        assert "read" in refusal(ask, vision_url, body(ONE, [address]))


def test_an_image_too_large_is_refused_by_its_header(vision_url, ask, monkeypatch):
    for width, height in ((4097, 4096), (70_000, 70_000), (2**31 - 1, 1)):
        bomb = data_url(png_of(width, height, b""))  # nothing to decode: whoever tries says so
        assert "pixels" in refusal(ask, vision_url, body(ONE, [bomb]))
    three = [[data_url(png(84, 56, 10 + seed))] for seed in range(3)]
    monkeypatch.setattr(images, "MAX_REQUEST_PIXELS", 3 * 84 * 56 - 1)
    assert "together" in refusal(ask, vision_url, body([ONE] * 3, three))
    assert ask(vision_url, "/generate", body([ONE] * 6, three[:2] * 3))[0] == 200  # the same image counts once


def test_too_many_images_are_refused_before_any_is_decoded(vision_url, ask):
    bombs = [[data_url(png_of(8, 8, str(number).encode()))] for number in range(1025)]  # whoever decodes one says so
    message = refusal(ask, vision_url, body([ONE] * 1025, bombs))
    assert message == "Image count 1025 exceeds limit 1024 per request."
    assert "Could not decode" in refusal(ask, vision_url, body([ONE] * 1024, bombs[:1024]))


def test_as_many_images_as_the_context_has_tokens_pass_and_the_same_one_counts_once():
    read = []

    def parsed(pictures):
        request = body(["ab"] * len(pictures), [[picture] for picture in pictures])
        return parse_generate(request, Limits(64, 272), lambda text: [1, 2], str, lambda ids, items: read.extend(items))

    for pictures in ([str(number) for number in range(64)], ["one"] * 100):
        assert len(parsed(pictures).sequences) == len(pictures)
    read.clear()
    with pytest.raises(RequestRefused, match="Image count 65 exceeds limit 64"):
        parsed([str(number) for number in range(65)])
    assert read == []


def test_images_whose_headers_do_not_fit_into_the_context_are_not_decoded(vision_url, ask):
    bomb, sound = data_url(png_of(112, 112, b"")), data_url(png(112, 112))  # 16 tokens each
    assert refusal(ask, vision_url, body([*PICTURE] * 114, [bomb] * 114)) == (
        "The input (2052 tokens) is longer than the model's context length (2048 tokens)."
    )
    assert "Could not decode" in refusal(ask, vision_url, body([*PICTURE] * 113, [bomb] * 113))
    status, answer = ask(vision_url, "/generate", body([*PICTURE] * 113, [sound] * 113))
    assert (status, answer["meta_info"]["image_tokens"]) == (200, 113 * 16)


def test_an_image_that_the_model_enlarges_counts_by_what_it_becomes(vision_url, ask, monkeypatch):
    one, other = (data_url(png(8, 8, seed)) for seed in (20, 21))  # the model takes at least 56 x 56
    monkeypatch.setattr(images, "MAX_REQUEST_PIXELS", 2 * 56 * 56 - 1)
    assert "together" in refusal(ask, vision_url, body(TWO, [one, other]))
    assert ask(vision_url, "/generate", body(TWO, [one, one]))[0] == 200


@pytest.mark.parametrize(
    "broken",
    [
        data_url(png(56, 56)[:-40]), data_url(png_of(56, 56, b"\x78\x9c")), data_url(png_of(0, 56, b"")),
        data_url(b"GIF89a"), data_url(b"\xff\xd8\xff\xe0"), "data:", "data:image/png;base64", "A", "=",
        data_url(png(2, 900)), data_url(b"%PDF-1.4"), data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_broken_image_is_refused_and_so_is_the_batch_it_is_in(vision_url, ask, broken):
    assert "at index 0" in refusal(ask, vision_url, body(ONE, [broken]))
    assert "at index 0" in refusal(ask, vision_url, body([ONE, ONE], [[A], [broken]]))
    assert ask(vision_url, "/generate", body(ONE, [A]))[0] == 200


@pytest.mark.parametrize(
    ("prompt", "pictures", "why"),
    [
        (TWO, [A], "2 image placeholders but 1"),
        ([65, START, PAD, PAD, PAD, PAD, END], [A], "one placeholder an image"),
        ([65, *PICTURE, PAD, 66], [A, A], "one placeholder an image"),
        ([PAD] * 3000, [A] * 3000, "longer than the model's context"),
        ([*PICTURE] * 500, [data_url(png(112, 112))] * 500, "longer than the model's context"),
    ],
    ids=range(5),
)
def test_placeholders_without_partners_are_refused(vision_url, ask, prompt, pictures, why):
    assert why in refusal(ask, vision_url, body(prompt, pictures))


@pytest.mark.parametrize("prompt", ["ab", "a<|image_pad|>b", "<|vision_start|><|vision_end|>"])
def test_images_that_no_placeholder_takes_are_dropped_unread(vision_url, ask, prompt):
    status, answer = ask(vision_url, "/generate", body(prompt, ["no image at all"]))
    assert status == 200
    assert "image_tokens" not in answer["meta_info"]


def test_a_model_of_text_alone_takes_no_images(engine_url, ask):
    assert "takes no images" in refusal(ask, engine_url, body("ab", [A]))
    assert ask(engine_url, "/generate", body("ab", []))[0] == 200


ITEM = st.sampled_from(
    [A, B, A.partition(",")[2], "", "x", "data:,", "http://a/b.png", None, 3, True, 2.5, {}, {"url": A}]
)
SHAPE = st.recursive(ITEM, lambda inner: st.lists(inner, max_size=3), max_leaves=5)
PROMPT = st.sampled_from([ONE, TWO, "ab", [65, *PICTURE], [65, PAD], [START, PAD, PAD, END]])


@settings(
    derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.one_of(PROMPT, st.lists(st.sampled_from([ONE, TWO, "ab"]), max_size=3)), SHAPE, st.sampled_from([None, 1, 2]))
def test_whatever_shape_images_come_in_they_are_answered_or_refused(vision_engine, ask, prompt, pictures, n):
    url, _ = vision_engine
    if not prompt:
        return
    request = body(prompt, pictures, max_new_tokens=1, **({} if n is None else {"n": n}))
    status, answer = ask(url, "/generate", request)
    assert status in (200, 400), answer
    if status == 400:
        assert set(answer) == {"error"}
        return
    prompts = prompt if isinstance(prompt[0], str) and isinstance(prompt, list) else [prompt]
    assert len(items(answer)) == len(prompts) * (n or 1)
    for item in items(answer):
        grown = item["meta_info"].get("image_tokens", 0)
        assert grown % 4 == 0
        assert item["meta_info"]["prompt_tokens"] >= grown


def test_what_was_not_used_for_longest_goes_first():
    held = RecentlyUsed(10, len)
    for name in "abc":
        held.put(name, name * 4)  # c does not fit beside both
    assert [held.get(name) for name in "abc"] == [None, "bbbb", "cccc"]
    held.get("b")
    held.put("d", "dddd")
    assert [held.get(name) for name in "bcd"] == ["bbbb", None, "dddd"]
    held.put("e", "e" * 11)
    assert held.get("e") is None
    assert held.bytes == 8
    held.clear()
    assert (held.get("b"), held.bytes) == (None, 0)
