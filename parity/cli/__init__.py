"""The commands; no logic."""

from __future__ import annotations

import os
import sys
import traceback

import click

from parity.cli.bench import bench
from parity.cli.check import check
from parity.cli.compare import compare
from parity.cli.completion import completion
from parity.cli.plan import plan
from parity.cli.report import report
from parity.cli.run import run
from parity.cli.sample import sample
from parity.cli.selftest import selftest
from parity.cli.serve import serve
from parity.cli.shared import EXIT_ERROR, EXIT_HELP, EXIT_INTERRUPTED
from parity.cli.watch import watch
from parity.errors import ParityError

TRAINING_PACKAGES = ("safetensors", "sklearn", "tokenizers", "torch", "transformers")


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_HELP)
@click.version_option(package_name="rollout-parity", prog_name="parity")
def cli() -> None:
    """Proves that a change to how an RL trainer requests its rollouts leaves training the same, or shows where not."""


for command in (run, plan, sample, bench, watch, compare, report, check, serve, selftest, completion):
    cli.add_command(command)


def main() -> None:
    """The command `parity`: errors are one line on standard error and exit code 2."""
    # Before torch is loaded: its threads would spin while they wait, on cores that engines and other work could use.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        cli.main(prog_name="parity", standalone_mode=False)  # also as `python -m parity`
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_ERROR)
    except click.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except (ParityError, OSError) as error:
        click.echo(f"parity: {error}", err=True)
        sys.exit(EXIT_ERROR)
    except Exception as error:  # Python would exit with 1, which means different here
        if isinstance(error, ModuleNotFoundError) and error.name in TRAINING_PACKAGES:
            click.echo(f"parity: this needs {error.name}: pip install 'rollout-parity[train]'", err=True)
        else:
            traceback.print_exc()
        sys.exit(EXIT_ERROR)
