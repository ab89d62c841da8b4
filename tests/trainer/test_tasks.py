"""The arithmetic task: prompts, reward and demonstrations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from parity.errors import UsageError
from parity.trainer.tasks import Arithmetic, get_task

TASK = Arithmetic()


@pytest.mark.parametrize(
    ("prompt", "response", "reward"),
    [
        ("7+5=", "12", 1.0),
        ("7+5+4=", "12,16", 1.0),
        ("7+5+4=", "16", 0.0),
        ("7+5+4=", "12,17", 0.0),
        ("7+5+4=", "12,16,", 0.0),
        ("7+5+4=", "12,16,20", 0.0),
        ("7+5+4=", " 12,16", 0.0),
        ("7+5=", "012", 0.0),
        ("7+5=", "", 0.0),
    ],
)
def test_reward_wants_the_running_sums_and_nothing_else(prompt, response, reward):
    assert TASK.reward(prompt, response) == reward


@settings(derandomize=True)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_prompts_are_a_function_of_seed_and_step(seed, step):
    prompts = TASK.prompts(seed, step, 16)
    TASK.prompts(seed, step + 1, 16)
    assert TASK.prompts(seed, step, 16) == prompts
    assert TASK.prompts(seed, step, 8) == prompts[:8]
    assert TASK.prompts(seed, step + 1, 16) != prompts
    assert TASK.prompts(seed + 1, step, 16) != prompts


def test_prompts_are_sums_of_two_and_of_three_digits():
    prompts = TASK.prompts(0, 0, 1000)
    terms = [[int(term) for term in prompt.removesuffix("=").split("+")] for prompt in prompts]
    assert {len(row) for row in terms} == {2, 3}
    assert {term for row in terms for term in row} == set(range(1, 10))


def test_careful_demonstrations_are_right_and_end_within_the_limit():
    for prompt, response in TASK.demonstrations(0, 0, 1000, careful=True):
        assert TASK.reward(prompt, response) == 1.0
        assert len(response) < TASK.max_new_tokens


def test_careless_demonstrations_are_right_as_often_as_slips_and_rambling_leave():
    demonstrations = TASK.demonstrations(0, 0, 20_000, careful=False)
    rewards = [TASK.reward(prompt, response) for prompt, response in demonstrations]
    expected = (0.5 + 0.5**2) / 2 * 0.7  # one addition or two, none slipped, and an end after the last
    assert sum(rewards) / len(rewards) == pytest.approx(expected, abs=0.015)  # four standard errors
    assert any(len(response) > TASK.max_new_tokens for _, response in demonstrations)


def test_an_unknown_task_is_refused_with_those_there_are():
    assert get_task("arithmetic") == TASK
    with pytest.raises(UsageError, match=r"'chess'.*arithmetic"):
        get_task("chess")


@pytest.mark.parametrize(
    ("prompt", "response", "reward"),
    [
        # the first ten images of the data set are 0 to 9
        ("[image 7]=", "7", 1.0),
        ("[image 7]=", "7+7=14", 0.0),
        ("[image 7]=", "", 0.0),
        ("[image 7]+[image 5]=", "7+5=12", 1.0),
        ("[image 7]+[image 5]=", "12", 0.0),
        ("[image 5]+[image 7]=", "7+5=12", 0.0),
        ("[image 9]+[image 8]+[image 7]+[image 6]=", "9+8=17+7=24+6=30", 1.0),
        ("[image 9]+[image 8]+[image 7]+[image 6]=", "9+8=17+7=24+6=31", 0.0),
    ],
)
def test_reward_on_images_wants_the_digits_and_their_running_sums(prompt, response, reward):
    assert get_task("digit-sum").reward(prompt, response) == reward


@pytest.mark.parametrize(("name", "count"), [("digits", 1), ("digit-sum", 2), ("digit-sum-4", 4)])
def test_prompts_show_images_and_are_a_function_of_seed_and_step(name, count):
    task = get_task(name)
    prompts = task.prompts(1, 2, 50)
    assert task.name == name
    assert get_task(name).prompts(1, 2, 50) == prompts
    assert task.prompts(1, 3, 50) != prompts != task.prompts(2, 2, 50)
    for prompt in prompts:
        view = task.view(prompt)
        assert len(view.images) == view.text.count("<|vision_start|><|image_pad|><|vision_end|>") == count
        assert not any(letter.isdigit() for letter in view.text), "the text must not say what the images show"


def test_an_image_is_the_data_set_s_own_in_squares_of_seven_pixels():
    (image,) = get_task("digits").view("[image 12]=").images
    pixels = np.asarray(image)
    assert pixels.shape == (56, 56, 3)
    assert (pixels == pixels[..., :1]).all()
    assert np.array_equal(pixels[::7, ::7, 0], load_digits().images[12] * 15)
    assert np.array_equal(pixels[6::7, 6::7, 0], load_digits().images[12] * 15)


@pytest.mark.parametrize("name", ["digits", "digit-sum", "digit-sum-4"])
def test_demonstrations_on_images_are_right_if_careful_and_leave_room_if_not(name):
    task = get_task(name)
    careful, careless = (task.demonstrations(0, 0, 400, careful=careful) for careful in (True, False))
    assert all(task.reward(*pair) == 1.0 and len(pair[1]) < task.max_new_tokens for pair in careful)
    assert 0 < sum(task.reward(*pair) for pair in careless) < 0.75 * len(careless)
    shown = {image for prompt, _ in careful for image in prompt.split("[image ")[1:]}
    assert len({image.partition("]")[0] for image in shown}) <= 64
