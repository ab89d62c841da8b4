"""`parity bench`."""

from __future__ import annotations

import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from parity.cli.parsing import Command
from parity.cli.shared import command_line, given_options, new_directory, new_results
from parity.errors import EngineError, UsageError, shown
from parity.records.arms import ENGINES

if TYPE_CHECKING:
    from parity.commands.bench import Step  # loads scipy, which takes a second
    from parity.records.bench import BenchConfig, BenchResult, Measurement

EXIT_UNEQUAL = 3
PRESET_NAMES = ("text-256x4x256", "text-512x4x16", "image-64x8")

BENCH_EXAMPLES = """\b
Examples:
  parity bench http://127.0.0.1:30000
  parity bench http://127.0.0.1:30000 --mode per-sample --mode native --mode chunk=4 --repeats 10
  parity bench --engine embedded --workers 3 --router cache_aware --router round_robin --shared-prefix part
  parity bench http://router:30000 --preset text-256x4x256 --counts http://router:29000/metrics
  parity bench --counts worker-0.log worker-1.log worker-2.log
  parity bench http://127.0.0.1:30000 --compare parity-out/bench-before/bench.json
"""
BENCH_EXIT = (
    "Exit code: 0 measured, 2 wrong input or command, 3 the work was unequal, so that a ratio of time was refused."
)


@click.command(cls=Command, epilog=BENCH_EXAMPLES + "\n" + BENCH_EXIT)
@click.argument("url", required=False)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    help="Start engines; one that is up is given by its URL alone. Default without a URL: embedded.",
)
@click.option(
    "--model-path",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="The checkpoint for engines started here. Default: a tiny one with random weights.",
)
@click.option("--workers", type=int, default=1, show_default=True, help="Engines to start.")
@click.option("--router", "routers", multiple=True, metavar="POLICY", help="Policy of a router; several are compared.")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    metavar="MODE",
    help="per-sample, batched, native or chunk=K, or NAME:MODE; ratios are to the first. Default: the first three.",
)
@click.option(
    "--arms",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Modes by the names of arms that differ in their way of asking, as `parity run --arms` reads them.",
)
@click.option("--preset", type=click.Choice(PRESET_NAMES), help="The workload of a published report.")
@click.option("--groups", type=int, default=64, show_default=True, help="Prompts of a rollout.")
@click.option("--group-size", type=int, default=8, show_default=True, help="Samples a prompt.")
@click.option("--prompt-tokens", type=int, default=128, show_default=True, help="Ids of a prompt.")
@click.option("--new-tokens", type=int, default=64, show_default=True, help="Tokens of every response.")
@click.option(
    "--shared-prefix",
    type=click.Choice(["none", "part", "all"]),
    default="none",
    show_default=True,
    help="How much of the prompt is the same in all groups; part is half.",
)
@click.option("--images", type=int, default=0, show_default=True, help="Images a prompt, of random pixels.")
@click.option("--image-side", type=int, default=56, show_default=True, help="Pixels of their sides.")
@click.option("--concurrency", type=int, default=512, show_default=True, help="Most samples in flight.")
@click.option("--repeats", type=int, default=5, show_default=True, help="Measured rollouts of each mode.")
@click.option("--warm-up", type=int, default=1, show_default=True, help="Rollouts of each mode before them.")
@click.option(
    "--seed",
    type=int,
    help="Of the prompts and of the modes' order. Default: drawn, so that no engine has cached these prompts before.",
)
@click.option("--vocabulary", type=int, help="Ids of prompts are below it. Default: what the model's config says.")
@click.option("--control", is_flag=True, help="Empty the prefix cache at the URL before each rollout.")
@click.option(
    "--counts",
    multiple=True,
    metavar="SRC…",
    help="What counts each engine's load: access logs of SGLang, URLs or files of Prometheus counters of engines or of "
    "sglang-router. Without a URL or --engine: prints what they count.",
)
@click.option("--compare", "earlier", type=click.Path(path_type=Path), metavar="FILE", help="An earlier bench.json.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Default: parity-out/bench-<time>.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on standard output.")
@click.option("--quiet", is_flag=True, help="Print only the ratios.")
@click.pass_context
def bench(
    context: click.Context,
    /,
    url: str | None,
    engine: str | None,
    model_path: Path | None,
    preset: str | None,
    vocabulary: int | None,
    control: bool,
    counts: tuple[str, ...],
    earlier: Path | None,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    **asked: Any,
) -> None:
    """Measures what the granularity of requests costs.

    The same samples are asked for in several modes, which take turns. Every mode asks for equal work: as many samples
    of as many tokens, each to its cap. A ratio of time is refused where that does not hold. Says how requests and
    decode tokens spread over engines.
    """
    if url and engine:
        raise UsageError(f"{url} is there already: give a URL or --engine, not both")
    console = Console(stderr=as_json, highlight=False)
    if counts and not (url or engine):
        _print_counts(counts, console, as_json)
        return
    if url and "://" not in url:
        raise UsageError(f"{url!r} is no URL: expected http://HOST:PORT")
    config = _config(context, preset, url or engine or "embedded", asked)
    from parity.commands.validation import check_bench, check_live_engines

    check_bench(config)
    from parity.commands.bench import open_sources, run_bench, whole_repeats
    from parity.records.bench_files import read_bench
    from parity.report.bench import document, print_bench, ratio_lines, write_bench
    from parity.stats import assess_benchmark

    before = read_bench(earlier) if earlier else None
    if before and before.config.workload != config.workload:
        raise UsageError(f"{earlier}: {_differences(before, config)}; only equal workloads are compared")
    if before and before.cache_emptied != (control or not url):
        there, now = ("was", "is not") if before.cache_emptied else ("was not", "is")
        raise UsageError(
            f"{earlier}: the prefix cache {there} emptied before each rollout there, and {now} now; say or leave out "
            "--control as then"
        )
    sources = open_sources(counts)
    check_live_engines([config.engine])
    directory = out or new_directory("bench-")
    command = command_line()
    finished: list[Measurement] = []
    # What cannot be written is told before it is measured.
    with new_results(directory), tempfile.TemporaryDirectory() as scratch, _progress(console, quiet) as shows:
        step, starting = shows

        def tell(now: Step) -> None:
            step(now)
            if now.finished:
                finished.append(now.finished)

        try:
            result = run_bench(
                config,
                model_path,
                directory / "logs" if not url else Path(scratch),
                vocabulary=vocabulary,
                sources=sources,
                control=control,
                progress=tell,
                starting=starting,
            )
        except (EngineError, KeyboardInterrupt):
            if partial := whole_repeats(config, finished, control or not url):
                files = write_bench(assess_benchmark(partial, before), directory, command)
                said = f"{partial.config.repeats} of {config.repeats} repeats were whole"
                click.echo(f"{said}: they are in {files[0]} and {files[1].name}", err=True)
            raise
    report = assess_benchmark(result, before)
    files = write_bench(report, directory, command)
    if as_json:
        import orjson

        sys.stdout.buffer.write(orjson.dumps(document(report, command), option=orjson.OPT_INDENT_2) + b"\n")
    elif quiet:
        for line in ratio_lines((*report.ratios, *report.across, *report.compared)):
            console.print(line, markup=False)
    else:
        print_bench(report, console)
        console.print(f"files: {files[0]} and {files[1].name}", style="dim")
    if report.refused:
        sys.exit(EXIT_UNEQUAL)


def _config(context: click.Context, preset: str | None, engine: str, asked: dict[str, Any]) -> BenchConfig:
    """The preset, or the defaults, with the options that were given."""
    from parity.records.arms import Arm, read_arms
    from parity.records.bench import PRESETS, SHARED_PREFIX, BenchConfig, Workload, at_url, modes_of_arms, parse_mode

    given = given_options(context, asked)
    if file := given.pop("arms", None):
        if clash := [name for name in ("modes", "workers", "routers") if name in given]:
            option = f"--{clash[0].removesuffix('s')}"
            raise UsageError(f"--arms {file} names the modes and their engine: leave out {option}")
        arms = read_arms(file, Arm(engine=engine))
        first = next(iter(arms.values()))
        if first.options or first.environment or (engine != first.engine and "://" in engine + first.engine):
            raise UsageError(f"--arms {file}: bench starts engines as they are; give the URL of one with its options")
        given |= {"modes": modes_of_arms(arms), "workers": first.workers}
        given |= {"routers": (first.router,)} if first.router else {}
        engine = first.engine
    if "shared_prefix" in given:
        given["shared_prefix"] = SHARED_PREFIX[given["shared_prefix"]]
    if "modes" in given:
        given["modes"] = tuple(parse_mode(mode) if isinstance(mode, str) else mode for mode in given["modes"])
    base = replace(PRESETS[preset] if preset else BenchConfig(), seed=secrets.randbits(32))
    base = at_url(base, engine) if "://" in engine else replace(base, engine=engine)
    names = {field.name for field in fields(Workload)}
    workload = replace(base.workload, **{name: value for name, value in given.items() if name in names})
    rest = {name: value for name, value in given.items() if name not in names}
    return replace(base, workload=workload, **rest)


def _differences(before: BenchResult, config: BenchConfig) -> str:
    """In which options an earlier workload differs."""
    then, now = before.config.workload, config.workload
    differ = [field.name for field in fields(then) if getattr(then, field.name) != getattr(now, field.name)]
    return ", ".join(f"{name} was {getattr(then, name)} and is {getattr(now, name)}" for name in differ)


def _print_counts(counts: tuple[str, ...], console: Console, as_json: bool) -> None:
    """What each engine served, by logs and counters that somebody has."""
    import asyncio
    from dataclasses import asdict

    import orjson

    from parity.commands.bench import open_sources, read_loads
    from parity.report.bench import load_table

    loads = asyncio.run(read_loads(open_sources(counts)))
    if as_json:
        rows = {engine: asdict(load) for engine, load in loads.items()}
        sys.stdout.buffer.write(orjson.dumps(rows, option=orjson.OPT_INDENT_2) + b"\n")
    else:
        console.print(load_table([(", ".join(loads), loads)]))


@contextmanager
def _progress(console: Console, quiet: bool) -> Iterator[tuple[Any, Any]]:
    """How progress is shown: a bar on a terminal, else a line a rollout; rate and time left are without starts."""
    spent = samples = 0.0

    def pace(now: Any) -> str:
        nonlocal spent, samples
        if now.finished:
            spent, samples = spent + now.finished.seconds, now.done
        return (
            f"{samples / spent:.0f} samples/s, {(now.total - now.done) * spent / samples:.0f} s left" if spent else ""
        )

    if quiet:
        yield lambda _: None, None
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[pace]}"),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=None, pace="")
            yield (
                lambda now: bar.update(
                    task, completed=now.done, total=now.total, description=now.doing, pace=pace(now)
                ),
                lambda seconds, line: bar.update(task, description=f"engine starting, {seconds:.0f} s"),
            )
    else:

        def tell(now: Any) -> None:
            if now.finished:
                said = f"{now.finished.requests} requests, {now.finished.seconds:.2f} s"
                click.echo(f"{now.doing}: {said}; {pace(now)}", err=True)

        def starting(seconds: float, line: str) -> None:
            if round(seconds) % 10 == 0:
                click.echo(f"engine starting, {seconds:.0f} s{line and f': {shown(line[:80])}'}", err=True)

        yield tell, starting
