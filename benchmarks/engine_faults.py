"""Faults of engines: which check finds each, and with how many prompt groups.

    python benchmarks/engine_faults.py [NAME …]

Each line starts two embedded engines at the same weights, one with a fault (`parity serve --fault NAME`), and compares
them with `parity sample` or `parity run`. Controls change what must not matter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ARMS = '[arms.sound]\nway = "native"\n[arms.changed]\nway = "native"\n{setting}\n'
TIGHT = ("sample", "--margin", "token_kl=0.000001", "--max-groups", "1024")
WIDE = ("reward=0.06", "response_length=0.06", "negative_log_likelihood=0.06", "truncated=0.04", "aborted=0.04")
CONTROL = (*TIGHT, *(word for margin in WIDE for word in ("--margin", margin)))
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bfloat16-weights": ("", TIGHT),
    "int8-weights": ("", TIGHT),
    "temperature-off": ("", TIGHT),
    "wrong-rotary-base": ("", TIGHT),
    "top-p-ignored": ("", ("sample", "--top-p", "0.8", "--max-groups", "1024")),
    "logprobs-before-temperature": ("", ("sample", "--temperature", "0.7", "--max-groups", "1024")),
    "old-weights": ("", ("run", "--steps", "6", "--design", "twin")),
    "stale-prefix-cache": ("", ("run", "--steps", "6", "--design", "twin")),
    "control: 3 sequences at once": ('options = ["--max-running-requests", "3"]', CONTROL),
    "control: 2 workers": ("workers = 2", CONTROL),
}
"""By name: what the second arm sets in place of the fault, and the command."""


def measured(name: str) -> list[str]:
    """One row of the table: name, command, verdict, what failed, groups, seconds."""
    setting, asked = ROWS[name]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "arms.toml")
        file.write_text(ARMS.format(setting=setting or f'options = ["--fault", "{name}"]'))
        command = (*asked, "--arms", str(file), "--out", f"{directory}/out", "--json", "--quiet")
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "parity", *command], capture_output=True, text=True, check=False, env=os.environ
        )
        seconds = time.monotonic() - began
    if done.returncode not in (0, 1, 3):
        return [name, " ".join(asked), f"exit {done.returncode}", done.stderr.strip()[-300:], "", f"{seconds:.0f}"]
    result = json.loads(done.stdout)
    groups = str((result.get("counts") or result.get("scope") or {}).get("groups", ""))
    return [name, " ".join(asked), result["verdict"], failing(result) or "none", groups, f"{seconds:.0f}"]


def failing(result: dict[str, Any]) -> str:
    """The first checks that fail, each once, and how many more there are."""
    names = list(dict.fromkeys(one["check"] for one in result["findings"] if one["status"] == "fail"))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def main() -> None:
    """Prints the table, row by row."""
    print("| fault | command | verdict | fails | groups | seconds |\n|---|---|---|---|---|---|")
    for name in sys.argv[1:] or ROWS:
        print("| " + " | ".join(measured(name)) + " |", flush=True)


if __name__ == "__main__":
    main()
