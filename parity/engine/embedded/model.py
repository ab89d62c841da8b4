"""A Qwen2 checkpoint in float64, run by transformers over a slab of key-value rows.

The slab has shape (layers, 2, rows, kv_heads, columns, head_dim): row r, column p holds the keys (0) and values (1)
of position p of the sequence in row r. Active rows are the first ones, so that a step reads views of it, never copies.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, Cache, PretrainedConfig

_ATTENTION = "parity_slab"
_SHAPE_FIELDS = (
    "model_type",
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
    "tie_word_embeddings",
    "use_sliding_window",
)


class CheckpointError(Exception):
    """A checkpoint cannot be served; the message says why."""


class Model:
    """The model of a checkpoint directory; `forward` is its only computation.

    Raises:
        CheckpointError: There is no Qwen2 checkpoint, or it uses sliding windows, or a weight is missing or not finite.
    """

    def __init__(self, path: Path) -> None:
        self.config = _read_config(path)
        try:
            answer: Any = AutoModelForCausalLM.from_pretrained(
                path, attn_implementation=_ATTENTION, local_files_only=True, output_loading_info=True
            )
        except Exception as error:  # transformers checks little and raises whatever a wrong file leads to
            raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from error
        model, loaded = answer
        if missing := sorted(loaded["missing_keys"]):  # which transformers would have filled at random
            raise CheckpointError(f"{path}: weights missing: {missing[:4]} ({len(missing)} in all)")
        self._lm: Any = model.double().eval().requires_grad_(False)
        self._check_weights(self._lm.state_dict(), path)
        self.context_length: int = self.config.max_position_embeddings
        self.vocabulary_size: int = self.config.vocab_size
        self.layers: int = self.config.num_hidden_layers
        self.kv_heads: int = self.config.num_key_value_heads
        heads = self.config.num_attention_heads
        self.head_dim: int = getattr(self.config, "head_dim", None) or self.config.hidden_size // heads
        self.token_bytes = self.layers * 2 * self.kv_heads * self.head_dim * 8
        self._keep_float64()
        parameters = inspect.signature(self._lm.model.forward).parameters
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
        self._lm.model.rotary_emb = _RotaryTable(*self._lm.model.rotary_emb(like, positions))

    def new_slab(self, rows: int, columns: int) -> torch.Tensor:
        """A slab of zeros, whose pages cost memory only once they are written."""
        shape = (self.layers, 2, rows, self.kv_heads, columns, self.head_dim)
        return torch.from_numpy(np.zeros(shape))

    @torch.inference_mode()
    def forward(self, ids: torch.Tensor, positions: torch.Tensor, slab: torch.Tensor) -> torch.Tensor:
        """Hidden states (B, S, hidden) of tokens (B, S) at positions (B, S) of the slab's first B rows.

        Their keys and values are written there. Each token sees the columns up to its own position; a token at a
        position that the sequence does not reach (padding) writes a column that nobody reads before it is written
        again.
        """
        visible = int(positions.max()) + 1
        hidden_columns = torch.arange(visible)[None, None, None, :] > positions[:, None, :, None]
        mask = torch.zeros(hidden_columns.shape, dtype=torch.float64).masked_fill_(hidden_columns, -torch.inf)
        cache = _SlabCache(slab, positions, visible)
        result = self._lm.model(
            input_ids=ids,
            position_ids=positions,
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
        _same_shape(self.config, _read_config(path), path)
        own = self._lm.state_dict()
        new = _read_safetensors(path)
        tied = {"lm_head.weight"} if self.config.tie_word_embeddings else set()
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

    def _check_weights(self, weights: dict[str, torch.Tensor], path: Path) -> None:
        for name, tensor in weights.items():
            if not tensor.is_floating_point():
                raise CheckpointError(f"{path}: {name} is of {tensor.dtype}, not floating point")
            if not torch.isfinite(tensor).all():
                raise CheckpointError(f"{path}: {name} holds a value that is not finite")
        head = weights.get("lm_head.weight") if self.config.tie_word_embeddings else None
        if head is not None and not torch.equal(head, weights["model.embed_tokens.weight"]):
            raise CheckpointError(f"{path}: lm_head.weight is tied to model.embed_tokens.weight, but differs from it")


class _SlabCache(Cache):
    """What transformers' layers see of the slab during one forward pass."""

    def __init__(self, slab: torch.Tensor, positions: torch.Tensor, visible: int) -> None:
        self.layers: list[Any] = []
        self._slab = slab
        self._positions = positions
        self._rows = torch.arange(len(positions))[:, None]
        self._visible = visible

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self._slab[layer_idx]
        keys[self._rows, :, self._positions] = key_states.transpose(1, 2)
        values[self._rows, :, self._positions] = value_states.transpose(1, 2)
        count = len(self._rows)
        return keys[:count, :, : self._visible], values[:count, :, : self._visible]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._visible


class _RotaryTable(nn.Module):
    """Rotary embedding looked up by position: the same cosines whatever the shape of the batch."""

    def __init__(self, cosines: torch.Tensor, sines: torch.Tensor) -> None:
        super().__init__()
        self._cosines = cosines[0].clone()
        self._sines = sines[0].clone()

    def forward(self, _: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cosines[position_ids], self._sines[position_ids]


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
    if config.model_type != "qwen2":
        raise CheckpointError(f"{path}: model_type is {config.model_type!r}; the embedded engine serves 'qwen2'")
    if getattr(config, "use_sliding_window", False):
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


def _same_shape(own: PretrainedConfig, new: PretrainedConfig, path: Path) -> None:
    for name in _SHAPE_FIELDS:
        before, after = getattr(own, name, None), getattr(new, name, None)
        if before != after:
            raise CheckpointError(f"{path}: {name} is {after!r}, not {before!r}")
