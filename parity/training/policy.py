"""The policy: a small Qwen2 and a tokenizer of single bytes, as a Hugging Face checkpoint that SGLang also loads.

The model has the shape that `policy_config` gives and is saved in float32 safetensors. The tokenizer is the byte-level
one of Qwen2 without merges: one token a byte, so one a character of ASCII, and no text is unknown to it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

from parity.errors import InputError

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # bars would break our progress line

PAD, EOS = "<pad>", "<eos>"
VOCABULARY = {token: number for number, token in enumerate([PAD, EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
"""Token to id: the two special tokens, then the 256 bytes as the byte-level alphabet of GPT-2 writes them."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, of `VOCABULARY`; adds no special tokens by itself.

    The parts are those of transformers' `Qwen2Tokenizer`, because `AutoTokenizer` turns the tokenizer of every
    checkpoint of model type qwen2 into that class, whatever the checkpoint says.
    """
    tokenizer = Tokenizer(models.BPE(vocab=VOCABULARY, merges=[]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=EOS,  # never produced; unnamed, Qwen2Tokenizer would add its own beyond the model's vocabulary
        clean_up_tokenization_spaces=False,
        model_max_length=policy_config().max_position_embeddings,
    )


def policy_config(**overrides: int) -> Qwen2Config:
    """The default shape (0.3 million parameters, context 256), or another by naming what differs."""
    shape: dict[str, Any] = {
        "vocab_size": len(VOCABULARY),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    return Qwen2Config(
        **(shape | overrides),
        initializer_range=0.1,  # about hidden_size ** -0.5; with 0.02 so narrow a model learns several times slower
        tie_word_embeddings=True,
        pad_token_id=VOCABULARY[PAD],
        bos_token_id=None,
        eos_token_id=VOCABULARY[EOS],
    )


def build_policy(seed: int, config: Qwen2Config | None = None) -> Qwen2ForCausalLM:
    """A policy with random float32 weights, a function of seed and config; the global random state is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config or policy_config())


def load_policy(path: Path) -> Qwen2ForCausalLM:
    """The model of a checkpoint directory, in float32.

    Raises:
        InputError: The directory holds no checkpoint of a Qwen2 model, or one that lacks weights.
    """
    try:
        answer: Any = Qwen2ForCausalLM.from_pretrained(
            path, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers checks little and raises whatever a wrong file leads to
        raise InputError(f"{path}: no checkpoint of a Qwen2 model: {type(error).__name__}: {error}") from error
    model: Qwen2ForCausalLM
    model, loaded = answer
    if missing := sorted(loaded["missing_keys"]):  # which transformers would have filled at random
        raise InputError(f"{path}: weights missing: {missing[:4]} ({len(missing)} in all)")
    return model


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a checkpoint directory.

    Raises:
        InputError: The directory holds no tokenizer.
    """
    try:
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no tokenizer: {error}") from error
    return tokenizer


def save_policy(model: Qwen2ForCausalLM, path: Path) -> Path:
    """Writes model and tokenizer as a Hugging Face checkpoint directory, whole or not at all, over what was there."""
    with replacing_directory(path) as scratch:
        write_checkpoint(model, scratch)
    return path


def write_checkpoint(model: Qwen2ForCausalLM, directory: Path) -> None:
    """Writes `config.json`, `model.safetensors` (float32) and the tokenizer's files into a directory that exists."""
    model.save_pretrained(directory)
    build_tokenizer().save_pretrained(directory)


@contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """A scratch directory beside `path` that takes its name at the block's end, and vanishes if the block fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield scratch
        for item in scratch.iterdir():
            _flush(item)
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
            path.rename(old / path.name)
            scratch.rename(path)
            shutil.rmtree(old)
        else:
            scratch.rename(path)
        path.chmod(0o755)
        _flush(path.parent)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
