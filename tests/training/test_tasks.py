"""The arithmetic task: prompts, reward and demonstrations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import UsageError
from parity.training.tasks import Arithmetic, get_task

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
