"""`python -m parity.engines.embedded`: serves a checkpoint directory until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import torch
from aiohttp import web

from parity.engines.embedded.faults import FAULTS
from parity.engines.embedded.guard import Guard
from parity.engines.embedded.model import CheckpointError
from parity.engines.embedded.served import ServedModel
from parity.engines.embedded.server import build_app
from parity.errors import UsageError


def main(arguments: list[str] | None = None) -> int:
    """Serves; 0 after a signal, 2 when the checkpoint cannot be served or the port is taken."""
    parser = argparse.ArgumentParser(
        prog="python -m parity.engines.embedded", description="Serve a Qwen2 or Qwen2.5-VL checkpoint on the CPU."
    )
    parser.add_argument("--model-path", type=Path, required=True, help="Hugging Face checkpoint directory")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000, help="0 takes a free one")
    parser.add_argument("--port-file", type=Path, help="write the bound port there once ready")
    parser.add_argument("--threads", type=int, default=2, help="threads of the forward pass")
    parser.add_argument("--max-running-requests", type=int, default=512, help="sequences that run at once")
    parser.add_argument("--weights-under", type=Path, help="the one directory that weights may be loaded from")
    parser.add_argument("--dialect", choices=["sglang", "vllm"], help="answer as this engine alone; by default as both")
    parser.add_argument("--fault", choices=list(FAULTS), help="plant a defect")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    torch.set_num_threads(options.threads)
    try:
        guard = Guard.of(options.host, os.environ.get("PARITY_API_KEY", ""), options.weights_under)
        asyncio.run(
            _serve(
                options.model_path,
                options.host,
                options.port,
                options.port_file,
                options.max_running_requests,
                guard,
                options.fault,
                options.dialect,
            )
        )
    except (CheckpointError, UsageError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


async def _serve(
    path: Path,
    host: str,
    port: int,
    port_file: Path | None,
    max_running: int,
    guard: Guard,
    fault: str | None,
    dialect: str | None,
) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    engine = ServedModel(path, max_running)
    if fault is not None:
        FAULTS[fault][1](engine)
    runner = web.AppRunner(build_app(engine, guard, dialect), handler_cancellation=True, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    bound = runner.addresses[0][1]
    print(f"listening on http://{host}:{bound}", flush=True)
    if port_file:
        scratch = port_file.with_name(port_file.name + ".new")
        scratch.write_text(f"{bound}\n")
        os.replace(scratch, port_file)
    try:
        await stopped.wait()
    finally:
        engine.stop()
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
