"""GRPO by TRL on a small model, as the command of a launch: curves and samples go where the launch file says.

The task needs no warm start: the reward is the share of a completion's tokens that are digits.
"""

from __future__ import annotations

import argparse
import json
from itertools import groupby
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from parity.trainer.policy import build_policy, save_policy

GROUP = 8


def main() -> None:
    """Trains one arm with one seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--no-cache", action="store_true", help="the change: generate without the cache of keys")
    asked = parser.parse_args()
    model = asked.output_dir / "policy"  # a pair starts from the same weights
    save_policy(build_policy(seed=asked.seed), model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    record = (asked.output_dir / "rollout.samples.jsonl").open("a")

    def share_of_digits(completion_ids: list[list[int]], trainer_state: Any, **columns: Any) -> list[float]:
        rewards = [sum(t.isdigit() for t in tokenizer.convert_ids_to_tokens(ids)) / len(ids) for ids in completion_ids]
        rows = zip(columns["prompts"], completion_ids, rewards, strict=True)
        for group, (_, members) in enumerate(groupby(rows, key=lambda row: row[0])):
            for index, (prompt, ids, reward) in enumerate(members):
                sample = {
                    "rollout_id": trainer_state.global_step,
                    "group_index": group,
                    "index": index,
                    "prompt_ids": tokenizer(prompt)["input_ids"],
                    "output_ids": ids,
                    "reward": reward,
                    "response_length": len(ids),
                    "max_new_tokens": 16,
                }
                record.write(json.dumps(sample) + "\n")
        record.flush()
        return rewards

    trainer = GRPOTrainer(
        model=str(model),
        processing_class=tokenizer,
        reward_funcs=share_of_digits,
        train_dataset=Dataset.from_dict({"prompt": [f"{number} and " for number in range(512)]}),
        args=GRPOConfig(
            output_dir=str(asked.output_dir),
            seed=asked.seed,
            max_steps=asked.steps,
            per_device_train_batch_size=4 * GROUP,
            num_generations=GROUP,
            max_completion_length=16,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            model_init_kwargs={"dtype": "bfloat16"},  # in which the cache changes the rounding, so that runs part
            generation_kwargs={"use_cache": not asked.no_cache},
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
