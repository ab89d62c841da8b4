"""A Qwen2 or Qwen2.5-VL checkpoint in float64, run by transformers over a slab of key-value rows.

The slab has shape (layers, 2, rows, kv_heads, columns, head_dim): row r, column c holds the keys (0) and values (1)
of token c of the sequence in row r. Active rows are the first ones, so that a step reads views of it, never copies.
A token's column is not always its position: an image of many tokens takes few positions.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AttentionInterface,
    AutoConfig,
    Cache,
    PretrainedConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2ForCausalLM,
)

_MODELS: dict[str, Any] = {"qwen2": Qwen2ForCausalLM, "qwen2_5_vl": Qwen2_5_VLForConditionalGeneration}
_ATTENTION = "parity_slab"
_SHAPE_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "max_position_embeddings",
    "use_sliding_window",
)


_SHAPE_FIELDS_OF_ALL = (
    *("model_type", "tie_word_embeddings", "vision_config"),
    *("image_token_id", "vision_start_token_id", "vision_end_token_id"),
)


class CheckpointError(Exception):
    """A checkpoint cannot be served; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What a pass over prompts with images needs beside ids (B, S).

    `positions` (3, B, S) are those of the rotary embedding, in time, height and width. Tokens where `is_image` (B, S)
    have the `features` (M, hidden) in the place of their embeddings, in reading order.
    """

    positions: torch.Tensor
    is_image: torch.Tensor
    features: torch.Tensor


class Model:
    """The model of a checkpoint directory: `encode_image`, and `forward` over tokens.

    `config` is that of the text model, and `whole_config` that of the checkpoint.

    Raises:
        CheckpointError: There is no Qwen2 or Qwen2.5-VL checkpoint, or it uses sliding windows, or a weight is missing
        or not finite.
    """

    def __init__(self, path: Path) -> None:
        self.whole_config: Any = _read_config(path)
        self.config: Any = self.whole_config.get_text_config()
        self.has_vision = self.whole_config is not self.config
        attention: Any = {"text_config": _ATTENTION, "vision_config": "sdpa"} if self.has_vision else _ATTENTION
        try:
            answer: Any = _MODELS[self.whole_config.model_type].from_pretrained(
                path, attn_implementation=attention, local_files_only=True, output_loading_info=True
            )
        except Exception as error:  # transformers checks little and raises whatever a wrong file leads to
            raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from error
        model, loaded = answer
        if missing := sorted(loaded["missing_keys"]):  # which transformers would have filled at random
            raise CheckpointError(f"{path}: weights missing: {missing[:4]} ({len(missing)} in all)")
        self._lm: Any = model.double().eval().requires_grad_(False)
        self._decoder: Any = self._lm.model.language_model if self.has_vision else self._lm.model
        self._check_weights(self.weights(), path)
        self.context_length: int = self.config.max_position_embeddings
        self.vocabulary_size: int = self.config.vocab_size
        self.layers: int = self.config.num_hidden_layers
        self.kv_heads: int = self.config.num_key_value_heads
        heads = self.config.num_attention_heads
        self.head_dim: int = getattr(self.config, "head_dim", None) or self.config.hidden_size // heads
        self.token_bytes = self.layers * 2 * self.kv_heads * self.head_dim * 8
        self._keep_float64()
        parameters = inspect.signature(self._decoder.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"

    def _keep_float64(self) -> None:
        # transformers' RMSNorm and rotary embedding round through float32, which would lift the effect of the batch's
        # shape to 1e-7.
        for name, module in list(self._lm.named_modules()):
            if type(module).__name__.endswith("RMSNorm"):
                norm = nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon, dtype=torch.float64)
                norm.weight = module.weight
                self._lm.set_submodule(name, norm)
        positions = torch.arange(self.context_length)[None]
        like = torch.empty(0, dtype=torch.float64)
        # A position that is the same in all three dimensions has one angle a dimension of the head, as without vision.
        positions = positions.expand(3, 1, -1) if self.has_vision else positions
        sections = self.config.rope_parameters["mrope_section"] if self.has_vision else []
        axes = [number % 3 for number, width in enumerate(sections) for _ in range(width)] * 2
        cosines, sines = self._decoder.rotary_emb(like, positions)
        self._decoder.rotary_emb = _RotaryTable(cosines, sines, axes)

    def rotary_tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines that the model looks up, (..., positions, head_dim), as they are."""
        return self._decoder.rotary_emb.cosines, self._decoder.rotary_emb.sines

    def new_slab(self, rows: int, columns: int) -> torch.Tensor:
        """A slab of zeros, whose pages cost memory only once they are written."""
        shape = (self.layers, 2, rows, self.kv_heads, columns, self.head_dim)
        return torch.from_numpy(np.zeros(shape))

    @torch.inference_mode()
    def encode_image(self, patches: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        """Features (tokens, hidden) of one image, given as patches (P, values a patch) and their grid (1, 3).

        An image is encoded by itself, so that nothing else in a batch can move its features.
        """
        features: torch.Tensor = self._lm.model.visual(patches.double(), grid_thw=grid).pooler_output
        return features

    @torch.inference_mode()
    def forward(
        self,
        ids: torch.Tensor,
        columns: torch.Tensor,
        slab: torch.Tensor,
        *,
        positions: torch.Tensor | None = None,
        sight: Sight | None = None,
    ) -> torch.Tensor:
        """Hidden states (B, S, hidden) of tokens (B, S) in columns (B, S) of the slab's first B rows.

        Their keys and values are written there. Each token sees the columns up to its own; a token in a column that
        the sequence does not reach (padding) writes what nobody reads before it is written again. `positions` (B, S)
        are those of the rotary embedding, the columns themselves where not given; with images, `sight` has them.
        """
        visible = int(columns.max()) + 1
        hidden_columns = torch.arange(visible)[None, None, None, :] > columns[:, None, :, None]
        mask = torch.zeros(hidden_columns.shape, dtype=torch.float64).masked_fill_(hidden_columns, -torch.inf)
        cache = _SlabCache(slab, columns, visible)
        what: dict[str, torch.Tensor] = {"input_ids": ids}
        if sight is not None:
            positions = sight.positions
            embeddings = self._decoder.embed_tokens(ids)
            embeddings[sight.is_image] = sight.features
            what = {"inputs_embeds": embeddings}
        result = self._decoder(
            **what,
            position_ids=columns if positions is None else positions,
            attention_mask={"full_attention": mask},
            use_cache=True,
            **{self._cache_argument: cache},
        )
        hidden: torch.Tensor = result.last_hidden_state
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Logits (N, V) of hidden states (N, hidden)."""
        values: np.ndarray[Any, np.dtype[np.float64]] = self._lm.lm_head(hidden).numpy()
        return values

    def load(self, path: Path) -> None:
        """Takes the weights of another checkpoint of the same shape; on an error the old weights are untouched.

        Raises:
            CheckpointError: The directory holds no safetensors checkpoint, or one of another shape, or a weight is
            not finite.
        """
        _same_shape(self.whole_config, _read_config(path), path)
        own = self.weights()
        new = {_name_on_disk(name): tensor for name, tensor in _read_safetensors(path).items()}
        tied = {"lm_head.weight"} if self.whole_config.tie_word_embeddings else set()
        if wrong := sorted((set(own) ^ set(new)) - tied):
            raise CheckpointError(f"{path}: weights missing or not known: {wrong[:4]} ({len(wrong)} in all)")
        for name in new.keys() & own.keys():
            if new[name].shape != own[name].shape:
                raise CheckpointError(
                    f"{path}: {name} has shape {tuple(new[name].shape)}, not {tuple(own[name].shape)}"
                )
        self._check_weights(new, path)
        with torch.inference_mode():
            for name in new.keys() & own.keys():
                own[name].copy_(new[name])

    def digests(self) -> dict[str, str]:
        """The SHA-256 of each weight by its name on disk."""
        return {name: sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in self.weights().items()}

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights themselves, by their name on disk."""
        return {_name_on_disk(name): tensor for name, tensor in self._lm.state_dict().items()}

    def _check_weights(self, weights: dict[str, torch.Tensor], path: Path) -> None:
        for name, tensor in weights.items():
            if not tensor.is_floating_point():
                raise CheckpointError(f"{path}: {name} is of {tensor.dtype}, not floating point")
            if not torch.isfinite(tensor).all():
                raise CheckpointError(f"{path}: {name} holds a value that is not finite")
        head = weights.get("lm_head.weight") if self.whole_config.tie_word_embeddings else None
        if head is not None and not torch.equal(head, weights["model.embed_tokens.weight"]):
            raise CheckpointError(f"{path}: lm_head.weight is tied to model.embed_tokens.weight, but differs from it")


class _SlabCache(Cache):
    """What transformers' layers see of the slab during one forward pass."""

    def __init__(self, slab: torch.Tensor, columns: torch.Tensor, visible: int) -> None:
        self.layers: list[Any] = []
        self._slab = slab
        self._columns = columns
        self._rows = torch.arange(len(columns))[:, None]
        self._visible = visible

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._slab[layer_idx]
        keys[self._rows, :, self._columns] = key_states.transpose(1, 2)
        values[self._rows, :, self._columns] = value_states.transpose(1, 2)
        count = len(self._rows)
        return keys[:count, :, : self._visible], values[:count, :, : self._visible]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._visible


class _RotaryTable(nn.Module):
    """Rotary embedding looked up by position: the same cosines whatever the shape of the batch.

    Positions are (B, S), or with `axes` (3, B, S): these say for each dimension of the head whether time, height or
    width turns it (multimodal rotary embedding, Wang et al. 2024, "Qwen2-VL").
    """

    def __init__(self, cosines: torch.Tensor, sines: torch.Tensor, axes: list[int]) -> None:
        super().__init__()
        self.cosines = cosines[0].clone()
        self.sines = sines[0].clone()
        self._axes = axes

    def forward(self, _: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not self._axes:
            return self.cosines[position_ids], self.sines[position_ids]
        places = position_ids[self._axes].movedim(0, -1)
        dimensions = torch.arange(len(self._axes))
        return self.cosines[places, dimensions], self.sines[places, dimensions]


def _attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Grouped-query attention (Ainslie et al. 2023): the queries of a group share one product with its keys."""
    batch, heads, steps, width = query.shape
    kv_heads, columns = key.shape[1:3]
    grouped = query.reshape(batch * kv_heads, -1, width) * scaling
    scores = torch.bmm(grouped, key.reshape(-1, columns, width).transpose(1, 2))
    weights = scores.view(batch, kv_heads, -1, steps, columns).add_(attention_mask[:, :, None]).softmax(-1)
    mixed = torch.bmm(weights.view(batch * kv_heads, -1, columns), value.reshape(-1, columns, width))
    return mixed.view(batch, heads, steps, width).transpose(1, 2), None


AttentionInterface.register(_ATTENTION, _attention)


def _read_config(path: Path) -> PretrainedConfig:
    try:
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path}: no config.json there")
        config: PretrainedConfig = AutoConfig.from_pretrained(path, local_files_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # as above
        raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from error
    if config.model_type not in _MODELS:
        served = " and ".join(map(repr, _MODELS))
        raise CheckpointError(f"{path}: model_type is {config.model_type!r}; the embedded engine serves {served}")
    if getattr(config.get_text_config(), "use_sliding_window", False):
        raise CheckpointError(f"{path}: use_sliding_window is set; the embedded engine has full attention alone")
    return config


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    shards = sorted(path.glob("*.safetensors"))
    if not shards:
        raise CheckpointError(f"{path}: no *.safetensors there")
    try:
        return {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def _name_on_disk(name: str) -> str:
    """What a weight is called in files: transformers has other names for those of Qwen2.5-VL in memory."""
    return name.replace("model.language_model.", "model.", 1).replace("model.visual.", "visual.", 1)


def _same_shape(own: PretrainedConfig, new: PretrainedConfig, path: Path) -> None:
    for name, before in _shape(own).items():
        after = _shape(new).get(name)
        if before != after:
            raise CheckpointError(f"{path}: {name} is {after!r}, not {before!r}")


def _shape(config: PretrainedConfig) -> dict[str, Any]:
    whole = {name: getattr(config, name, None) for name in _SHAPE_FIELDS_OF_ALL}
    vision = whole["vision_config"]
    text = {name: getattr(config.get_text_config(), name, None) for name in _SHAPE_FIELDS}
    return text | whole | {"vision_config": vision and _without(vision.to_dict(), "dtype", "initializer_range")}


def _without(items: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: item for name, item in items.items() if name not in names}
