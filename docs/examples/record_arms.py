"""Records a run whose groups are drawn between engines, for `parity watch FOLDER` and `parity check FOLDER`."""

import json
import random
from pathlib import Path

ARMS = ["bf16", "fp8"]  # any names, two or more; the first by the alphabet is the baseline, or --baseline NAME


def draw_arm(seed: int, step: int, group: int) -> str:
    """The arm of a group: the same after a resume, and known before anything of the group is."""
    return random.Random(f"{seed}/{step}/{group}").choice(ARMS)


def record_group(folder: Path, seed: int, step: int, group: int, arm: str, prompt_ids, responses, cap: int) -> None:
    """Appends a line for each sample of a group that was sampled and scored.

    `responses` has for each sample: token ids, the log-prob of each, "stop" or "length" or "abort", and the reward.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {"policy": "switchback", "arm": arm, "seed": seed, "unit": f"{step}/{group}", "probability": 1 / len(ARMS)}
    with (folder / "rollout.samples.jsonl").open("a") as file:
        for index, (ids, logprobs, finish_reason, reward) in enumerate(responses):
            row = {
                "rollout_id": step,
                "group_index": group,
                "index": index,
                "arm": arm,
                "prompt_ids": prompt_ids,
                "output_ids": ids,
                "logprobs": logprobs,
                "finish_reason": finish_reason,
                "response_length": len(ids),
                "max_new_tokens": cap,
                "reward": reward,
                "extra": {"assignment": {**drawn, "trained": True}},
            }
            file.write(json.dumps(row) + "\n")
