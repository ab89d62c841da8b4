"""`parity check`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from parity.cli.parsing import Command
from parity.cli.shared import command_line, counting, in_github, print_json, tell_github, write_file
from parity.errors import UsageError

CHECK_EXAMPLES = """\b
Examples:
  parity check dumps/rollout_data --group-size 8 --temperature 1
  parity check run.samples.jsonl.gz run.exchanges.jsonl.gz --max-new-tokens 4096 --stop-token-ids 151645
  parity check relax-results/train --group-size 8 --reward my_task.py:reward --junit parity.xml
  parity check rollout_data --group-size 8 --require output_count slot_index --html samples.html
  parity check before/ after/ --html side-by-side.html
  parity check parity-out/20260101-120000
  parity check /shared/run/rollout_data --group-size 8 --processes 16
  parity check http://127.0.0.1:30000
  parity check http://127.0.0.1:30000 --determinism --control
"""
CHECK_EXIT_HELP = "Exit code: 0 passed, 1 failed, 2 wrong input (or a file could not be read whole), 3 inconclusive."


@click.command(cls=Command, epilog=CHECK_EXAMPLES + "\n" + CHECK_EXIT_HELP)
@click.argument("sources", nargs=-1, required=True, type=click.Path(), metavar="PATH… | URL")
@click.option("--group-size", type=click.IntRange(1), help="Samples of each group.")
@click.option("--max-new-tokens", type=click.IntRange(0), help="Cap of a response in tokens.")
@click.option("--context-length", type=click.IntRange(1), help="Cap of prompt and response together, in tokens.")
@click.option("--vocab-size", type=click.IntRange(1), help="Token ids are below it.")
@click.option("--stop-token-ids", type=int, multiple=True, help="A token that ends a response; may be given again.")
@click.option(
    "--stop-strings", is_flag=True, help="Strings too may end a response, so that its last token says nothing."
)
@click.option(
    "--media-placeholder",
    "media_placeholders",
    multiple=True,
    metavar="ID|TEXT",
    help="What stands for one medium in a prompt, a token's id or a text; may be given again.",
)
@click.option("--temperature", type=float, help="Sampling temperature, which dumps of hosts do not keep.")
@click.option(
    "--reward", metavar="FILE.py:FUNCTION", help="Computes the reward of a parity.records.samples.Sample again."
)
@click.option(
    "--advantage",
    type=click.Choice(["grpo", "grpo_no_std", "rloo", "batch_std", "batch"]),
    help="The trainer's formula, computed again.",
)
@click.option(
    "--partial-rollout", is_flag=True, help="A response may go on after a weight update, as in partial rollout."
)
@click.option(
    "--require",
    "required",
    multiple=True,
    metavar="CHECK…",
    help="Fail where a check could not be compared; all stands for every one (docs/reference/checks.md).",
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    help="Processes that read files of samples side by side. Default: one a core from 256 MB on.",
)
@click.option(
    "--ray", metavar="ADDRESS", help="Read files as tasks of a Ray cluster whose nodes see them, such as auto."
)
@click.option("--destructive", is_flag=True, help="With a URL: also send what is known to end some servers.")
@click.option("--control", is_flag=True, help="With a URL: also update weights, abort and pause, which others notice.")
@click.option(
    "--determinism",
    is_flag=True,
    help="With a URL: instead find how many sequences in flight it takes until a seed gives another response.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write the result as JUnit XML too.")
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a page of the samples too: steps, groups, tokens; two data sets side by side.",
)
@click.option("--quiet", is_flag=True, help="Print only the verdict.")
def check(
    sources: tuple[str, ...], as_json: bool, junit: Path | None, page: Path | None, quiet: bool, **asked: Any
) -> None:
    """Holds dumps, recordings or a live engine to the contract.

    A PATH is a file or a directory of them. What is at a path is recognised by its content: dumps of slime, Miles and
    Relax, Relax's and verl's JSON lines, Miles' dashboard columns, experiments, samples and exchanges as JSON lines
    (plain, gzip or zstd) and Parquet; and the metrics of runs, as `parity compare` reads them. What the options do not
    say is read from the data, where nine of ten groups agree.
    """
    from parity.commands.check import check_sources
    from parity.report.checks import headline, print_checks
    from parity.report.junit import render_findings

    if page and sources[0].startswith(("http://", "https://")):
        raise UsageError("--html shows samples of dumps; a URL has none")
    console = Console(stderr=as_json, highlight=False)
    with counting(quiet) as watcher:
        result = check_sources(sources, watcher=watcher, **asked)
    if junit:
        write_file(junit, render_findings(f"parity check: {headline(result)}", result.findings))
    if page:
        from parity.commands.check_page import page_of

        write_file(page, page_of(sources, asked["group_size"], result, command_line()))
    if in_github():
        from parity.commands.check_page import report_of

        tell_github(report_of(result, command_line()))
    if as_json:
        print_json(result.to_json())
    elif quiet:
        console.print(headline(result), markup=False)
    else:
        print_checks(result, console)
        for path in filter(None, (junit, page)):
            console.print(f"written: {path}", style="dim", markup=False)
    sys.exit(result.exit_code)
