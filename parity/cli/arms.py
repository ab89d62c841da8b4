"""The options that name arms, and the engines that answer them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from parity.cli.parsing import Named
from parity.cli.shared import given_options
from parity.errors import UsageError
from parity.records.arms import WAYS, Arm, arms_of_engines, read_arms


def arm_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that name arms; the command gets what `asked_arms` reads."""
    options = (
        click.option(
            "--baseline",
            is_flag=False,
            flag_value="per-sample",
            default="per-sample",
            type=Named(WAYS),
            show_default=True,
            help="The arm compared with; alone it means per-sample.",
        ),
        click.option(
            "--experiment", type=Named(WAYS), default="native", show_default=True, help="The arm in question."
        ),
        click.option(
            "--baseline-engine",
            metavar="ENGINE",
            help="Compare two engines, each as --engine takes it: the baseline's. Both are then asked per-sample, "
            "unless --baseline or --experiment says otherwise.",
        ),
        click.option("--experiment-engine", metavar="ENGINE", help="The other one. Default of either: --engine."),
        click.option(
            "--arms",
            "arms_file",
            type=click.Path(path_type=Path, dir_okay=False, exists=True),
            metavar="FILE",
            help="Two arms or more, each with all that it sets: TOML with tables [arms.NAME], the baseline first.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def fleet_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that start several engines behind a router."""
    router = click.option(
        "--router",
        default="",
        metavar="POLICY",
        help="Put the sglang-router before the engines started here, by a policy: random, round_robin, cache_aware, "
        "power_of_two or manual. Default: round_robin for several workers, no router for one.",
    )
    workers = click.option("--workers", type=int, default=1, show_default=True, help="Engines to start.")
    return workers(router(command))


def asked_arms(context: click.Context, asked: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of `arm_options` out of what was asked, and gives the settings that follow from them.

    Raises:
        UsageError: They do not go together.
        InputError: The file of arms cannot be read.
    """
    file, engines = asked.pop("arms_file"), (asked.pop("baseline_engine"), asked.pop("experiment_engine"))
    given = given_options(context, asked)
    named = [f"--{name}" for name in ("baseline", "experiment") if name in given]
    if file is not None:
        beside = [*named, *(["--baseline-engine or --experiment-engine"] if any(engines) else [])]
        if beside:
            raise UsageError(f"--arms {file} names every arm and its engine: leave out {' and '.join(beside)}")
        specs = read_arms(file, Arm(engine=asked["engine"], workers=asked["workers"], router=asked["router"]))
    elif any(engines):
        ways = (asked["baseline"], asked["experiment"]) if named else ("per-sample", "per-sample")
        specs = arms_of_engines(engines[0] or asked["engine"], engines[1] or asked["engine"], ways)
    else:
        return {name: given[name] for name in ("baseline", "experiment") if name in given}
    baseline, experiment, *_ = specs
    return {"baseline": baseline, "experiment": experiment, "specs": specs}
