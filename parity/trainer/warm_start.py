"""The warm start: brief supervised training on a task's demonstrations, cached by a hash of its settings."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig

from parity.errors import UsageError
from parity.findings import Progress
from parity.trainer.batching import ImageTensors, pad, response_logits
from parity.trainer.determinism import deterministic
from parity.trainer.images import images_of, pad_with_images
from parity.trainer.policy import (
    Policy,
    PolicyConfig,
    build_policy,
    build_tokenizer,
    image_policy_config,
    policy_config,
    save_policy,
)
from parity.trainer.tasks import Task
from rollout_patch.media import digest


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """Settings of the supervised training; the cached result is a function of them and of the task."""

    seed: int = 0
    steps: int = 280
    careful_steps: int = 210
    batch_size: int = 64
    learning_rate: float = 3e-3
    threads: int = 2


ON_IMAGES = WarmStartSettings(steps=220, careful_steps=170)
"""What is given where no settings are, for tasks that show images: a step costs more there, and fewer are needed."""


def config_for(task: Task) -> PolicyConfig:
    """The shape of the policy that a task is learned by."""
    return image_policy_config() if task.has_images else policy_config()


def warm_start(
    task: Task,
    cache_dir: Path,
    progress: Progress | None = None,
    settings: WarmStartSettings | None = None,
) -> Path:
    """A policy that imitates the task's demonstrations, trained at the first call and found in the cache afterwards.

    Cross-entropy on response tokens and the end of sequence, AdamW, cosine decay to 0. Demonstrations are drawn anew
    each step: careful ones at first, which teach the task, then the task's imperfect ones, which leave room to improve.

    Args:
        task: The task to imitate.
        cache_dir: Holds one checkpoint directory a hash of settings, task and model.
        progress: Called after each step.
        settings: The defaults, or `ON_IMAGES` for tasks that show them, unless given.

    Returns:
        A Hugging Face checkpoint directory.

    Raises:
        UsageError: The cache cannot be written to.
    """
    settings = settings or (ON_IMAGES if task.has_images else WarmStartSettings())
    path = cache_dir / f"{task.name}-{_key(task, settings)}"
    if path.exists():
        return path
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        lock = (cache_dir / f".{path.name}.lock").open("w")
    except OSError as error:
        raise UsageError(f"{cache_dir}: no policy can be kept there: {error.strerror}") from error
    with lock:
        # Another process may be making it; the system lets go of the lock if that one dies.
        fcntl.flock(lock, fcntl.LOCK_EX)
        return path if path.exists() else save_policy(_train(task, settings, progress), path)


def prepare_policy(task: Task, cache_dir: Path, note: Callable[[str], None]) -> Path:
    """`warm_start` with notes: where the policy is kept, each tenth of the steps, and the time left."""
    note(f"policy: warm start on {task.name}, trained once and kept in {cache_dir}")
    began = time.monotonic()

    def progress(done: int, total: int, _: str) -> None:
        if done * 10 // total > (done - 1) * 10 // total:
            left = (time.monotonic() - began) / done * (total - done)
            note(f"policy: step {done} of {total}, {left:.0f} s left")

    return warm_start(task, cache_dir, progress)


def _train(task: Task, settings: WarmStartSettings, progress: Progress | None) -> Policy:
    tokenizer, model = build_tokenizer(images=task.has_images), build_policy(settings.seed, config_for(task))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, settings.steps))
    with deterministic(settings.threads):
        for step in range(settings.steps):
            tokens, is_response, images = _demonstrations(task, settings, step, tokenizer, model.config)
            logits = response_logits(model, tokens, is_response, images)
            loss = torch.nn.functional.cross_entropy(logits, tokens[is_response])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if progress:
                progress(step + 1, settings.steps, task.name)
    return model


def _rate(step: int, steps: int) -> float:
    """Part of the learning rate: linear rise over 20 steps, cosine decay to 0."""
    return min(1.0, (step + 1) / 20) * (1 + math.cos(math.pi * step / steps)) / 2


def _demonstrations(
    task: Task, settings: WarmStartSettings, step: int, tokenizer: PreTrainedTokenizerFast, config: PolicyConfig
) -> tuple[Tensor, Tensor, ImageTensors | None]:
    careful = step < settings.careful_steps
    demonstrations = task.demonstrations(settings.seed, step, settings.batch_size, careful=careful)
    views = [task.view(prompt) for prompt, _ in demonstrations]
    prompts = [tokenizer.encode(view.text) for view in views]
    responses = [[*tokenizer.encode(response), tokenizer.eos_token_id] for _, response in demonstrations]
    flat, lengths = np.concatenate(responses), np.asarray([len(row) for row in responses])
    if isinstance(config, Qwen2_5_VLConfig):
        shown = [[digest(image) for image in view.images] for view in views]
        images = images_of(task, [prompt for prompt, _ in demonstrations])
        return pad_with_images(config, prompts, shown, images, flat, lengths)
    return *pad(np.concatenate(prompts), np.asarray([len(row) for row in prompts]), flat, lengths), None


def _key(task: Task, settings: WarmStartSettings) -> str:
    """A hash of all that the result depends on; the first batch stands for how the task makes its demonstrations."""
    model = config_for(task).to_diff_dict()
    model.pop("transformers_version", None)
    content = {
        "settings": asdict(settings),
        "model": model,
        "demonstrations": task.demonstrations(settings.seed, 0, settings.batch_size, careful=False),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
