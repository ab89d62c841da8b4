"""The GRPO trainer: a rollout in, optimizer steps made, the metrics out; the same bits for the same input."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from transformers import Qwen2_5_VLConfig

from parity.errors import InputError, TrainingError, UsageError
from parity.findings import quantity
from parity.records.samples import Rollout
from parity.records.training_config import TrainingConfig
from parity.trainer import grpo
from parity.trainer.batching import ImageTensors, pad, response_logits
from parity.trainer.determinism import deterministic
from parity.trainer.images import images_of_rollout, pad_with_images
from parity.trainer.policy import PolicyConfig, load_policy, replacing_directory, write_checkpoint
from parity.trainer.tasks import Task

OPTIMIZER_FILE, STATE_FILE = "optimizer.pt", "trainer.json"


@dataclass(frozen=True, slots=True)
class Batch:
    """A rollout as tensors. B samples with trained tokens, padded on the right to L; T response tokens, laid flat.

    Attributes:
        tokens: (B, L) int64, prompt and response, then padding.
        is_response: (B, L) bool, True on response tokens; T of them.
        rollout_log_probs: (T,) float32, the engine's.
        advantages: (T,) float32.
        weights: (T,) float32, of `grpo.sample_mean_weights`.
        images: What the prompts show; `None` where they are text alone.
    """

    tokens: Tensor
    is_response: Tensor
    rollout_log_probs: Tensor
    advantages: Tensor
    weights: Tensor
    images: ImageTensors | None = None

    @property
    def targets(self) -> Tensor:
        """The response tokens, (T,)."""
        return self.tokens[self.is_response]


class Trainer:
    """A policy, its optimizer and the number of rollouts they have been trained on (`step`).

    Args:
        checkpoint: A Hugging Face checkpoint to start from, or a directory that `save` wrote: it goes on bit for bit.
        config: Settings; a resumed run needs those it had.
        reference: The checkpoint that the KL is measured against.
        task: Shows again the images of a policy that sees them; needed for those alone.

    Raises:
        InputError: The checkpoint cannot be read.
        UsageError: A KL is asked for without a reference, or a policy that sees images has no task.
    """

    def __init__(
        self, checkpoint: Path, config: TrainingConfig, reference: Path | None = None, task: Task | None = None
    ) -> None:
        if config.kl_coefficient and reference is None:
            raise UsageError(f"kl_coefficient is {config.kl_coefficient}, which needs a reference checkpoint")
        self.config = config
        self._task = task
        self.model = load_policy(checkpoint)
        if isinstance(self.model.config, Qwen2_5_VLConfig) and task is None:
            raise UsageError(f"{checkpoint}: a policy that sees images is trained with its task, which has them")
        self.reference = load_policy(reference) if reference is not None else None
        self.step = 0
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        if (checkpoint / STATE_FILE).exists():
            self._resume(checkpoint)

    def train(self, rollout: Rollout) -> dict[str, float]:
        """Trains on one rollout; the metrics are means over the updates made.

        Returns:
            Metrics under slime's names: train/loss, train/pg_loss, train/pg_clipfrac, train/ppo_kl,
            train/entropy_loss, train/grad_norm (before clipping), train/train_rollout_logprob_abs_diff (of the first
            update, where the model is the one that sampled), train/lr-pg_0, and train/kl_loss with a reference.

        Raises:
            InputError: A sample lacks what training needs, or its lengths disagree.
            TrainingError: A metric or the gradient is not finite, or no sample can be trained on.
        """
        with deterministic(self.config.threads):
            batch = make_batch(rollout, self.step, self.model.config, self._task)
            reference = self._reference_log_probs(batch)
            updates = [self._update(batch, reference) for _ in range(self.config.updates_per_step)]
        self.step += 1
        metrics = {name: sum(update[name] for update in updates) / len(updates) for name in updates[0]}
        name = "train/train_rollout_logprob_abs_diff"
        return {**metrics, name: updates[0][name], "train/lr-pg_0": self.config.learning_rate}

    def save(self, path: Path) -> None:
        """Writes weights, tokenizer, optimizer and step count to one directory, whole or not at all.

        The directory is a Hugging Face checkpoint, so an engine can load it as well.
        """
        with replacing_directory(path) as scratch:
            write_checkpoint(self.model, scratch)
            torch.save(self._optimizer.state_dict(), scratch / OPTIMIZER_FILE)
            (scratch / STATE_FILE).write_text(json.dumps({"step": self.step}))

    def _resume(self, checkpoint: Path) -> None:
        try:
            self.step = int(json.loads((checkpoint / STATE_FILE).read_text())["step"])
            self._optimizer.load_state_dict(torch.load(checkpoint / OPTIMIZER_FILE, weights_only=True))
        except (OSError, ValueError, LookupError, TypeError, EOFError, RuntimeError, UnpicklingError) as error:
            raise InputError(f"{checkpoint}: not a checkpoint to resume from: {error}") from error

    def _reference_log_probs(self, batch: Batch) -> Tensor | None:
        if self.reference is None:
            return None
        with torch.no_grad():
            logits = response_logits(self.reference, batch.tokens, batch.is_response, batch.images)
            return grpo.token_log_probs(logits, batch.targets, self.config.temperature)

    def _update(self, batch: Batch, reference: Tensor | None) -> dict[str, float]:
        config = self.config
        logits = response_logits(self.model, batch.tokens, batch.is_response, batch.images)
        log_probs = grpo.token_log_probs(logits, batch.targets, config.temperature)
        losses, clipped = grpo.clipped_policy_loss(
            log_probs, batch.rollout_log_probs, batch.advantages, config.clip_low, config.clip_high
        )
        means = {"train/pg_loss": losses, "train/pg_clipfrac": clipped}
        means["train/ppo_kl"] = batch.rollout_log_probs - log_probs
        means["train/train_rollout_logprob_abs_diff"] = (batch.rollout_log_probs - log_probs).abs()
        means["train/entropy_loss"] = grpo.entropy(logits.detach(), config.temperature)
        if reference is not None:
            means["train/kl_loss"] = grpo.k3_kl(log_probs, reference)
        values = {name: (value * batch.weights).sum() for name, value in means.items()}
        loss = values["train/pg_loss"]
        if config.kl_coefficient:
            loss = loss + config.kl_coefficient * values["train/kl_loss"]
        metrics = {"train/loss": loss.item(), **{name: value.item() for name, value in values.items()}}
        self._check(metrics)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.max_grad_norm).item()
        self._check({"train/grad_norm": grad_norm})
        self._optimizer.step()
        return {**metrics, "train/grad_norm": grad_norm}

    def _check(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise TrainingError(f"step {self.step}: {name} is {value}")


def make_batch(rollout: Rollout, step: int, model: PolicyConfig | None = None, task: Task | None = None) -> Batch:
    """Tensors of the samples that have trained tokens; aborted and empty samples only count in the mean over samples.

    Args:
        rollout: Samples with `prompt_ids`, `output_ids`, `logprobs`, `advantage` and, optionally, `loss_mask`.
        step: The step that an error names.
        model: The config of the policy, which says whether it sees images.
        task: Shows the images that samples carry digests of.

    Raises:
        InputError: A column is missing or the lengths of a sample's columns disagree.
        TrainingError: A log-prob or advantage is not finite, or no sample has a trained token.
    """
    trained = np.asarray([status != "aborted" for status in rollout.strings("status")])
    trained &= rollout.ragged("output_ids").lengths > 0
    if not trained.any():
        raise TrainingError(f"step {step}: none of {quantity(len(rollout), 'samples')} has a token to train on")
    kept = Rollout(rollout.table.filter(pa.array(trained)))
    outputs = kept.ragged("output_ids")
    log_probs, mask = kept.ragged("logprobs"), kept.ragged("loss_mask")
    groups, slots = kept.integers("group_index"), kept.integers("index")
    for name, column in {"logprobs": log_probs, "loss_mask": mask}.items():
        for row in np.flatnonzero(column.lengths != outputs.lengths)[:1]:
            raise InputError(
                f"step {step}, group {groups[row]}, slot {slots[row]}: {name} has {column.lengths[row]} entries"
                f" for {outputs.lengths[row]} output tokens"
            )
    advantages, _ = kept.numbers("advantage")
    rows = outputs.rows_of_values
    for name, values, row_of in (("logprobs", log_probs.values, rows), ("advantage", advantages, np.arange(len(kept)))):
        for bad in np.flatnonzero(~np.isfinite(values))[:1]:
            row = row_of[bad]
            raise TrainingError(f"step {step}, group {groups[row]}, slot {slots[row]}: {name} is {values[bad]}")
    tokens, is_response, images = _padded(kept, step, model, task)
    return Batch(
        tokens=tokens,
        is_response=is_response,
        rollout_log_probs=torch.from_numpy(log_probs.values.astype(np.float32)),
        advantages=torch.from_numpy(advantages[rows].astype(np.float32)),
        weights=grpo.sample_mean_weights(
            torch.from_numpy(mask.values.astype(np.float32)), torch.from_numpy(rows), samples=len(rollout)
        ),
        images=images,
    )


def _padded(
    rollout: Rollout, step: int, model: PolicyConfig | None, task: Task | None
) -> tuple[Tensor, Tensor, ImageTensors | None]:
    """Tokens and where they are response tokens, both (B, L), and the images that the samples say they saw."""
    prompts, outputs, shown = (rollout.ragged(name) for name in ("prompt_ids", "output_ids", "media_sha256"))
    if isinstance(model, Qwen2_5_VLConfig) and task is not None:
        try:
            return pad_with_images(
                model,
                [prompts[row].tolist() for row in range(len(rollout))],
                [shown[row].tolist() for row in range(len(rollout))],
                images_of_rollout(task, rollout),
                outputs.values,
                outputs.lengths,
            )
        except InputError as error:
            raise InputError(f"step {step}: {error}") from error
    if len(shown.values):
        raise InputError(f"step {step}: samples show {len(shown.values)} images, which this policy does not see")
    return *pad(prompts.values, prompts.lengths, outputs.values, outputs.lengths), None
