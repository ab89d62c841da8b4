"""The real vLLM, run on the CPU: its command line and environment.

Every flag was tried against vLLM 0.32.0 on a machine without a GPU.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from parity.engines import installed

MAX_SEQUENCES = 256
"""Sequences that run at once; a request for more samples is refused."""

ENVIRONMENT = {
    **installed.ENVIRONMENT,
    # Opens what weights, aborts, pauses and caches are steered by.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Its first request would end the engine.
    "VLLM_BATCH_INVARIANT": "",
}


def command(python: Path, model_path: Path, port: int) -> list[str]:
    """The command line that serves `model_path` on a loopback port."""
    return [
        *(str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model_path.absolute())),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", str(MAX_SEQUENCES)),
        # A request with a seed whose prefill is chunked ends the engine on a CPU.
        "--no-enable-chunked-prefill",
        # Opens /inference/v1/generate, which takes and gives token ids.
        "--enable-scale-out",
        # Counts the cached tokens of an answer.
        "--enable-prompt-tokens-details",
        # Draws without a seed come from this one; its default is the same for every server.
        *("--seed", str(secrets.randbelow(2**31))),
    ]
