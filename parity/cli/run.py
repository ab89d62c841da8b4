"""`parity run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from parity.cli.arms import arm_options, asked_arms, fleet_options
from parity.cli.parsing import Command, Named
from parity.cli.progress import Step, progress
from parity.cli.shared import (
    EXIT_HELP,
    announce,
    cache_directory,
    command_line,
    conclude,
    given_options,
    interruptible,
    new_directory,
    tracker_options,
)
from parity.errors import UsageError
from parity.records.experiment import DESIGNS, ExperimentConfig
from parity.records.margins import PROBE_SHARE, RUN, margin_option_help, parse_margins
from parity.records.training_config import TrainingConfig
from parity.report.trackers import Targets
from parity.trainer.tasks import TASKS

TRAINING = TrainingConfig()

RUN_EXAMPLES = """\b
Examples:
  parity run --baseline --experiment native
  parity run --baseline batched --experiment native --seeds 5 --steps 60
  parity run --baseline --experiment native --engine sglang --steps 30
  parity run --baseline --experiment native --task digits
  parity run --baseline --experiment native --workers 3 --router cache_aware
  parity run --baseline --experiment native --design probe --seeds 1
  parity run --baseline --experiment native --margin reward=0.03 --margin response_length=0.05
  parity run --baseline --experiment native --plant exchanged-outputs@7
  parity run --baseline --experiment native --clearml
  parity run --baseline-engine embedded --experiment-engine sglang --design probe
  parity run --arms arms.toml
  parity run --out parity-out/mine --resume
"""


@click.command(cls=Command, epilog=RUN_EXAMPLES + "\n" + EXIT_HELP)
@arm_options
@click.option(
    "--engine", default="embedded", show_default=True, help="embedded, sglang, vllm, or the URL of a deployment."
)
@fleet_options
@click.option(
    "--control", is_flag=True, help="Allow weight updates on a deployment at a URL; it must see this file system."
)
@click.option(
    "--task",
    type=Named(list(TASKS)),
    default="arithmetic",
    show_default=True,
    help="The task that the policy is trained on.",
)
@click.option(
    "--design",
    "designs",
    type=Named(DESIGNS),
    multiple=True,
    help="How pairs are made; may be given several times. Default: what the engine is seen to allow: twin and paired "
    "where its seeds hold (list-twin where only lists carry one a sample), else replay and paired.",
)
@click.option("--seeds", type=int, default=3, show_default=True, help="Paired seeds, each one run an arm.")
@click.option(
    "--steps",
    type=int,
    default=40,
    show_default=True,
    help="Training steps of each paired or mixed run. Curves of fewer than 30 leave L3 inconclusive.",
)
@click.option("--twin-steps", type=int, default=20, show_default=True, help="Training steps of each twin run.")
@click.option(
    "--probe-share",
    type=float,
    default=PROBE_SHARE,
    show_default=True,
    help="Share of a probe's prompts asked in both arms.",
)
@click.option("--lr", type=float, default=TRAINING.learning_rate, show_default=True, help="Learning rate.")
@click.option("--groups", type=int, default=TRAINING.groups_per_step, show_default=True, help="Prompt groups a step.")
@click.option("--group-size", type=int, default=TRAINING.group_size, show_default=True, help="Samples a group.")
@click.option(
    "--margin",
    "margins",
    multiple=True,
    metavar="METRIC=VALUE",
    help=margin_option_help(RUN) + " Recorded before the first step.",
)
@click.option(
    "--plant",
    "plants",
    multiple=True,
    metavar="NAME@STEP",
    help="Plant a fault, such as exchanged-outputs, in the experiment's arm at a step, counted from 0.",
)
@click.option(
    "--patience",
    type=float,
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Give a request up after so long without an answer or a token.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: parity-out/<time>.")
@click.option("--resume", is_flag=True, help="Go on with the experiment in --out.")
@click.option(
    "--rewind", is_flag=True, help="With --resume: go back a step where the newest checkpoint of a run is damaged."
)
@tracker_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
@click.pass_context
def run(
    context: click.Context,
    /,
    out: Path | None,
    resume: bool,
    rewind: bool,
    as_json: bool,
    quiet: bool,
    targets: Targets,
    **asked: Any,
) -> None:
    """Trains every arm and gives the verdict with a report.

    The arms: per-sample sends one request a sample, batched one request with a list of n copies of the prompt, native
    one request with sampling_params.n. --arms names others: engines, their options, workers, sampling parameters.

    A twin pair samples with the same seeds in both arms, so that they must be equal bit for bit; a replay serves one
    recording to both, on engines that cannot do that; free pairs then show whether the curves contradict it. Mixed
    designs need one run: a switchback draws the arm of each group, a probe asks prompts in both and trains on one.
    Killed at any point, it goes on with --resume.
    """
    if resume and out is None:
        raise UsageError("--resume needs --out: the directory of the experiment to go on with")
    directory = out or new_directory()
    from parity.commands.validation import check_experiment, check_live_engines
    from parity.records.store import EXPERIMENT_FILE

    if not resume and (directory / EXPERIMENT_FILE).exists():
        raise UsageError(f"{directory} already holds an experiment: continue it with --resume, or choose another --out")
    config = _run_config(context, asked, directory if resume else None)
    check_experiment(config)
    check_live_engines(config.arm(name).engine for name in config.arms)
    console = Console(stderr=as_json, highlight=False)
    announce(f"experiment: {directory}", quiet)
    with interruptible("run", directory), progress(console, quiet, "loading", keep=True) as shows:
        from parity.runner import Watcher, run_experiment  # imports torch for seconds, so once something is seen

        run_experiment(
            config,
            directory,
            command=command_line(),
            watcher=Watcher(lambda step: shows.step(_progress(step)), shows.note),
            cache=cache_directory(),
            resume=resume,
            rewind=rewind,
        )
    conclude(directory, as_json, quiet, targets=targets)


def _run_config(context: click.Context, asked: dict[str, Any], resumed: Path | None) -> ExperimentConfig:
    """The configuration asked for: the defaults, or those on disk when resuming, with the options given."""
    from parity.records.store import read_experiment

    arms = asked_arms(context, asked)
    given = {**given_options(context, asked), **arms}
    if "margins" in given:
        given["margins"] = {**RUN, **parse_margins(given["margins"], RUN)}
    training = {"lr": "learning_rate", "groups": "groups_per_step", "group_size": "group_size"}
    changes: dict[str, Any] = {field: given.pop(option) for option, field in training.items() if option in given}
    if resumed is None:
        named = {name: asked[name] for name in ("baseline", "experiment")}
        config = ExperimentConfig(**{**named, **given})
    else:
        config = replace(ExperimentConfig.from_json(read_experiment(resumed).get("config")), **given)
    return replace(config, training=replace(config.training, **changes))


def _progress(step: Any) -> Step:
    words = f"{step.run} step {step.step} reward {step.metrics['rollout/raw_reward']:.2f}"
    return Step(step.done, step.total, words, _plain_line(step), step.seconds_left)


def _step_line(step: Any) -> str:
    metrics = step.metrics
    shown = {"reward": "rollout/raw_reward", "length": "rollout/response_len/mean", "grad norm": "train/grad_norm"}
    values = " ".join(f"{name} {metrics.get(key, float('nan')):.3f}" for name, key in shown.items())
    return f"{step.pair.design} {step.run} step {step.step} {values}"


def _plain_line(step: Any) -> str:
    position = f"{step.done}/{step.total}, {step.rate:.1f} steps/s, {step.seconds_left:.0f} s left"
    return f"{_step_line(step)} {step.seconds:.2f} s [{position}]"
