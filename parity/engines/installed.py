"""Engines that are installed in an environment of their own: where their Python is, and what it is started with."""

from __future__ import annotations

import os
from pathlib import Path

from parity.errors import EngineError

START_TIMEOUT = 600.0

ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # What an engine asks of its own loopback address would otherwise go through a proxy.
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    # Its environment is its own: nothing of ours may be imported there.
    "PYTHONPATH": "",
    "VIRTUAL_ENV": "",
}


def find_python(engine: str) -> Path:
    """The Python that has `sglang` or `vllm`: by `PARITY_<ENGINE>_PYTHON`, or of `.venv-<engine>` here or beside us.

    Raises:
        EngineError: There is none.
    """
    variable, inside = f"PARITY_{engine.upper()}_PYTHON", Path(f".venv-{engine}/bin/python")
    named = os.environ.get(variable)
    candidates = [Path(named)] if named else [Path.cwd() / inside, Path(__file__).parents[2] / inside]
    for python in candidates:
        if os.access(python, os.X_OK):
            return python
    looked_at = " or ".join(dict.fromkeys(str(python) for python in candidates))
    raise EngineError(
        f"no environment with {engine} at {looked_at}: `make {engine}` sets one up, or {variable} names its Python"
    )
