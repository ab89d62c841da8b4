"""`parity serve`."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

import click

from parity.cli.parsing import Command
from parity.cli.shared import cache_directory
from parity.trainer.tasks import TASKS, get_task

EXAMPLES = """\b
Examples:
  parity serve
  parity serve --model-path my-qwen2 --port 30001
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
def serve(model_path: Path | None, task: str, host: str, port: int) -> None:
    """Runs the embedded engine alone, speaking SGLang's protocol."""
    if model_path is None:
        from parity.trainer.warm_start import prepare_policy

        model_path = prepare_policy(get_task(task), cache_directory(), partial(click.echo, err=True))
    arguments = ["--model-path", str(model_path), "--host", host, "--port", str(port)]
    safe = ["-P"] if sys.version_info >= (3, 11) else []  # a folder named parity in the working directory is another
    os.execv(sys.executable, [sys.executable, *safe, "-m", "parity.engines.embedded", *arguments])
