"""`parity sample`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from parity.cli.arms import arm_options, asked_arms, fleet_options
from parity.cli.parsing import Command, Named
from parity.cli.progress import Step, progress
from parity.cli.shared import (
    EXIT_HELP,
    Delivered,
    announce,
    cache_directory,
    command_line,
    deliver_all,
    given_options,
    interruptible,
    new_directory,
)
from parity.errors import UsageError, without_secrets
from parity.records.margins import SAMPLING, SAMPLING_MEANS, TOKEN_KL, margin_option_help, parse_margins
from parity.trainer.tasks import TASKS

SAMPLE_EXAMPLES = """\b
Examples:
  parity sample --baseline --experiment native
  parity sample --engine http://127.0.0.1:30000 --prompts train.jsonl --max-new-tokens 1024 \\
                --reward my_task.py:reward --margin reward=0.02
  parity sample --engine sglang --fixed 256
  parity sample --baseline-engine http://a:30000 --experiment-engine http://b:30000 --prompts train.jsonl \\
                --max-new-tokens 1024 --reward my_task.py:reward
  parity sample --arms arms.toml
  parity sample --workers 2 --router round_robin
  parity sample --from before/ --from after/
  parity sample --out parity-out/sample-1 --resume --max-groups 8192
"""


@click.command(cls=Command, epilog=SAMPLE_EXAMPLES + "\n" + EXIT_HELP)
@arm_options
@click.option(
    "--engine",
    default="embedded",
    show_default=True,
    help="embedded, sglang, vllm, or the URL of a deployment, which keeps its weights and is only asked.",
)
@fleet_options
@click.option("--model-path", help="A checkpoint for an engine started here. Default: a policy warm-started on --task.")
@click.option(
    "--task",
    type=Named(list(TASKS)),
    default="arithmetic",
    show_default=True,
    help="Where prompts and reward come from.",
)
@click.option(
    "--from",
    "recordings",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    metavar="PATH",
    help="Compare recorded rollouts of frozen weights and ask no engine: the baseline's dump, then --from the other.",
)
@click.option("--prompts", type=click.Path(dir_okay=False, exists=True), help="JSON lines or Parquet with prompts.")
@click.option("--prompt-key", help="Their field. Default: prompt, input_ids or text; chat templates are not applied.")
@click.option(
    "--reward", metavar="FILE.py:FUNCTION", help="Reward of a parity.records.samples.Sample; its row is extra."
)
@click.option("--reward-range", type=float, nargs=2, default=(0.0, 1.0), show_default=True, help="Where rewards lie.")
@click.option("--group-size", type=int, default=8, show_default=True, help="Samples a prompt in each arm.")
@click.option("--max-new-tokens", type=int, help="Cap of a response. Default: the task's.")
@click.option("--temperature", type=float, default=1.0, show_default=True)
@click.option("--top-p", type=float, default=1.0, show_default=True)
@click.option("--top-k", type=int, default=-1, show_default=True)
@click.option(
    "--margin",
    "margins",
    multiple=True,
    metavar="METRIC=VALUE",
    help=f"{margin_option_help(SAMPLING_MEANS)[:-1]}; of two engines token_kl {TOKEN_KL:g}.",
)
@click.option("--fixed", type=int, help="Sample exactly so many groups and look once, which mostly takes fewer.")
@click.option("--max-groups", type=int, default=4096, show_default=True, help="Groups after which watching ends.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of prompts, of the arms' order, of the tests.",
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: parity-out/sample-<time>.")
@click.option("--resume", is_flag=True, help="Go on with the samples in --out; --max-groups may be larger now.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
@click.pass_context
def sample(
    context: click.Context,
    /,
    out: Path | None,
    resume: bool,
    as_json: bool,
    quiet: bool,
    recordings: tuple[Path, ...],
    **asked: Any,
) -> None:
    """Says whether arms sample alike at fixed weights.

    All are asked for groups of the same prompts, interleaved, and these are to be equally distributed. Stops as soon
    as the answer is clear either way: everything that decides is an e-process, which may be looked at after every
    block. With --fixed the number of groups is set beforehand and the evidence is looked at once; `parity plan` says
    how many that takes. With --from both arms are rollouts that somebody recorded at frozen weights, whose prompts are
    matched.
    """
    if resume and out is None:
        raise UsageError("--resume needs --out: the directory of the samples to go on with")
    directory = out or new_directory("sample-")
    if recordings:
        _deliver([_of_recordings(context, recordings, asked, directory, resume)], directory, as_json, quiet)
    from parity.commands.validation import check_sampling, check_sampling_inputs
    from parity.records.store import SAMPLING_FILE

    config = _config(context, asked, directory if resume else None)
    if not resume and (directory / SAMPLING_FILE).exists():
        raise UsageError(f"{directory} already holds samples: go on with --resume, or choose another --out")
    check_sampling(config)
    check_sampling_inputs(config)
    announce(f"samples and exchanges: {directory}", quiet)
    with interruptible("sample", directory), progress(Console(stderr=True, highlight=False), quiet, "loading") as shows:
        from parity.commands.sample.running import Watcher, sample_arms  # imports torch for seconds

        watcher = Watcher(lambda step: shows.step(_progress(step)), shows.note)
        results = sample_arms(
            config, directory, command=command_line(), watcher=watcher, cache=cache_directory(), resume=resume
        )
    _deliver(results, directory, as_json, quiet)


_OF_RECORDINGS = frozenset({"margins", "reward_range", "group_size", "seed"})
"""Options that say something of recordings; the others ask an engine."""


def _of_recordings(
    context: click.Context, recordings: tuple[Path, ...], asked: dict[str, Any], directory: Path, resume: bool
) -> Any:
    given = given_options(context, asked)
    if len(recordings) != 2:
        raise UsageError(f"--from is given {len(recordings)} times; give the baseline's recording and the experiment's")
    if others := sorted(set(given) - _OF_RECORDINGS) + ["resume"] * resume:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise UsageError(f"--from compares what is recorded, and no engine is asked: leave out {names}")
    with interruptible("sample", directory):
        from parity.commands.sample.dumped import sample_recordings

        return sample_recordings(
            (recordings[0], recordings[1]),
            directory,
            command=command_line(),
            margins={**SAMPLING_MEANS, **parse_margins(asked["margins"], SAMPLING)},
            reward_range=asked["reward_range"],
            group_size=given.get("group_size"),
            seed=asked["seed"],
        )


def _deliver(results: Sequence[Any], directory: Path, as_json: bool, quiet: bool) -> NoReturn:
    from parity.commands.sample.reporting import report_of
    from parity.report.sampling import print_sampling

    delivered = []
    for result in results:
        report, evidence = report_of(result, directory)
        delivered.append(Delivered(report, partial(print_sampling, result, report), evidence))
    sys.exit(deliver_all(delivered, directory / "report", as_json=as_json, quiet=quiet))


def _config(context: click.Context, asked: dict[str, Any], resumed: Path | None) -> Any:
    """What is asked for: the defaults with the options given; when resuming, what is on disk, which must agree."""
    from parity.commands.sample.store import read_config
    from parity.records.sampling import SamplingConfig

    margins = {**SAMPLING_MEANS, "token_kl": TOKEN_KL, **parse_margins(asked["margins"], [*SAMPLING, "token_kl"])}
    asked["token_kl"] = margins.pop("token_kl")
    asked["margins"] = margins
    arms = asked_arms(context, asked)
    if resumed is None:
        return SamplingConfig(**{**asked, **arms})
    config = read_config(resumed)
    given = {**given_options(context, asked), **arms}
    if config.engine == without_secrets(engine := given.get("engine", config.engine)):
        config, given = replace(config, engine=engine), {**given, "engine": engine}
    differ = [name for name, value in given.items() if name != "max_groups" and getattr(config, name) != value]
    if differ:
        raise UsageError(
            f"--resume goes on with what was asked; only --max-groups may change, not {', '.join(sorted(differ))}"
        )
    more = given.get("max_groups", config.max_groups)
    if more < config.max_groups:
        raise UsageError(f"--max-groups {more} is less than the {config.max_groups} asked for before")
    return replace(config, max_groups=more)


def _progress(step: Any) -> Step:
    words = _line(step)
    line = f"{step.done} of at most {step.limit} groups, {step.rate:.1f}/s: {words}"
    return Step(step.done, step.limit, words, line, (step.limit - step.done) / step.rate if step.rate else None)


def _line(step: Any) -> str:
    """What fails and what is open still."""
    failing = sum(finding.fails for finding in step.findings)
    undecided = [finding for finding in step.findings if finding.status.value == "inconclusive"]
    fields = ", ".join(dict.fromkeys(str(finding.where.field) for finding in undecided))
    open_ones = f"{len(undecided)} undecided ({fields})" if undecided else "nothing undecided"
    return f"{failing} failing, {open_ones}" if failing else open_ones
