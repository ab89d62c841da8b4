"""The policy: a small Qwen2 and a tokenizer of single bytes, as a Hugging Face checkpoint that SGLang also loads.

The model has the shape that `policy_config` gives and is saved in float32 safetensors. The tokenizer is the byte-level
one of Qwen2 without merges: one token a byte, so one a character of ASCII, and no text is unknown to it. A policy that
also sees images is a small Qwen2.5-VL (`image_policy_config`), whose tokenizer has the special tokens of images too.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import (
    AutoConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.utils import logging as transformers_logging

from parity.engines import vision
from parity.errors import InputError

Policy = Qwen2ForCausalLM | Qwen2_5_VLForConditionalGeneration
PolicyConfig = Qwen2Config | Qwen2_5_VLConfig

transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # bars would break our progress line

PAD, EOS = "<pad>", "<eos>"
VOCABULARY = {token: number for number, token in enumerate([PAD, EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
"""Token to id: the two special tokens, then the 256 bytes as the byte-level alphabet of GPT-2 writes them."""

IMAGE_VOCABULARY = VOCABULARY | {token: len(VOCABULARY) + n for n, token in enumerate(vision.SPECIAL_TOKENS)}
"""`VOCABULARY` and the special tokens of images after it."""

SIDE = 56
"""Pixels of an image's sides, which a policy that sees images makes four tokens of."""

IMAGE_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
    "patch_size": 14,  # as of every Qwen2.5-VL: SGLang passes by the encoder for patches of another size
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 28**2, "longest_edge": 224**2},
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
}
"""What turns images into patches; an image whose sides are multiples of 28 pixels, up to 224, stays as it is."""


def build_tokenizer(*, images: bool = False) -> PreTrainedTokenizerFast:
    """One token a byte, of `VOCABULARY`, and one an image's special token; adds no special tokens by itself.

    The parts are those of transformers' `Qwen2Tokenizer`, because `AutoTokenizer` turns the tokenizer of every
    checkpoint of model types qwen2 and qwen2_5_vl into that class, whatever the checkpoint says.
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
        **({"extra_special_tokens": list(vision.SPECIAL_TOKENS)} if images else {}),
    )


def policy_config(**overrides: int) -> Qwen2Config:
    """The default shape (0.3 million parameters, context 256), or another by naming what differs."""
    return Qwen2Config(**_text_shape(VOCABULARY, overrides), tie_word_embeddings=True)


def image_policy_config(**overrides: int) -> Qwen2_5_VLConfig:
    """The default shape with two layers of vision (0.6 million parameters), or another by naming what differs in text.

    An image of `SIDE` pixels is 16 patches and four tokens; its patches all see each other.
    """
    text = _text_shape(IMAGE_VOCABULARY, overrides)
    half_head = text["hidden_size"] // text["num_attention_heads"] // 2
    section = half_head * 3 // 8
    return Qwen2_5_VLConfig(
        text_config={
            **text,
            "rope_scaling": {
                "type": "mrope",
                "rope_type": "default",
                "mrope_section": [half_head - 2 * section, section, section],
            },
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "out_hidden_size": text["hidden_size"],
            "patch_size": IMAGE_PROCESSOR["patch_size"],
            "spatial_merge_size": IMAGE_PROCESSOR["merge_size"],
            "temporal_patch_size": IMAGE_PROCESSOR["temporal_patch_size"],
            "window_size": SIDE,
            "fullatt_block_indexes": [1],
            "initializer_range": text["initializer_range"],
        },
        image_token_id=IMAGE_VOCABULARY[vision.IMAGE_PAD],
        video_token_id=IMAGE_VOCABULARY[vision.VIDEO_PAD],
        vision_start_token_id=IMAGE_VOCABULARY[vision.VISION_START],
        vision_end_token_id=IMAGE_VOCABULARY[vision.VISION_END],
        tie_word_embeddings=True,
    )


def _text_shape(vocabulary: Mapping[str, int], overrides: Mapping[str, int]) -> dict[str, Any]:
    shape = {
        "vocab_size": len(vocabulary),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
    }
    return {
        **shape,
        **overrides,
        "initializer_range": 0.1,  # about hidden_size ** -0.5; with 0.02 so narrow a model learns several times slower
        "pad_token_id": vocabulary[PAD],
        "bos_token_id": None,
        "eos_token_id": vocabulary[EOS],
    }


def build_policy(seed: int, config: PolicyConfig | None = None) -> Policy:
    """A policy with random float32 weights, a function of seed and config; the global random state is untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(config, Qwen2_5_VLConfig):
            return Qwen2_5_VLForConditionalGeneration(config)
        return Qwen2ForCausalLM(config or policy_config())


def load_policy(path: Path) -> Policy:
    """The model of a checkpoint directory, in float32: a Qwen2, or a Qwen2.5-VL.

    Raises:
        InputError: The directory holds no checkpoint of such a model, or one that lacks weights.
    """
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        kind = Qwen2_5_VLForConditionalGeneration if config.model_type == vision.MODEL_TYPE else Qwen2ForCausalLM
        answer: Any = kind.from_pretrained(path, dtype=torch.float32, local_files_only=True, output_loading_info=True)
    except Exception as error:  # transformers checks little and raises whatever a wrong file leads to
        raise InputError(f"{path}: no checkpoint of a Qwen2 model: {type(error).__name__}: {error}") from error
    model: Policy
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


def save_policy(model: Policy, path: Path) -> Path:
    """Writes model and tokenizer as a Hugging Face checkpoint directory, whole or not at all, over what was there."""
    with replacing_directory(path) as scratch:
        write_checkpoint(model, scratch)
    return path


def write_checkpoint(model: Policy, directory: Path) -> None:
    """Writes `config.json`, `model.safetensors` (float32), tokenizer and image processor into an existing directory."""
    model.save_pretrained(directory)
    images = isinstance(model, Qwen2_5_VLForConditionalGeneration)
    build_tokenizer(images=images).save_pretrained(directory)
    if images:
        (directory / "preprocessor_config.json").write_text(json.dumps(IMAGE_PROCESSOR, indent=2))


@contextmanager
def replacing_directory(path: Path) -> Iterator[Path]:
    """A scratch directory beside `path` that takes its name at the block's end, and vanishes if the block fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        yield scratch
        for item in scratch.iterdir():
            _flush(item)
        _flush(scratch)
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
