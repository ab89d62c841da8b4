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
    parser.add_argument("--always", action="store_true", help="fail in every attempt, not in the first alone")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.0)
    asked = parser.parse_args()
    curves = asked.run / "metrics.jsonl"
    first = len(curves.read_text().splitlines()) if asked.resume and curves.exists() else 0
    # Beside the run's directory, which a restart from zero moves away.
    tried = asked.run.parent / f"{asked.run.name}.tried"
    again = tried.exists() and not asked.always
    tried.touch()
    random.seed(asked.run.name)
    rewards = [0.2 + 0.6 * step / asked.steps + random.gauss(0, 0.02) + asked.shift for step in range(asked.steps)]
    with curves.open("a" if asked.resume else "w") as file:
        for step in range(first, asked.steps):
            if not again and step == asked.fail_at:
                raise SystemExit("out of memory")
            if not again and step == asked.hang_at:
                time.sleep(600)
            if not again and step == asked.kill_at:
                os.kill(os.getppid(), signal.SIGKILL)
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
            time.sleep(asked.seconds)


if __name__ == "__main__":
    main()
