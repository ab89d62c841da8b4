"""Each fault of the engine does what its name says, and nothing before it is planted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from served import serve_here

from parity.cli.serve import ENGINE_FAULTS
from parity.engines.embedded.faults import FAULTS, TEMPERATURE_FACTOR, WRONG_BASE_FROM
from parity.engines.embedded.sampling import LOGPROB_GRID
from parity.engines.embedded.served import ServedModel

PROMPT = list(range(40, 46))


@contextmanager
def faulty(path: Path, name: str | None) -> Iterator[tuple[str, ServedModel]]:
    torch.set_num_threads(1)
    with serve_here(path, max_running=64) as (url, engine):
        if name is not None:
            FAULTS[name][1](engine)
        yield url, engine


@pytest.fixture
def drawn(ask: Any) -> Any:
    """(log-prob, token) of one seeded response, or of each of several."""

    def draw(url: str, prompt: list[int], count: int = 1, **params: Any) -> Any:
        each = [{"max_new_tokens": 8, "ignore_eos": True, **params, "sampling_seed": 7 + i} for i in range(count)]
        payload = {"input_ids": [prompt] * count, "sampling_params": each, "return_logprob": True}
        status, answer = ask(url, "/generate", payload)
        assert status == 200
        responses = [[tuple(one[:2]) for one in item["meta_info"]["output_token_logprobs"]] for item in answer]
        return responses if count > 1 else responses[0]

    return draw


@pytest.fixture
def scored(ask: Any) -> Any:
    """The log-probs that the engine gives a prompt's tokens from a place on."""

    def score(url: str, prompt: list[int], start: int = 0) -> Any:
        payload = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
        rows = ask(url, "/generate", {**payload, "logprob_start_len": start})[1]["meta_info"]["input_token_logprobs"]
        return np.array([value for value, *_ in rows[1:]])

    return score


def test_the_command_names_every_fault() -> None:
    assert tuple(FAULTS) == ENGINE_FAULTS


def test_weights_are_rounded_at_the_start_and_at_an_update(tiny_checkpoint: Path, other_checkpoint: Path) -> None:
    with faulty(tiny_checkpoint, "bfloat16-weights") as (_, engine):
        for path in (tiny_checkpoint, other_checkpoint):
            engine.model.load(path)
            on_disk = load_file(path / "model.safetensors")
            held = engine.model.weights()
            assert all(torch.equal(held[name], on_disk[name].bfloat16().double()) for name in on_disk)
    with faulty(tiny_checkpoint, "int8-weights") as (_, engine):
        weight = engine.model.weights()["model.layers.0.mlp.up_proj.weight"]
        assert max(len(row.unique()) for row in weight) <= 255
        off = (weight - load_file(tiny_checkpoint / "model.safetensors")["model.layers.0.mlp.up_proj.weight"]).abs()
        assert 0 < float(off.max()) <= float(weight.abs().max()) / 127


@pytest.mark.parametrize(
    ("name", "asked", "same_as"),
    [
        ("temperature-off", {"temperature": 0.7}, {"temperature": 0.7 * TEMPERATURE_FACTOR}),
        ("top-p-ignored", {"top_p": 0.5}, {"top_p": 1.0}),
    ],
)
def test_sampling_parameters_are_others(
    tiny_checkpoint: Path, drawn: Any, name: str, asked: dict[str, float], same_as: dict[str, float]
) -> None:
    with faulty(tiny_checkpoint, None) as (sound, _), faulty(tiny_checkpoint, name) as (url, _):
        assert drawn(url, PROMPT, 16, **asked) == drawn(sound, PROMPT, 16, **same_as)
        assert drawn(url, PROMPT, 16, **asked) != drawn(sound, PROMPT, 16, **asked)


def test_log_probs_are_those_of_temperature_one(tiny_checkpoint: Path, drawn: Any, scored: Any) -> None:
    with faulty(tiny_checkpoint, "logprobs-before-temperature") as (url, _):
        values, tokens = zip(*drawn(url, PROMPT, temperature=2.0), strict=True)
        again = scored(url, [*PROMPT, *tokens], len(PROMPT) - 1)
    assert np.abs(np.array(values) - again).max() <= LOGPROB_GRID
    with faulty(tiny_checkpoint, None) as (url, _):
        values, tokens = zip(*drawn(url, PROMPT, temperature=2.0), strict=True)
        assert np.abs(np.array(values) - scored(url, [*PROMPT, *tokens], len(PROMPT) - 1)).max() > 0.1


def test_the_rotary_base_is_wrong_from_a_position_on(tiny_checkpoint: Path, scored: Any) -> None:
    prompt = list(range(30, 60))
    with faulty(tiny_checkpoint, None) as (sound, _), faulty(tiny_checkpoint, "wrong-rotary-base") as (url, _):
        right, wrong = scored(sound, prompt), scored(url, prompt)
    # the log-prob of token i + 1 is given at position i
    assert np.array_equal(right[:WRONG_BASE_FROM], wrong[:WRONG_BASE_FROM])
    assert not np.isclose(right[WRONG_BASE_FROM:], wrong[WRONG_BASE_FROM:], atol=1e-3).all()


@pytest.mark.parametrize("name", ["stale-prefix-cache", "old-weights"])
def test_an_update_is_acknowledged_and_does_not_reach_all(
    tiny_checkpoint: Path, other_checkpoint: Path, drawn: Any, ask: Any, name: str
) -> None:
    update = {"model_path": str(other_checkpoint), "weight_version": "new"}
    found = {}
    for fault in (None, name):
        with faulty(tiny_checkpoint, fault) as (url, _):
            before = drawn(url, PROMPT)
            status, answer = ask(url, "/update_weights_from_disk", update)
            assert (status, answer["success"]) == (200, True)
            assert ask(url, "/model_info")[1]["weight_version"] == "new"
            found[fault] = (before, drawn(url, PROMPT))
    assert found[None][0] == found[name][0]
    assert found[name][1] != found[None][1]
    assert (found[name][1] == found[name][0]) is (name == "old-weights")


def test_a_batch_moves_log_probs_and_a_larger_one_tokens(tiny_checkpoint: Path, drawn: Any) -> None:
    with faulty(tiny_checkpoint, "batch-dependent") as (url, _):
        alone = [drawn(url, PROMPT)]

        def first_of(count: int) -> Any:
            return drawn(url, PROMPT, count)[0]

        assert first_of(8) == alone[0]
        assert first_of(9) != alone[0]
        assert [token for _, token in first_of(24)] == [token for _, token in alone[0]]
        assert [token for _, token in first_of(25)] != [token for _, token in alone[0]]
