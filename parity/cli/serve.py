"""`parity serve`."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from parity.cli.parsing import Command, Named
from parity.cli.shared import cache_directory
from parity.errors import UsageError
from parity.trainer.tasks import TASKS, get_task

ENGINE_FAULTS = (
    *("bfloat16-weights", "int8-weights", "temperature-off", "top-p-ignored", "wrong-rotary-base"),
    *("stale-prefix-cache", "old-weights", "logprobs-before-temperature", "batch-dependent"),
)
"""Those of `parity.engines.embedded.faults`, which imports torch."""

EXAMPLES = """\b
Examples:
  parity serve
  parity serve --model-path my-qwen2 --port 30001
  parity serve --fault int8-weights
  parity serve --chaos 0.2,seed=7,hold=5
"""


@click.command(cls=Command, epilog=EXAMPLES)
@click.option(
    "--model-path",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A checkpoint of Qwen2 or Qwen2.5-VL.",
)
@click.option(
    "--task",
    type=click.Choice(list(TASKS)),
    default="arithmetic",
    show_default=True,
    help="Without --model-path: a policy warm-started on this task.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=int, default=30000, show_default=True, help="0 takes a free one, which is printed.")
@click.option(
    "--weights-under",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Load weights from under this directory alone; needed, like PARITY_API_KEY, where others reach --host.",
)
@click.option(
    "--chaos",
    metavar="SPEC",
    help="Disturb a share of all requests, as a test of whoever asks: SHARE[,seed=N][,kinds=KIND+KIND][,hold=SECONDS].",
)
@click.option(
    "--dialect",
    type=click.Choice(["sglang", "vllm"]),
    help="Answer as this engine does, and not as the other one too.",
)
@click.option(
    "--fault",
    type=Named(ENGINE_FAULTS),
    metavar="NAME",
    help=f"Plant a defect, as a test of whoever compares engines: {', '.join(ENGINE_FAULTS)}.",
)
@click.option(
    "--max-running", type=click.IntRange(1), default=512, show_default=True, help="Sequences that run at once."
)
def serve(
    model_path: Path | None,
    task: str,
    host: str,
    port: int,
    weights_under: Path | None,
    chaos: str | None,
    dialect: str | None,
    fault: str | None,
    max_running: int,
) -> None:
    """Runs the embedded engine alone, as SGLang and as vLLM."""
    if chaos is not None and (fault is not None or dialect is not None or max_running != 512):
        raise UsageError("--chaos disturbs an engine as it is: leave out --dialect, --fault and --max-running")
    from parity.engines.chaos import Chaos, ChaosProxy, serve_chaos
    from parity.engines.embedded.guard import Guard

    injected = None if chaos is None else Chaos.parse(chaos)
    Guard.of(host, os.environ.get("PARITY_API_KEY", ""), weights_under)
    if model_path is None:
        from parity.trainer.warm_start import prepare_policy

        model_path = prepare_policy(get_task(task), cache_directory(), partial(click.echo, err=True))
    if injected is None:
        arguments = ["--model-path", str(model_path), "--host", host, "--port", str(port)]
        arguments += ["--max-running-requests", str(max_running), *([] if fault is None else ["--fault", fault])]
        arguments += [] if dialect is None else ["--dialect", dialect]
        arguments += [] if weights_under is None else ["--weights-under", str(weights_under)]
        safe = (
            ["-P"] if sys.version_info >= (3, 11) else []
        )  # a folder named parity in the working directory is another
        os.execv(sys.executable, [sys.executable, *safe, "-m", "parity.engines.embedded", *arguments])
    from parity.engines import open_engine

    with TemporaryDirectory() as logs, suppress(KeyboardInterrupt):
        engine = open_engine("embedded", model_path, Path(logs))
        try:
            proxy = ChaosProxy(engine.url, injected)
            asyncio.run(serve_chaos(proxy, host, port, lambda url: click.echo(f"listening on {url}")))
        finally:
            engine.stop()
