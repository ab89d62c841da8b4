"""The real SGLang, run on the CPU: its command line and environment.

Every flag was tried against SGLang 0.5.23 on a machine without a GPU and without AMX.
"""

from __future__ import annotations

from pathlib import Path

from parity.engines import installed
from parity.engines.client import EngineClient

CLIENT = EngineClient

ENVIRONMENT = {
    **installed.ENVIRONMENT,
    # What its encoder made of an image is kept by the image alone, through weight updates and flushes: keep nothing.
    "SGLANG_VLM_CACHE_SIZE_MB": "0",
}


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
