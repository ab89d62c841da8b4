"""Images on the real SGLang, started once: answered as the embedded engine does, a group's image prefilled once."""

import asyncio

import pytest
from pictures import data_url, png
from real_engine import needs_sglang

from parity.conformance import check_engine, features, images
from parity.engines import open_engine
from parity.engines.vision import IMAGE_TEXT
from parity.findings import Status
from parity.trainer.policy import SIDE, build_policy, image_policy_config, save_policy
from rollout_patch import ARMS, SampleRequest, generate_group

pytestmark = needs_sglang

A, B = (data_url(png(SIDE, SIDE, seed)) for seed in (1, 2))
WIDE = data_url(png(2 * SIDE, SIDE, 3))


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """The real engine and the embedded one, with one checkpoint."""
    directory = tmp_path_factory.mktemp("images")
    checkpoint = save_policy(build_policy(1, image_policy_config()), directory / "policy")
    with open_engine("sglang", checkpoint, directory) as real, open_engine("embedded", checkpoint, directory) as ours:
        yield real, ours


async def answers(engine, bodies):
    async with engine.client() as client:
        await client.flush_cache()
        return [await client.generate(body) for body in bodies]


def body(prompt, pictures, **params):
    sampling = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True, **params}
    shape = pictures if params.get("n", 1) == 1 else [pictures]
    return {"text": prompt, "image_data": shape, "sampling_params": sampling, "return_logprob": True}


def counts(answer):
    items = answer if isinstance(answer, list) else [answer]
    return [
        [item["meta_info"].get(name) for name in ("prompt_tokens", "cached_tokens", "image_tokens")] for item in items
    ]


def test_both_engines_give_prompts_and_responses_the_same_log_probs(engines):
    prompts = [
        (f"{IMAGE_TEXT}=", [A]),
        (f"{IMAGE_TEXT}+{IMAGE_TEXT}=", [B, WIDE]),
        (f"x{IMAGE_TEXT}=", [WIDE]),
        ("12=", []),
    ]
    bodies = [body(*prompt) | {"logprob_start_len": 0} for prompt in prompts]
    real, ours = (asyncio.run(answers(engine, bodies)) for engine in engines)
    for one, other in zip(real, ours, strict=True):
        assert counts(one) == counts(other)
        assert one["output_ids"] == other["output_ids"]
        for name in ("input_token_logprobs", "output_token_logprobs"):
            rows = list(zip(one["meta_info"][name], other["meta_info"][name], strict=True))
            assert [first[1] for first, _ in rows] == [second[1] for _, second in rows]
            apart = [abs(first[0] - second[0]) for first, second in rows if first[0] is not None]
            assert max(apart) < 1e-4


def test_a_native_group_prefills_its_image_once_on_both(engines):
    asked = [body(f"{IMAGE_TEXT}+{IMAGE_TEXT}=", [A, B], n=8), *[body(f"n{IMAGE_TEXT}=", [B])] * 3]
    real, ours = (list(map(counts, asyncio.run(answers(engine, asked)))) for engine in engines)
    assert real == ours
    assert real[0] == [[14, 13, 8]] * 8
    assert [cached for [[_, cached, _]] in real[1:]] == [0, 7, 7]  # asked one by one, later ones find it


def test_every_arm_of_the_patch_takes_images(engines):
    class Adapter:
        def request(self, sample):
            return SampleRequest(
                {"max_new_tokens": 4}, text=f"{IMAGE_TEXT}{IMAGE_TEXT}=", media={"image_data": [A, WIDE]},
                options={"return_logprob": True},
            )  # fmt: skip

        def apply(self, sample, output):
            sample.append(output)

        def snapshot(self, sample):
            return list(sample)

        def restore(self, sample, snapshot):
            sample[:] = snapshot

    async def ask(engine, arm):
        async with engine.client() as client:

            async def post(payload, headers):
                return await client.generate(payload)

            samples = [[] for _ in range(4)]
            report = await generate_group(
                arm, samples, adapter=Adapter(), post=post, placeholders=["<|image_pad|>"], retries=0
            )
            return report.arm_used, report.requests, [sample[0].prompt_tokens for sample in samples]

    for arm in ARMS:
        seen = [asyncio.run(ask(engine, arm)) for engine in engines]
        assert seen[0] == seen[1] == (arm, 4 if arm == "per-sample" else 1, [17] * 4)


def test_the_cases_with_images_hold(engines):
    findings = check_engine(engines[0].url, cases=[*images.CASES, *features.CASES], control=True)
    failing = [(finding.check, finding.message) for finding in findings if finding.fails]
    assert failing == []
    assert {finding.check for finding in findings if finding.status is Status.FAIL} == {"engine_image_too_large"}
    assert findings[-1].status is Status.PASS  # it keeps no features, as parity starts it
