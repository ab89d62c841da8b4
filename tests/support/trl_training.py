"""A real `GRPOTrainer` of TRL, on a CPU, with a task of parity's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parity.trainer.tasks import get_task

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

TASK = get_task("arithmetic")
GROUP, STEPS, PROMPTS = 4, 3, 4


def train(policy: Path, rollout: Callable[..., Any], out: Path, **changes: Any) -> tuple[list[dict[str, Any]], bytes]:
    """What a real trainer logs over some steps, and the bytes of its weights after them."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    def reward(completions: list[str], question: list[str], **_: Any) -> list[float]:
        return [TASK.reward(asked, given) for asked, given in zip(question, completions, strict=True)]

    prompts = TASK.prompts(0, 0, 4 * PROMPTS)
    settings = {
        "per_device_train_batch_size": GROUP * PROMPTS,
        "num_generations": GROUP,
        "max_completion_length": TASK.max_new_tokens,
        "max_steps": STEPS,
        "learning_rate": 1e-4,
        "logging_steps": 1,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    model = AutoModelForCausalLM.from_pretrained(policy)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(output_dir=str(out), **{**settings, **changes}),
        train_dataset=Dataset.from_dict({"prompt": [TASK.view(one).text for one in prompts], "question": prompts}),
        processing_class=AutoTokenizer.from_pretrained(policy),
        rollout_func=rollout,
    )
    trainer.train()
    return trainer.state.log_history, b"".join(part.detach().numpy().tobytes() for part in model.parameters())


def of_training(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is logged of the training itself: no times, and not how groups were asked for."""
    return [
        {name: value for name, value in row.items() if not name.startswith("rollout_patch/") and "_per_" not in name
         and "time" not in name}
        for row in log
    ]  # fmt: skip
