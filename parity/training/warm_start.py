"""The warm start: brief supervised training on a task's demonstrations, cached by a hash of its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from parity.training.determinism import deterministic
from parity.training.policy import build_policy, build_tokenizer, policy_config, save_policy
from parity.training.tasks import Task


@dataclass(frozen=True, slots=True)
class WarmStartSettings:
    """Settings of the supervised training; the cached result is a function of them and of the task."""

    seed: int = 0
    steps: int = 600
    batch_size: int = 128
    learning_rate: float = 3e-3
    threads: int = 2


def warm_start(
    task: Task,
    cache_dir: Path,
    progress: Callable[[int, int], None] | None = None,
    settings: WarmStartSettings | None = None,
) -> Path:
    """A policy that imitates the task's demonstrations, trained at the first call and found in the cache afterwards.

    Cross-entropy on response tokens and the end of sequence, AdamW, cosine decay to 0. Demonstrations are drawn anew
    each step, so nothing is seen twice but by chance.

    Args:
        task: The task to imitate.
        cache_dir: Holds one checkpoint directory a hash of settings, task and model.
        progress: Told the steps done and the steps in all.
        settings: The defaults, unless given.

    Returns:
        A Hugging Face checkpoint directory.
    """
    settings = settings or WarmStartSettings()
    path = cache_dir / f"{task.name}-{_key(task, settings)}"
    if path.exists():
        return path
    tokenizer, model = build_tokenizer(), build_policy(settings.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    with deterministic(settings.threads):
        for step in range(settings.steps):
            demonstrations = task.demonstrations(settings.seed, step, settings.batch_size)
            prompts = [tokenizer.encode(prompt) for prompt, _ in demonstrations]
            responses = [[*tokenizer.encode(response), tokenizer.eos_token_id] for _, response in demonstrations]
            loss = _imitation_loss(model, prompts, responses)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if progress:
                progress(step + 1, settings.steps)
    return save_policy(model, path)


def _imitation_loss(model: torch.nn.Module, prompts: list[list[int]], responses: list[list[int]]) -> torch.Tensor:
    sequences = [torch.tensor([*prompt, *response]) for prompt, response in zip(prompts, responses, strict=True)]
    tokens = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    starts = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    ends = torch.tensor([len(sequence) for sequence in sequences])[:, None]
    columns = torch.arange(tokens.shape[1])
    targets = tokens.where((columns >= starts) & (columns < ends), -100)[:, 1:]
    logits = model(input_ids=tokens).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _key(task: Task, settings: WarmStartSettings) -> str:
    """A hash of all that the result depends on; the first batch stands for how the task makes its demonstrations."""
    model = policy_config().to_diff_dict()
    model.pop("transformers_version", None)
    content = {
        "settings": asdict(settings),
        "model": model,
        "demonstrations": task.demonstrations(settings.seed, 0, settings.batch_size),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
