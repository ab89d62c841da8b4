"""Training on images: computed as transformers does, images found by digest, the same bits for the same input."""

import io
from base64 import b64decode
from dataclasses import replace

import numpy as np
import pytest
import torch
from arm_paths import one_engine
from PIL import Image
from transformers import AutoTokenizer

from parity.engines.replaying import replaying_post
from parity.engines.vision import IMAGE_PAD, read_pixels
from parity.errors import InputError, UsageError
from parity.records.samples import Rollout, Sample
from parity.records.training_config import TrainingConfig
from parity.trainer.batching import response_logits
from parity.trainer.images import image_processor, images_of, pad_with_images
from parity.trainer.policy import (
    IMAGE_VOCABULARY,
    build_policy,
    build_tokenizer,
    image_policy_config,
    load_policy,
    policy_config,
    save_policy,
)
from parity.trainer.rollouts import generate_rollout, placeholders_of
from parity.trainer.tasks import get_task
from parity.trainer.trainer import Trainer
from parity.trainer.warm_start import WarmStartSettings, warm_start
from rollout_patch import ARMS, Capabilities
from rollout_patch.media import digest

CONFIG = TrainingConfig(groups_per_step=2, group_size=2, learning_rate=1e-2, threads=1)
SMALL = image_policy_config(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
MODEL = build_policy(0, SMALL)
TOKENIZER = build_tokenizer(images=True)
TASK = get_task("digit-sum")
PAD = IMAGE_VOCABULARY[IMAGE_PAD]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_policy(MODEL, tmp_path_factory.mktemp("images") / "checkpoint")


def batch_of(prompts, responses):
    """The prompts of any tasks, as the trainer lays them out."""
    views = [task.view(prompt) for task, prompt in prompts]
    images = {name: image for task, prompt in prompts for name, image in images_of(task, [prompt]).items()}
    return pad_with_images(
        SMALL,
        [TOKENIZER.encode(view.text) for view in views],
        [[digest(image) for image in view.images] for view in views],
        images,
        np.concatenate(responses),
        np.asarray([len(response) for response in responses]),
    )


def logits_by_transformers(view, response):
    """Of each response token, by the whole model alone, which is told nothing but tokens, pixels and grid."""
    pixels = read_pixels(image_processor(), view.images)
    size = [int(grid.prod()) // 4 for grid in pixels.grid]
    ids = []
    for token in TOKENIZER.encode(view.text):
        ids += [token] * (size.pop(0) if token == PAD else 1)
    tokens = torch.tensor([ids + response])
    kinds = torch.tensor([[int(token == PAD) for token in ids] + [0] * len(response)])
    out = MODEL(
        input_ids=tokens,
        pixel_values=pixels.patches,
        image_grid_thw=pixels.grid,
        mm_token_type_ids=kinds,
        use_cache=False,
    )
    return out.logits[0, len(ids) - 1 : -1]


def test_logits_of_a_mixed_batch_are_those_of_transformers_on_each_prompt_alone():
    tasks = [get_task(name) for name in ("digits", "digit-sum", "digit-sum-4", "digit-sum")]
    prompts = [(task, task.prompts(3, 0, 1)[0]) for task in tasks]
    responses = [TOKENIZER.encode(text) for text in ("7", "12,3", "1,2,3,4", "9,9")]
    tokens, is_response, images = batch_of([*prompts, (get_task("arithmetic"), "1+2=")], [*responses, [5, 6]])
    with torch.no_grad():
        found = response_logits(MODEL, tokens, is_response, images)
        expected = [
            logits_by_transformers(task.view(prompt), response)
            for (task, prompt), response in zip(prompts, responses, strict=True)
        ]
        text = torch.tensor([[*TOKENIZER.encode("1+2="), 5, 6]])
        expected.append(MODEL(input_ids=text, use_cache=False).logits[0, 3:-1])
    assert torch.allclose(found, torch.cat(expected), atol=1e-5)


def test_a_placeholder_that_the_policy_answers_with_is_a_token_and_no_image():
    prompt = TASK.prompts(0, 0, 1)[0]
    tokens, is_response, images = batch_of([(TASK, prompt)], [[PAD, 5]])
    assert images.is_image.sum() == 2 * 4
    assert torch.isfinite(response_logits(MODEL, tokens, is_response, images)).all()


def test_an_image_that_many_prompts_show_is_encoded_once():
    prompts = ["[image 3]+[image 3]=", "[image 4]+[image 3]=", "[image 3]+[image 4]="]
    images = batch_of([(TASK, prompt) for prompt in prompts], [[5]] * 3)[2]
    assert len(images.pixels.grid) == 2
    three, four = [0, 1, 2, 3], [4, 5, 6, 7]
    assert images.rows.tolist() == [*three, *three, *four, *three, *three, *four]


def samples_of(task=TASK, groups=2, size=2):
    random = np.random.default_rng(0)
    samples = []
    for group, prompt in enumerate(task.prompts(0, 0, groups)):
        view = task.view(prompt)
        for index in range(size):
            output = random.integers(2, 258, size=random.integers(1, 5)).tolist()
            sample = Sample(group, index, rollout_id=0, prompt_ids=TOKENIZER.encode(view.text), output_ids=output)
            sample.status, sample.extra = "completed", {"prompt": prompt}
            sample.media_sha256 = [digest(image) for image in view.images]
            sample.logprobs = (-random.random(len(output))).tolist()
            sample.loss_mask, sample.advantage = [1] * len(output), float(random.normal())
            samples.append(sample)
    return samples


def trained(checkpoint, samples, task=TASK):
    trainer = Trainer(checkpoint, CONFIG, task=task)
    metrics = trainer.train(Rollout.from_samples(samples))
    return metrics, {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


@pytest.mark.bits
def test_identical_rollouts_give_identical_bits_and_another_image_does_not(checkpoint):
    metrics, weights = trained(checkpoint, samples_of())
    again, same = trained(checkpoint, samples_of())
    assert metrics == again
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    swapped = samples_of()
    for first, second in zip(swapped[:2], swapped[2:], strict=True):
        first.media_sha256, second.media_sha256 = second.media_sha256, first.media_sha256
    other = trained(checkpoint, swapped)[0]
    assert other["train/loss"] != metrics["train/loss"]


def test_the_whole_encoder_is_trained(checkpoint):
    before = dict(load_policy(checkpoint).named_parameters())
    after = trained(checkpoint, samples_of())[1]
    still = [name for name in after if torch.equal(before[name], after[name])]
    assert any(name.startswith("model.visual.") for name in after)
    assert not [name for name in still if not name.endswith("k_proj.bias")]  # softmax is blind to a key's bias


@pytest.mark.bits
def test_training_goes_on_from_disk_bit_for_bit(checkpoint, tmp_path):
    rollout = Rollout.from_samples(samples_of())
    trainer = Trainer(checkpoint, CONFIG, task=TASK)
    trainer.train(rollout)
    trainer.save(tmp_path / "saved")
    resumed = Trainer(tmp_path / "saved", CONFIG, task=TASK)
    assert trainer.train(rollout) == resumed.train(rollout)


def test_what_is_shown_must_be_known_and_stand_where_a_placeholder_is(checkpoint, tmp_path):
    unknown, lost, nameless = samples_of(), samples_of(), samples_of()
    unknown[1].media_sha256 = ["f" * 64, unknown[1].media_sha256[1]]
    lost[2].media_sha256 = lost[2].media_sha256[:1]
    nameless[3].extra = {}
    for samples, words in (
        (unknown, "step 0: image ffffffffffff is none of the 4"),
        (lost, "step 0: 2 placeholders for 1 images"),
        (nameless, "step 0: group 1, slot 1: extra has no prompt"),
    ):
        with pytest.raises(InputError, match=words):
            trained(checkpoint, samples)
    blind = save_policy(build_policy(0, policy_config(hidden_size=32, intermediate_size=32)), tmp_path / "blind")
    with pytest.raises(InputError, match=r"step 0: .* 8 "):
        trained(blind, samples_of())
    with pytest.raises(UsageError, match="sees images"):
        Trainer(checkpoint, CONFIG)


def test_the_checkpoint_is_loaded_by_us_and_by_auto_tokenizer(checkpoint):
    text = TASK.view("[image 1]+[image 2]=").text
    auto = AutoTokenizer.from_pretrained(checkpoint)
    assert auto.encode(text) == TOKENIZER.encode(text)
    assert TOKENIZER.encode(text).count(PAD) == 2
    assert len(auto) == len(IMAGE_VOCABULARY) == SMALL.text_config.vocab_size
    loaded = load_policy(checkpoint).state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in MODEL.state_dict().items())


class Engine:
    """Answers every prompt alike, and keeps what it was asked."""

    def __init__(self):
        self.payloads = []

    async def __call__(self, payload, headers):
        self.payloads.append(payload)
        ids = payload["input_ids"]
        count = len(ids) if isinstance(ids[0], list) else payload["sampling_params"].get("n", 1)
        length = len(ids[0] if isinstance(ids[0], list) else ids)
        meta = {
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": length + 6,
            "completion_tokens": 1,
            "cached_tokens": 0,
            "weight_version": "v",
            "output_token_logprobs": [[-1.0, 9, None]],
        }
        outputs = [
            {"text": "7", "output_ids": [9], "meta_info": {"id": f"{len(self.payloads)}-{slot}", **meta}}
            for slot in range(count)
        ]
        return outputs if isinstance(ids[0], list) or count > 1 else outputs[0]


async def rollout(arm, post):
    return await generate_rollout(
        task=TASK,
        tokenizer=TOKENIZER,
        config=CONFIG,
        step=1,
        seed=4,
        arm=arm,
        paths=one_engine(post, Capabilities(seeded=True, seed_per_slot=True), placeholders=placeholders_of(TASK)),
        seeded=True,
    )


@pytest.mark.parametrize("arm", ARMS)
async def test_every_arm_asks_with_the_images_of_the_prompt_in_the_shape_that_the_engine_takes(arm):
    engine = Engine()
    result = await rollout(arm, engine)
    views = [TASK.view(prompt) for prompt in TASK.prompts(4, 1, 2)]
    copies = {"per-sample": 2, "batched": 1, "native": 1}[arm]
    assert len(engine.payloads) == 2 * copies
    for payload in engine.payloads:
        data = payload["image_data"]
        lists = [data] if arm == "per-sample" else data
        assert len(lists) == {"per-sample": 1, "batched": 2, "native": 1}[arm]
        shown = [[Image.open(io.BytesIO(b64decode(url.partition(",")[2]))).tobytes() for url in urls] for urls in lists]
        assert any(shown == [[image.tobytes() for image in view.images]] * len(lists) for view in views)
    for sample in result.rollout.samples():
        view = views[sample.group_index]
        assert sample.media_sha256 == [digest(image) for image in view.images]
        assert sample.prompt_ids == TOKENIZER.encode(view.text)
        assert sample.prompt_ids.count(PAD) == 2
    assert "base64" not in str([exchange.request for exchange in result.exchanges])
    assert "base64" not in str(result.rollout.table.to_pydict())


async def test_a_recording_without_its_images_answers_the_same_images_again():
    recorded = await rollout("per-sample", Engine())
    again = await rollout("native", replaying_post(recorded.exchanges))
    apart = ["arm", "cached_tokens"]
    assert again.rollout.table.drop_columns(apart).equals(recorded.rollout.table.drop_columns(apart))


@pytest.mark.bits
def test_a_warm_start_on_images_gives_the_same_bits_and_a_checkpoint_that_sees(tmp_path):
    brief = WarmStartSettings(steps=2, careful_steps=1, batch_size=4, threads=1)
    paths = [warm_start(TASK, tmp_path / name, settings=brief) for name in ("one", "other")]
    assert paths[0].name == paths[1].name
    assert (paths[0] / "model.safetensors").read_bytes() == (paths[1] / "model.safetensors").read_bytes()
    assert load_policy(paths[0]).config.model_type == "qwen2_5_vl"
    other = warm_start(replace(TASK, slip=0.9), tmp_path / "one", settings=brief)
    assert other.name != paths[0].name
