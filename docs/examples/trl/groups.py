"""GRPO by TRL on groups of the patch: arithmetic, with a small model that `parity` starts warm.

python docs/examples/trl/groups.py --output_dir out --arm native --steps 100
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean
from typing import Any

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from parity.cli.shared import cache_directory
from parity.engines import open_engine
from parity.trainer.tasks import get_task
from parity.trainer.warm_start import prepare_policy
from rollout_patch.hosts.trl import GroupRollout

GROUP = 8


def main() -> None:
    """Trains one arm with one seed, and says how the reward rose."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--arm", default="native", help="native, batched or per-sample")
    parser.add_argument("--engine", default="embedded", help="embedded, vllm, or the URL of a vLLM")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    task = get_task("arithmetic")
    policy = prepare_policy(task, cache_directory(), print)
    prompts = task.prompts(asked.seed, 0, 1024)

    def reward(completions: list[str], question: list[str], **_: Any) -> list[float]:
        return [task.reward(prompt, completion) for prompt, completion in zip(question, completions, strict=True)]

    with open_engine(asked.engine, policy, asked.output_dir / "engine", control=True) as engine:
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(policy),
            processing_class=AutoTokenizer.from_pretrained(policy),
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": [task.view(one).text for one in prompts], "question": prompts}),
            args=GRPOConfig(
                output_dir=str(asked.output_dir),
                seed=asked.seed,
                max_steps=asked.steps,
                per_device_train_batch_size=8 * GROUP,
                num_generations=GROUP,
                max_completion_length=task.max_new_tokens,
                learning_rate=1e-4,
                lr_scheduler_type="constant",
                logging_steps=1,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
            ),
            rollout_func=GroupRollout(
                engine.url,
                asked.arm,
                weights=asked.output_dir / "weights",
                seed=asked.seed,
                record=asked.output_dir / "recording",
            ),
        )
        trainer.train()
    rewards = [row["reward"] for row in trainer.state.log_history if "reward" in row]
    tenth = max(1, len(rewards) // 10)
    before, after = fmean(rewards[:tenth]), fmean(rewards[-tenth:])
    print(f"mean reward of the first {tenth} steps {before:.3f}, of the last {after:.3f}")


if __name__ == "__main__":
    main()
