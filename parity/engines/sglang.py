"""The real SGLang, run on the CPU: its command line and environment.

Every flag was tried against SGLang 0.5.23 on a machine without a GPU and without AMX.
"""

from __future__ import annotations

import os
from pathlib import Path

from parity.errors import EngineError

PYTHON_VARIABLE = "PARITY_SGLANG_PYTHON"
VENV_PYTHON = Path(".venv-sglang/bin/python")
START_TIMEOUT = 600.0

ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # SGLang's warm-up asks its own loopback address through `requests`, which would otherwise go through a proxy.
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
    # What its encoder made of an image is kept by the image alone, through weight updates and flushes: keep nothing.
    "SGLANG_VLM_CACHE_SIZE_MB": "0",
    # Its environment is its own: nothing of ours may be imported there.
    "PYTHONPATH": "",
    "VIRTUAL_ENV": "",
}


def find_python() -> Path:
    """The Python that has SGLang: by `PARITY_SGLANG_PYTHON`, or of `.venv-sglang` here or beside the project.

    Raises:
        EngineError: There is none.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    project = Path(__file__).parents[2]
    candidates = [Path(named)] if named else [Path.cwd() / VENV_PYTHON, project / VENV_PYTHON]
    for python in candidates:
        if os.access(python, os.X_OK):
            return python
    looked_at = " or ".join(dict.fromkeys(str(python) for python in candidates))
    raise EngineError(
        f"no SGLang environment at {looked_at}: `make sglang` sets one up, or {PYTHON_VARIABLE} names its Python"
    )


def command(python: Path, model_path: Path, port: int) -> list[str]:
    """The command line that serves `model_path` on a loopback port."""
    return [
        *(str(python), "-m", "sglang.launch_server"),
        *("--model-path", str(model_path.absolute())),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--device", "cpu", "--dtype", "float32"),
        *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
        *("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled"),
        "--disable-overlap-schedule",
        *("--mem-fraction-static", "0.1", "--max-total-tokens", "65536"),
        # Without it the scheduler spins on a core between rollouts, at the trainer's cost.
        "--sleep-on-idle",
        # Requests and decode tokens of each engine are read off its counters.
        "--enable-metrics",
        # Its warm-up asks a model that sees images through a chat template, which a policy has no need of.
        "--skip-server-warmup",
    ]
