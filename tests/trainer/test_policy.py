"""The policy's checkpoint: what is saved is what is loaded, by us and by AutoTokenizer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from parity.errors import InputError
from parity.trainer.policy import (
    EOS,
    PAD,
    VOCABULARY,
    build_policy,
    build_tokenizer,
    load_policy,
    load_tokenizer,
    policy_config,
    replacing_directory,
    save_policy,
)

TOKENIZER = build_tokenizer()
SMALL = policy_config(hidden_size=32, intermediate_size=32, num_hidden_layers=1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_policy(build_policy(0, SMALL), tmp_path_factory.mktemp("policy") / "checkpoint")


@settings(derandomize=True)
@given(st.text(alphabet=st.characters(min_codepoint=10, max_codepoint=126, exclude_categories=["Cc"])))
def test_ascii_text_is_one_token_a_character_and_comes_back(text):
    ids = TOKENIZER.encode(text)
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


def test_text_beyond_ascii_is_one_token_a_byte():
    ids = TOKENIZER.encode("é€")
    assert len(ids) == len("é€".encode())
    assert TOKENIZER.decode(ids) == "é€"


def test_special_tokens_are_skipped_when_asked():
    ids = [*TOKENIZER.encode("12"), VOCABULARY[EOS], VOCABULARY[PAD]]
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "12"


def test_auto_tokenizer_gives_the_same_ids(checkpoint):
    text = "7+15 =\n  22,é"
    auto = AutoTokenizer.from_pretrained(checkpoint)
    assert auto.encode(text) == TOKENIZER.encode(text) == load_tokenizer(checkpoint).encode(text)
    assert (len(auto), auto.eos_token_id, auto.pad_token_id) == (len(VOCABULARY), VOCABULARY[EOS], VOCABULARY[PAD])


def test_saved_weights_come_back_bit_for_bit(checkpoint):
    saved, loaded = build_policy(0, SMALL).state_dict(), load_policy(checkpoint).state_dict()
    assert saved.keys() == loaded.keys()
    assert all(value.dtype == torch.float32 and torch.equal(value, loaded[name]) for name, value in saved.items())


@pytest.mark.bits
def test_a_policy_is_a_function_of_its_seed_and_leaves_the_global_generator_alone():
    state = torch.get_rng_state()
    one, same, other = (build_policy(seed, SMALL).lm_head.weight for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(state, torch.get_rng_state())


def test_a_directory_without_a_checkpoint_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match=str(tmp_path)):
        load_policy(tmp_path)
    with pytest.raises(InputError, match=str(tmp_path)):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 64),
        ("config.json", b"[1]"),
        ("config.json", b'{"model_type": "qwen2", "hidden_size": "wide"}'),
    ],
)
def test_a_broken_file_is_an_input_error_that_names_the_checkpoint(tmp_path, name, content):
    save_policy(build_policy(0), tmp_path / "policy")
    (tmp_path / "policy" / name).write_bytes(content)
    with pytest.raises(InputError, match="policy: "):
        load_policy(tmp_path / "policy")


def test_a_missing_weight_is_an_input_error_and_not_filled_at_random(tmp_path):
    path = save_policy(build_policy(0), tmp_path / "policy") / "model.safetensors"
    weights = load_file(path)
    del weights["model.norm.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"\['model.norm.weight'\]"):
        load_policy(path.parent)


def test_a_failed_write_leaves_the_old_directory_and_no_scratch(tmp_path):
    path = tmp_path / "checkpoint"
    with replacing_directory(path) as scratch:
        (scratch / "file").write_text("old")
    with pytest.raises(RuntimeError), replacing_directory(path) as scratch:
        (scratch / "file").write_text("new")
        raise RuntimeError
    assert (path / "file").read_text() == "old"
    with replacing_directory(path) as scratch:
        (scratch / "file").write_text("new")
    assert (path / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
