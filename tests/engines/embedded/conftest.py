"""Checkpoints as the recorded engine served, and the embedded engine on them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from served import serve_here
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from parity.engines.embedded.served import ServedModel


def byte_tokenizer(*special: str) -> PreTrainedTokenizerFast:
    """256 bytes, the end of a turn and of a text, and more special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.add_special_tokens({"additional_special_tokens": list(special)})
    return fast


def save_tiny_checkpoint(path: Path, seed: int, **shape: int) -> Path:
    """A random Qwen2 with a byte tokenizer: 259 tokens, 272 embeddings, context 2048, as the recorded engine served."""
    fast = byte_tokenizer("<|im_start|>")
    fast.save_pretrained(path)
    config = Qwen2Config(
        vocab_size=len(fast) + 13,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
        **{
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 2048,
            **shape,
        },
    )
    _save_random(Qwen2ForCausalLM, config, seed, path)
    return path


def save_tiny_vision_checkpoint(path: Path, seed: int) -> Path:
    """A random Qwen2.5-VL as the recorded engine served: 264 tokens, 272 embeddings, 28 x 28 pixels an image token."""
    fast = byte_tokenizer(
        *("<|im_start|>", "<|vision_start|>", "<|vision_end|>"), *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
    )
    fast.save_pretrained(path)
    start, end, image, video = fast.convert_tokens_to_ids(
        ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    )
    text = {"vocab_size": len(fast) + 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    text |= {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 2048}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 64}
    vision |= {"window_size": 112, "fullatt_block_indexes": [1]}
    config = Qwen2_5_VLConfig(
        text_config=text | {"rope_parameters": rope, "eos_token_id": fast.eos_token_id, "bos_token_id": None},
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=False,
    )
    _save_random(Qwen2_5_VLForConditionalGeneration, config, seed, path)
    pixels = {"shortest_edge": 28 * 28 * 4, "longest_edge": 28 * 28 * 16}
    half = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (path / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "Qwen2VLImageProcessor", "size": pixels, **half})
    )
    return path


def _save_random(kind: Any, config: Any, seed: int, path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
        # Far from uniform, so that sampling parameters matter.
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data.mul_(6.0)
    model.save_pretrained(path)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint") / "one", seed=1)


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint") / "two", seed=2)


@pytest.fixture(scope="session")
def vision_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_vision_checkpoint(tmp_path_factory.mktemp("checkpoint") / "vision", seed=1)


@pytest.fixture(scope="session")
def other_vision_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_vision_checkpoint(tmp_path_factory.mktemp("checkpoint") / "vision-2", seed=2)


@pytest.fixture(scope="session")
def vision_engine(vision_checkpoint: Path) -> Iterator[tuple[str, ServedModel]]:
    """An engine that sees; its tests leave it idle and with the first weights."""
    torch.set_num_threads(1)
    with serve_here(vision_checkpoint, max_running=64) as served:
        yield served


@pytest.fixture
def vision_url(vision_engine: tuple[str, ServedModel], ask: Any) -> str:
    """It has seen nothing."""
    assert ask(vision_engine[0], "/flush_cache?timeout=20", {})[0] == 200
    return vision_engine[0]


@pytest.fixture(scope="session")
def shared_engine(tiny_checkpoint: Path) -> Iterator[tuple[str, ServedModel]]:
    """An engine that runs 12 sequences at once; its tests leave it idle, unpaused and with the first weights."""
    torch.set_num_threads(1)
    with serve_here(tiny_checkpoint, max_running=12) as served:
        yield served


@pytest.fixture
def engine_url(shared_engine: tuple[str, ServedModel]) -> str:
    return shared_engine[0]


@pytest.fixture(scope="session")
def ask():
    """`ask(url, path, body)` → (status, decoded JSON or text); a GET where there is no body."""

    def ask(url: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            request = urllib.request.Request(url + path, data=data, headers={"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=120) as response:
                status, text = response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except json.JSONDecodeError:
            return status, text

    return ask


@pytest.fixture(scope="session")
def serving():
    """`serving(path, max_running)`: a context of (URL, engine)."""
    return serve_here


@pytest.fixture(scope="session")
def save_checkpoint():
    """`save_checkpoint(path, seed, **shape)`."""
    return save_tiny_checkpoint
