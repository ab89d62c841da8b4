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

REWARD, LENGTH = "rollout/raw_reward", "rollout/response_len/mean"
TRUNCATED, STEP_TIME, ROLLOUT_TIME = "rollout/truncated_ratio", "perf/step_time", "perf/rollout_time"
LOSS, PG_LOSS, GRAD_NORM, RATE = "train/loss", "train/pg_loss", "train/grad_norm", "train/lr-pg_0"
KL_LOSS, PPO_KL, ENTROPY, CLIPPED = "train/kl_loss", "train/ppo_kl", "train/entropy_loss", "train/pg_clipfrac"
GAP = "train/train_rollout_logprob_abs_diff"

_VERL = {
    "critic/score/mean": REWARD,
    "critic/rewards/mean": "rollout/rewards",
    "critic/advantages/mean": "rollout/advantages",
    "critic/returns/mean": "rollout/returns",
    "response_length/mean": LENGTH,
    "response_length/max": "rollout/response_len/max",
    "response_length/min": "rollout/response_len/min",
    "response_length/clip_ratio": TRUNCATED,
    "actor/loss": LOSS,
    "actor/pg_loss": PG_LOSS,
    "actor/pg_clipfrac": CLIPPED,
    "actor/ppo_kl": PPO_KL,
    "actor/kl_loss": KL_LOSS,
    "actor/entropy": ENTROPY,
    "actor/entropy_loss": ENTROPY,
    "actor/grad_norm": GRAD_NORM,
    "actor/lr": RATE,
    "timing_s/gen": ROLLOUT_TIME,
    "timing/gen": ROLLOUT_TIME,
    "perf/delta_time/rollout": ROLLOUT_TIME,
    "timing_s/step": STEP_TIME,
    "timing/step": STEP_TIME,
}
"""verl of three ages, and siiRL. Its truncated ratio counts responses of the greatest length, and its throughput counts
prompts too, so that it keeps its own name."""

_PLAIN = {
    "reward": REWARD,
    "reward_std": "rollout/group_reward_std",
    "completions/mean_length": LENGTH,
    "completion_length": LENGTH,
    "response_length": LENGTH,
    "mean_gen_tokens_per_sample": LENGTH,
    "completions/max_length": "rollout/response_len/max",
    "completions/min_length": "rollout/response_len/min",
    "completions/clipped_ratio": TRUNCATED,
    "truncated_ratio": TRUNCATED,
    "loss": LOSS,
    "policy_loss": PG_LOSS,
    "grad_norm": GRAD_NORM,
    "kl": KL_LOSS,
    "entropy": ENTROPY,
    "learning_rate": RATE,
    "lr": RATE,
    "actor_lr": RATE,
    "step_time": STEP_TIME,
    "sampling/sampling_logp_difference/mean": GAP,
}
"""TRL's, ms-swift's, OpenRLHF's and NeMo-RL's, plain as in their files and with ``train/`` as trackers have them."""

_OTHERS = {
    "timing/train/generation": ROLLOUT_TIME,
    "timing/train/total_step_time": STEP_TIME,
    "Avg Reward": REWARD,
    "Mean Generation Length": LENGTH,
    "Loss": LOSS,
    "Total step time": STEP_TIME,
    "reward/mean": REWARD,
    "completion_len/mean": LENGTH,
    "is_truncated/mean": TRUNCATED,
    "loss/mean": LOSS,
    "entropy/mean": ENTROPY,
    "optim/grad_norm": GRAD_NORM,
    "optim/lr": RATE,
    "time/step": STEP_TIME,
    "time/generate_completions": ROLLOUT_TIME,
    "Reward": REWARD,
    "Entropy": ENTROPY,
    "Grad. Norm": GRAD_NORM,
    "LR": RATE,
    "tokens/response_length/mean": LENGTH,
    "actor/total_loss": LOSS,
    "time/step_total": STEP_TIME,
    "ppo_actor/task_reward/avg": REWARD,
    "rollout/reward": REWARD,
    "ppo_actor/update/actor_loss/avg": PG_LOSS,
    "ppo_actor/update/grad_norm": GRAD_NORM,
    "ppo_actor/update/entropy/avg": ENTROPY,
    "ppo_actor/update/approx_kl/avg": PPO_KL,
    "ppo_actor/update/clip_ratio/avg": CLIPPED,
    "ppo_actor/update/lr": RATE,
    "timeperf/rollout": ROLLOUT_TIME,
}
"""NeMo-RL's timers and console, prime-rl's trackers and console, ROLL's and AReaL's."""

NAMES: Mapping[str, str] = {
    **_VERL,
    **_PLAIN,
    **{f"train/{name}": ours for name, ours in _PLAIN.items() if f"train/{name}" != ours},
    **_OTHERS,
}
"""Slime's name of each metric that another trainer calls otherwise; of two that are one metric, the first counts."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names that a user set, which go before those of `NAMES`; a name set to nothing leaves the metric out."""

    own: Mapping[str, str] = field(default_factory=dict)

    def apply(self, curves: Mapping[str, Curve]) -> tuple[dict[str, Curve], tuple[str, ...]]:
        """The curves under slime's names, and a sentence on each that is left out.

        Args:
            curves: Curves under their source's names.
        """
        ranks = {name: rank for rank, name in enumerate(NAMES, start=1)}
        ordered = sorted(curves, key=lambda name: (name not in self.own, ranks.get(name, 0)))
        names = {**NAMES, **self.own}
        kept: dict[str, Curve] = {}
        left_out = []
        for name in ordered:
            ours, curve = names.get(name, name), curves[name]
            if not ours:
                left_out.append(f"{name}: left out by the name map")
            elif ours in kept:
                left_out.append(f"{name}: {ours} is already there under another name")
            else:
                kept[ours] = Curve(curve.run, ours, curve.steps, curve.values, curve.rewound)
        return kept, tuple(left_out)


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
