"""Names of metrics: what each source calls them, and slime's names for the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parity.errors import InputError, UsageError
from parity.metrics import Curve

VERL: Mapping[str, str] = {
    "critic/score/mean": "rollout/raw_reward",
    "critic/rewards/mean": "rollout/rewards",
    "critic/advantages/mean": "rollout/advantages",
    "critic/returns/mean": "rollout/returns",
    "response_length/mean": "rollout/response_len/mean",
    "response_length/max": "rollout/response_len/max",
    "response_length/min": "rollout/response_len/min",
    "response_length/clip_ratio": "rollout/truncated_ratio",
    "actor/loss": "train/loss",
    "actor/pg_loss": "train/pg_loss",
    "actor/pg_clipfrac": "train/pg_clipfrac",
    "actor/ppo_kl": "train/ppo_kl",
    "actor/kl_loss": "train/kl_loss",
    "actor/entropy": "train/entropy_loss",
    "actor/grad_norm": "train/grad_norm",
    "actor/lr": "train/lr-pg_0",
    "timing_s/gen": "perf/rollout_time",
    "timing_s/step": "perf/step_time",
}
"""verl's names. Its truncated ratio counts responses of the greatest length, and its throughput counts prompts too, so
that it keeps its own name."""

_TRL = {
    "reward": "rollout/raw_reward",
    "reward_std": "rollout/group_reward_std",
    "completions/mean_length": "rollout/response_len/mean",
    "completions/max_length": "rollout/response_len/max",
    "completions/min_length": "rollout/response_len/min",
    "completions/clipped_ratio": "rollout/truncated_ratio",
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "kl": "train/kl_loss",
    "entropy": "train/entropy_loss",
    "learning_rate": "train/lr-pg_0",
    "step_time": "perf/step_time",
}
TRL: Mapping[str, str] = {
    **_TRL,
    **{f"train/{name}": ours for name, ours in _TRL.items() if f"train/{name}" != ours},
}
"""Names of TRL's GRPO trainer, plain as in ``trainer_state.json`` and with ``train/`` as its trackers have them."""

MAPS: Mapping[str, Mapping[str, str]] = {"": {}, "verl": VERL, "trl": TRL}
"""The name maps by trainer; slime, Miles and Relax need none. Trackers hold anyone's runs, so that the map of theirs is
told by the names themselves."""

_TELLING = {
    "verl": {"critic/score/mean", "actor/grad_norm", "response_length/mean"},
    "trl": {"completions/mean_length"},
}


@dataclass(frozen=True, slots=True)
class Names:
    """Names that a user set, which go before those of `MAPS`; a name set to nothing leaves the metric out."""

    own: Mapping[str, str] = field(default_factory=dict)

    def apply(self, curves: Mapping[str, Curve], source: str) -> tuple[dict[str, Curve], tuple[str, ...]]:
        """The curves under slime's names, and a sentence on each that is left out.

        Args:
            curves: Curves under their source's names.
            source: The map of `MAPS` to use; empty to tell it by the names.
        """
        told = source or next((name for name, telling in _TELLING.items() if telling & curves.keys()), "")
        names = {**MAPS[told], **self.own}
        found: dict[str, Curve] = {}
        left_out = []
        for name, curve in curves.items():
            ours = names.get(name, name)
            if not ours:
                left_out.append(f"{name}: left out by the name map")
            elif ours in found:
                left_out.append(f"{name}: {ours} is already there under another name")
            else:
                found[ours] = Curve(curve.run, ours, curve.steps, curve.values, curve.rewound)
        return found, tuple(left_out)


def load_names(path: Path) -> Names:
    """The names in a JSON or TOML file: one table, from a source's name to ours, or to "" to leave a metric out.

    Raises:
        InputError: The file cannot be read, or is no such table.
        UsageError: It is TOML, and Python is too old to read it.
    """
    try:
        content = path.read_bytes()
        table = _toml(content.decode(), path) if path.suffix == ".toml" else json.loads(content)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not isinstance(table, dict):
        raise InputError(f"{path}: one table from names to names is expected, not {type(table).__name__}")
    for name, ours in table.items():
        if not isinstance(ours, str):
            raise InputError(f"{path}: {name!r} is mapped to {ours!r}, not to a name")
    return Names(table)


def _toml(text: str, path: Path) -> Any:
    if sys.version_info < (3, 11):
        raise UsageError(f"{path}: TOML is read from Python 3.11 on; write the names as JSON")
    import tomllib

    return tomllib.loads(text)
