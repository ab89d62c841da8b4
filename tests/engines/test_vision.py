"""Prompts and pixels as a Qwen2.5-VL takes them, held to transformers' own."""

import io
from base64 import b64decode

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from parity.engines import vision
from parity.errors import InputError
from parity.trainer.group_sender import png_data_urls
from parity.trainer.policy import IMAGE_VOCABULARY, build_policy, image_policy_config, save_policy

SMALL = image_policy_config(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
MODEL = build_policy(0, SMALL)
START, END, PAD = (IMAGE_VOCABULARY[name] for name in (vision.VISION_START, vision.VISION_END, vision.IMAGE_PAD))


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    return vision.load_image_processor(save_policy(MODEL, tmp_path_factory.mktemp("vision") / "checkpoint"))


def picture(width, height, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(2, 257), max_size=3), st.integers(1, 4), st.integers(1, 4)), max_size=3),
    st.lists(st.integers(2, 257), max_size=3),
)
def test_positions_are_those_of_transformers_and_each_image_takes_its_tokens(parts, tail):
    ids = [token for text, _, _ in parts for token in (*text, START, PAD, END)] + tail
    grid = torch.tensor([(1, 2 * height, 2 * width) for _, height, width in parts], dtype=torch.int64).reshape(-1, 3)
    prompt = vision.read_prompt(SMALL, ids, grid)
    expected = [token for text, h, w in parts for token in (*text, START, *[PAD] * (h * w), END)] + tail
    assert prompt.ids.tolist() == expected
    if not parts:
        assert torch.equal(prompt.positions, torch.arange(len(ids)).expand(3, -1))
        return
    kinds = (prompt.ids == PAD).int()[None]
    positions, deltas = MODEL.model.get_rope_index(prompt.ids[None], mm_token_type_ids=kinds, image_grid_thw=grid)
    assert torch.equal(prompt.positions, positions[:, 0])
    assert prompt.next_position == len(prompt.ids) + int(deltas)


def test_two_images_side_by_side_are_two():
    grid = torch.tensor([[1, 2, 2], [1, 2, 4]])
    prompt = vision.read_prompt(SMALL, [5, PAD, PAD, 6], grid)
    assert prompt.ids.tolist() == [5, PAD, PAD, PAD, 6]
    assert prompt.positions.tolist() == [[0, 1, 2, 2, 4], [0, 1, 2, 2, 4], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("placeholders", [0, 1, 3])
def test_a_placeholder_without_image_and_an_image_without_one_are_refused(placeholders):
    grid = torch.tensor([[1, 4, 4], [1, 4, 4]])
    with pytest.raises(InputError, match=f"{placeholders} placeholders for 2 images"):
        vision.read_prompt(SMALL, [5, *[PAD] * placeholders], grid)


def test_pixels_are_normalised_and_cut_into_patches_without_resizing(processor):
    image = Image.new("RGB", (56, 28), (255, 0, 51))
    image.putpixel((14, 0), (0, 255, 255))  # the first pixel of the second patch
    pixels = vision.read_pixels(processor, [image, picture(56, 56)])
    assert pixels.grid.tolist() == [[1, 2, 4], [1, 4, 4]]
    assert pixels.patches.shape == (8 + 16, 3 * 2 * 14 * 14)
    colours = torch.tensor([1.0, -1.0, -0.6]).repeat_interleave(2 * 14 * 14)  # two frames of each colour
    assert torch.allclose(pixels.patches[0], colours)
    changed = (~torch.isclose(pixels.patches[1], colours)).nonzero()[:, 0]
    assert changed.tolist() == [14 * 14 * plane for plane in range(6)]


def test_what_is_not_a_multiple_of_a_token_is_resized(processor):
    assert vision.read_pixels(processor, [picture(60, 30)]).grid.tolist() == [[1, 2, 4]]


def test_a_directory_without_image_processor_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}: "):
        vision.load_image_processor(tmp_path)


async def test_images_travel_as_png_without_loss():
    images = [picture(56, 56), picture(28, 84, seed=1)]
    for image, url in zip(images, await png_data_urls("image_data", images), strict=True):
        head, _, data = url.partition(",")
        assert head == "data:image/png;base64"
        assert Image.open(io.BytesIO(b64decode(data))).tobytes() == image.tobytes()
