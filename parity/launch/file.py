"""The file of a launch: arms, seeds, the command, where results will be, and when a run is started again."""

from __future__ import annotations

import math
import random
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from parity.errors import InputError, UsageError
from parity.findings import quantity
from parity.records.margins import check_margin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PLACES = ("arm", "seed", "run", "python", "arguments")
"""What a command, an argument, a path and a variable may name in braces.

`run` is the run's own directory, `python` the interpreter that this command runs in.
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PLACE = re.compile(r"(?<!\$)\{([a-z]+)\}")
"""A place in braces; shell variables such as ``${HOME}`` are none."""


class ArmFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one arm changes: variables and arguments added to the command, or a command of its own."""

    environment: dict[str, str] = {}
    arguments: list[str] = []
    command: str = ""


class Results(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a run leaves what it is judged by, as `parity compare` and `parity check` read it.

    `curves` is required; `samples` are dumps and recordings, which the contract is checked on, and of which a probe or
    a switchback is made. `group_size` is for dumps that do not say which samples are one group; `reward_range` is the
    least and the largest reward, and `max_new_tokens` the cap of a response, where samples do not say it.
    """

    curves: str
    samples: list[str] = []
    group_size: int = 0
    max_new_tokens: int = 0
    reward_range: tuple[float, float] = (0.0, 1.0)


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the verdict speaks of, in the words that the report is to have."""

    trainer: str = ""
    model: str = ""
    engine: str = ""
    engine_version: str = ""
    task: str = ""


class Restart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is done with a run that failed, or that made no step for so long.

    `policy` is ``checkpoint`` (the same command again, with `arguments`, in the same directory), ``zero`` (again in an
    empty directory) or ``never``; `attempts` counts all, the first included.
    """

    policy: Literal["checkpoint", "zero", "never"] = "zero"
    attempts: int = 3
    arguments: list[str] = []
    hang_minutes: float = 30.0


class Alarms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When to call for somebody while runs go on.

    `collapse`: a reward that fell and stays down. `stall`: no step for half of the time after which a run counts as
    hung. `aborts`: a larger share of responses that were aborted. `gap`: trainer and engine disagree on log-probs.
    `exit` are those that end the command, though not the jobs.
    """

    aborts: float = 0.1
    exit: list[Literal["collapse", "stall", "aborts", "gap"]] = []


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where jobs run: on this machine, or by the Jobs API of a Ray cluster; `cpus` and `gpus` are those of one job."""

    kind: Literal["local", "ray"] = "local"
    address: str = ""
    at_once: int = 1
    cpus: float = 0.0
    gpus: float = 0.0
    resources: dict[str, float] = {}
    working_directory: str = ""


class LaunchFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that a launch asks for; the first arm is the baseline.

    Attributes:
        command: The shell command of one run, with places in braces (`PLACES`).
        arms: What each arm changes, by name.
        design: ``paired`` (a run for each arm and seed, which sample freely), ``twin`` (the same, but both arms sample
            with the same seeds), or one run a seed whose groups the patch draws to an arm: ``probe`` or ``switchback``;
            its arms are the two names that the assignments have.
        seeds: The seeds of every arm.
        results: Where a run leaves what it is judged by.
        margins: The largest difference that does not matter, by metric.
        environment: Variables of every run.
        restart: What is done with a run that failed or hangs.
        alarms: When to call for somebody.
        place: Where jobs run.
        scope: What the verdict speaks of.
        code: The checkouts whose state is written down at each start; by default the directory that jobs start in.
        order_seed: Draws the order of the arms at each seed.
        steps: Training steps of a whole run; 0 where only the command knows.
    """

    command: str
    arms: dict[str, ArmFile]
    seeds: list[int]
    results: Results
    design: Literal["paired", "twin", "probe", "switchback"] = "paired"
    margins: dict[str, float] = {}
    environment: dict[str, str] = {}
    restart: Restart = Restart()
    alarms: Alarms = Alarms()
    place: Place = Place()
    scope: Scope = Scope()
    code: list[str] = []
    order_seed: int = 0
    steps: int = 0

    @property
    def mixed(self) -> bool:
        """Whether each run has groups of both arms."""
        return self.design in ("probe", "switchback")


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run as it will be started.

    Attributes:
        name: ``<arm>-seed<k>``.
        arm: Its arm; of a run with groups of both arms, the design.
        command: The shell command.
        again: The shell command of a further attempt.
        environment: Variables beside those of the launching process.
        directory: The run's own directory, absolute.
        curves: Where its curves will be, and `samples` its dumps and recordings.
    """

    name: str
    arm: str
    seed: int
    command: str
    again: str
    environment: Mapping[str, str]
    directory: Path
    curves: str
    samples: tuple[str, ...]

    def setup(self, attempt: int) -> Path:
        """Where an attempt writes what it was started with."""
        return self.directory / f"setup-{attempt}.json"


def read_launch_file(path: Path) -> LaunchFile:
    """Reads and checks a launch file.

    Raises:
        InputError: The file cannot be read, a field is missing, unknown or of another type, or a value is not possible.
    """
    try:
        launch = msgspec.convert(tomllib.loads(path.read_text("utf-8")), LaunchFile)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {error}") from error
    if problem := next(_problems(launch), None):
        raise InputError(f"{path}: {problem}")
    return launch


def _problems(launch: LaunchFile) -> Iterator[str]:
    """What cannot be launched, in the order of the file."""
    if not launch.command.strip():
        yield "command is empty"
    if len(launch.arms) < 2:
        yield f"arms names {quantity(len(launch.arms), 'arms')}: a comparison needs two, the baseline first"
    for name in launch.arms:
        if not _NAME.fullmatch(name):
            yield f"arms.{name}: a name is made of letters, digits, '.', '_' and '-'"
    if launch.mixed and (len(launch.arms) != 2 or any(arm != ArmFile() for arm in launch.arms.values())):
        yield (
            f"arms: a {launch.design} has both arms in one run: name the two, as the assignments do, and put what the "
            "run is started with into command and environment"
        )
    if launch.design != "paired" and not launch.results.samples:
        yield f"results.samples: a {launch.design} is judged by what was recorded, so say where"
    if not launch.seeds or len(set(launch.seeds)) < len(launch.seeds):
        yield f"seeds is {launch.seeds}: one or more, each once"
    if "{run}" not in launch.results.curves:
        yield f"results.curves is {launch.results.curves!r}: without {{run}} all runs would write to one place"
    for metric, margin in launch.margins.items():
        try:
            check_margin(metric, margin)
        except UsageError as error:
            yield f"margins.{metric}: {error}"
    restart, place = launch.restart, launch.place
    for where, number in (("restart.attempts", restart.attempts), ("place.at_once", place.at_once)):
        if number < 1:
            yield f"{where} is {number}: 1 or more"
    if not 0 < launch.alarms.aborts <= 1:
        yield f"alarms.aborts is {launch.alarms.aborts:g}: a share of all responses, above 0 and at most 1"
    if not restart.hang_minutes > 0:
        yield f"restart.hang_minutes is {restart.hang_minutes:g}: above 0"
    low, high = launch.results.reward_range
    if not -math.inf < low < high < math.inf:
        yield f"results.reward_range is [{low:g}, {high:g}]: the lowest, then the highest reward"
    for where, number in (("group_size", launch.results.group_size), ("max_new_tokens", launch.results.max_new_tokens)):
        if number < 0:
            yield f"results.{where} is {number}: above 0, or left out"
    if place.kind == "local" and (place.address or place.gpus or place.cpus or place.resources):
        yield 'place: address, cpus, gpus and resources are for kind = "ray"'
    for where, text in _texts(launch):
        for name in _PLACE.findall(text):
            if name not in PLACES:
                yield f"{where} names {{{name}}}: there are {', '.join(PLACES)}"


def _texts(launch: LaunchFile) -> Iterator[tuple[str, str]]:
    """Every text in which places are filled in, with the name of its field."""
    yield "command", launch.command
    yield "results.curves", launch.results.curves
    yield from (("results.samples", text) for text in launch.results.samples)
    yield from (("restart.arguments", text) for text in launch.restart.arguments)
    yield from ((f"environment.{key}", text) for key, text in launch.environment.items())
    for name, arm in launch.arms.items():
        yield f"arms.{name}.command", arm.command
        yield from ((f"arms.{name}.arguments", text) for text in arm.arguments)
        yield from ((f"arms.{name}.environment.{key}", text) for key, text in arm.environment.items())


def _filled(text: str, values: Mapping[str, Any]) -> str:
    return _PLACE.sub(lambda match: str(values[match.group(1)]), text)


def plan_runs(launch: LaunchFile, out: Path) -> list[RunPlan]:
    """Every run in the order they start: seed by seed, the arms of a seed in an order drawn for it.

    So drift of a cluster falls on all arms, and no arm is always first.
    """
    plans = []
    arms = [launch.design] if launch.mixed else list(launch.arms)
    for seed in launch.seeds:
        order = random.Random(f"{launch.order_seed}-{seed}").sample(arms, len(arms))
        plans += [_run_plan(launch, arm, seed, out) for arm in order]
    return plans


def _run_plan(launch: LaunchFile, name: str, seed: int, out: Path) -> RunPlan:
    arm = launch.arms.get(name, ArmFile())
    directory = (out / "runs" / f"{name}-seed{seed}").absolute()
    values = {"arm": name, "seed": seed, "run": directory, "python": sys.executable}

    def command(further: list[str]) -> str:
        arguments = shlex.join([_filled(text, values) for text in [*arm.arguments, *further]])
        text = arm.command or launch.command
        if "{arguments}" not in text and arguments:
            text += " {arguments}"
        quoted = {name: shlex.quote(str(values[name])) for name in ("run", "python")}
        return _filled(text, {**values, **quoted, "arguments": arguments})

    environment = {key: _filled(text, values) for key, text in {**launch.environment, **arm.environment}.items()}
    return RunPlan(
        name=directory.name,
        arm=name,
        seed=seed,
        command=command([]),
        again=command(launch.restart.arguments if launch.restart.policy == "checkpoint" else []),
        environment=environment,
        directory=directory,
        curves=_filled(launch.results.curves, values),
        samples=tuple(_filled(text, values) for text in launch.results.samples),
    )
