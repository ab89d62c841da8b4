"""Runs one job's command to its end and writes how it ended, whether or not anybody waits for it.

Started as a script of its own, in a session of its own, so that the job outlives the command that launched it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def main(exit_file: Path, command: str) -> int:
    """Runs a shell command; its exit code, 128 + number for a signal, is in `exit_file` once it has ended."""
    process = subprocess.Popen(["bash", "-c", command], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = process.wait()
    code = code if code >= 0 else 128 - code
    partial = exit_file.with_name(f".{exit_file.name}.partial")
    with partial.open("w") as file:
        file.write(str(code))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(exit_file)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
