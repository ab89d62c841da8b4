"""How a command ends when it is not by a verdict: exit codes, signals, and errors in one sentence."""

from __future__ import annotations

import os
import re
import signal
import traceback
from pathlib import Path
from types import FrameType

from parity.errors import install_hint

EXIT_ERROR = 2
EXIT_BROKEN_PIPE = 128 + signal.SIGPIPE
TRAINING_PACKAGES = ("safetensors", "sklearn", "tokenizers", "torch", "transformers")
SHOW_TRACE = "PARITY_TRACEBACK"

_FULL = re.compile(
    r"No space left|os error 28\b|os error 122\b|quota exceeded|PytorchStreamWriter failed|unexpected pos"
)
"""What packages written in other languages say of a full disk, which is no `OSError` of theirs."""
_MEMORY = re.compile(r"not enough memory|can't allocate memory|out of memory|bad_alloc|Cannot allocate", re.IGNORECASE)

_received: list[int] = []


def end_as_by_ctrl_c() -> None:
    """Makes SIGTERM, by which Slurm and Kubernetes end a job, and SIGHUP end the command as Ctrl-C does."""

    def end(number: int, _: FrameType | None) -> None:
        _received.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell's job in the background has it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup, SIGHUP stays ignored
            signal.signal(number, end)


def exit_of_signal() -> int:
    """The exit code after the signal that ended the command."""
    return 128 + (_received or [signal.SIGINT])[0]


def describe_error(error: BaseException) -> str:
    """What went wrong in one sentence, with the place in this package where it is a defect of it."""
    text = str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in TRAINING_PACKAGES:
        return f"this needs {error.name}: {install_hint('train')}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _MEMORY.search(text)):
        return f"out of memory: {text or 'no more could be allocated'}; free some, or ask for less"
    if _FULL.search(text):
        return f"no space left to write to: {text}; free some"
    if isinstance(error, OSError):
        return text
    if os.environ.get(SHOW_TRACE):
        traceback.print_exception(error)
    package = Path(__file__).parents[1]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if package in Path(frame.filename).parents]
    place = f"{Path(frames[-1].filename).relative_to(package.parent)}:{frames[-1].lineno}" if frames else "parity"
    kind = "nested too deeply" if isinstance(error, RecursionError) else f"{type(error).__name__}: {text}"
    return f"{kind} (at {place}); this is a defect of parity, and {SHOW_TRACE}=1 shows the whole trace"
