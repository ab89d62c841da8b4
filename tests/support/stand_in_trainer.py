"""A trainer for launches: writes a reward a step, and fails, hangs or is killed where it is told to, once."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--shift", type=float, default=0.0)
    parser.add_argument("--fail-at", type=int)
    parser.add_argument("--hang-at", type=int)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--oom-at", type=int, help="is killed as the kernel does where memory runs out")
    parser.add_argument("--pad", type=int, default=0, help="bytes written beside each step, as checkpoints are")
    parser.add_argument("--always", action="store_true", help="fail in every attempt, not in the first alone")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--groups", type=int, default=0, help="groups of each step whose samples are recorded")
    parser.add_argument("--probe", action="store_true", help="asks every group in both arms")
    parser.add_argument("--twin", help="the arm's name; its samples and metrics depend on the seed alone")
    parser.add_argument("--other-at", type=int, help="one reward of this step is another one")
    parser.add_argument("--short-logprobs", action="store_true", help="leaves each sample's first log-prob out")
    parser.add_argument("--seconds", type=float, default=0.0)
    asked = parser.parse_args()
    curves = asked.run / "metrics.jsonl"
    first = len(curves.read_text().splitlines()) if asked.resume and curves.exists() else 0
    # Beside the run's directory, which a restart from zero moves away.
    tried = asked.run.parent / f"{asked.run.name}.tried"
    again = tried.exists() and not asked.always
    tried.touch()
    random.seed(str(asked.seed) if asked.twin else asked.run.name)
    rewards = [0.2 + 0.6 * step / asked.steps + random.gauss(0, 0.02) + asked.shift for step in range(asked.steps)]
    with curves.open("a" if asked.resume else "w") as file:
        for step in range(first, asked.steps):
            if not again and step == asked.fail_at:
                raise SystemExit("out of memory")
            if not again and step == asked.hang_at:
                time.sleep(600)
            if not again and step == asked.oom_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if not again and step == asked.kill_at:
                os.kill(os.getsid(0), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            row = {
                "step": step,
                "rollout/raw_reward": rewards[step],
                "rollout/response_len/mean": 100.0 + random.random(),
                "rollout/truncated_ratio": 0.01,
                "train/grad_norm": 0.5 + 0.1 * random.random(),
            }
            file.write(json.dumps(row) + "\n")
            file.flush()
            with (asked.run / "checkpoint").open("ab") as checkpoint:
                checkpoint.write(bytes(asked.pad))
            if asked.groups:
                record(asked.run / "record", step, asked)
            time.sleep(asked.seconds)


def record(folder: Path, step: int, asked: argparse.Namespace) -> None:
    """Records a step's samples as the patch does: those of one arm, or of a probe of every group in two."""
    (folder / "compared").mkdir(parents=True, exist_ok=True)
    lines: dict[Path, list[str]] = {folder: [], folder / "compared": []}
    for group in range(asked.groups):
        chance, native_trained = random.random() * 0.6, random.random() < 0.5
        for arm in ("per-sample", "native") if asked.probe else ("per-sample",):
            trained = not asked.probe or (arm == "native") == native_trained
            assignment = {"policy": "probe", "arm": arm, "probability": 0.5, "trained": trained}
            for index in range(4):
                ids = [random.randrange(1000) for _ in range(random.randrange(2, 9))]
                sample = {
                    "rollout_id": step,
                    "group_index": step * asked.groups + group,
                    "index": index,
                    "prompt_ids": [step, group],
                    "output_ids": ids,
                    "logprobs": [-random.random() for _ in ids[asked.short_logprobs :]],
                    "finish_reason": "stop",
                    "status": "completed",
                    "reward": float(random.random() < chance + asked.shift * (arm == "native")),
                    "max_new_tokens": 16,
                    "arm": asked.twin or arm,
                    "extra": {"assignment": assignment} if asked.probe else {},
                }
                if (step, group, index) == (asked.other_at, 0, 2):
                    sample["reward"] = 1.0 - sample["reward"]
                lines[folder if trained else folder / "compared"].append(json.dumps(sample) + "\n")
    for one, of_folder in lines.items():
        if of_folder:
            with (one / "rollout.samples.jsonl").open("a") as file:
                file.writelines(of_folder)


if __name__ == "__main__":
    main()
