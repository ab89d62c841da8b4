"""Arms: named ways of making rollouts, and the file that names them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from parity.errors import MASK, InputError, did_you_mean, without_secrets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WAYS = ("per-sample", "batched", "native")
"""The ways of asking for a group: n requests, one request with a list of n prompts, one request with `n`."""

ENGINES = ("embedded", "sglang", "vllm")
"""Engines that can be started here; a URL names one that somebody else runs."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SECRET_NAME = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)

T = TypeVar("T")
A = TypeVar("A", bound="ArmsAsked")


@dataclass(frozen=True, slots=True)
class Deployment:
    """Who answers: arms with an equal one share its engines.

    Attributes:
        engine: ``embedded``, ``sglang``, ``vllm``, or the URL of a deployment.
        options: Added to the command that starts an engine.
        environment: Added to the variables of an engine that is started; an empty value removes one.
        workers: How many engines to start.
        router: The policy of the router in front of them; empty: `round_robin` for several, no router for one.
        owner: The arm that it is for alone; empty where arms may share it.
    """

    engine: str = "embedded"
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    workers: int = 1
    router: str = ""
    owner: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether somebody else runs it."""
        return "://" in self.engine


@dataclass(frozen=True, slots=True)
class Arm:
    """What an arm sets: how a group is asked for, who answers, and with which sampling parameters.

    Attributes:
        way: One of `WAYS`.
        chunk: Most samples of one request; None puts a group into one.
        engine: As in `Deployment`, likewise `options`, `environment`, `workers` and `router`.
        own_engine: Whether an engine is started for this arm alone, although that of another arm is the same.
        temperature: Of sampling; None leaves that of the run, likewise `top_p` and `top_k`.
    """

    way: str = "per-sample"
    chunk: int | None = None
    engine: str = "embedded"
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    workers: int = 1
    router: str = ""
    own_engine: bool = False
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None

    @property
    def is_remote(self) -> bool:
        """Whether somebody else runs its engine."""
        return "://" in self.engine

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling parameters that it sets."""
        named = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return {name: value for name, value in named.items() if value is not None}

    def shown(self) -> Arm:
        """The arm as it may be written down: without passwords and keys."""
        hidden = {name: MASK if _SECRET_NAME.search(name) else value for name, value in self.environment.items()}
        options = tuple(map(without_secrets, self.options))
        return replace(self, engine=without_secrets(self.engine), options=options, environment=hidden)


@dataclass(frozen=True, slots=True)
class ArmsAsked:
    """The arms that a command compares.

    Attributes:
        baseline: The arm compared with.
        experiment: The arm in question, the first one where there are several.
        engine: ``embedded``, ``sglang``, ``vllm``, or the URL of a deployment, of arms without a spec.
        workers: How many engines to start, likewise.
        router: The policy of the router in front of them; empty: `round_robin` for several, no router for one.
        specs: What each arm sets, baseline first; empty: baseline and experiment are ways of asking the one engine.
    """

    baseline: str
    experiment: str
    engine: str = "embedded"
    workers: int = 1
    router: str = ""
    specs: Mapping[str, Arm] = field(default_factory=dict)

    @property
    def arms(self) -> tuple[str, ...]:
        """All arms by name, the baseline first."""
        return tuple(self.specs) or (self.baseline, self.experiment)

    def arm(self, name: str) -> Arm:
        """What an arm sets."""
        return self.specs.get(name) or Arm(way=name, engine=self.engine, workers=self.workers, router=self.router)

    def deployment(self, name: str) -> Deployment:
        """Who answers an arm."""
        arm = self.arm(name)
        environment = tuple(sorted(arm.environment.items()))
        owner = name if arm.own_engine else ""
        return Deployment(arm.engine, arm.options, environment, arm.workers, arm.router, owner)

    @property
    def deployments(self) -> dict[Deployment, str]:
        """Who answers, each with the first arm that asks it."""
        found: dict[Deployment, str] = {}
        for name in self.arms:
            found.setdefault(self.deployment(name), name)
        return found

    def against(self: A, name: str) -> A:
        """The same question of the baseline and one other arm."""
        specs = {arm: spec for arm, spec in self.specs.items() if arm in (self.arms[0], name)}
        return replace(self, baseline=self.arms[0], experiment=name, specs=specs)

    def arms_to_json(self) -> dict[str, Any]:
        """The engine and the specs as they may be written down: without passwords and keys."""
        specs = {name: asdict(arm.shown()) for name, arm in self.specs.items()}
        return {"engine": without_secrets(self.engine), "specs": specs}


def read_arms(path: Path, defaults: Arm) -> dict[str, Arm]:
    """The arms of a file, the baseline first: TOML with a table ``[arms.NAME]`` for each.

    Args:
        path: The file.
        defaults: What a table does not say.

    Raises:
        InputError: The file cannot be read, a field is unknown or of another type, or a value is not possible.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}") from error
    tables = content.get("arms")
    if set(content) != {"arms"} or not isinstance(tables, dict):
        others = ", ".join(sorted(set(content) - {"arms"})) or "nothing"
        raise InputError(f"{path}: expected tables [arms.NAME] and nothing else; it has {others} beside them")
    base = {name: getattr(defaults, name) for name in Arm.__slots__}
    arms = {}
    for name, table in tables.items():
        settings = {**base, **table} if isinstance(table, dict) else table
        arms[name] = read_settings(settings, Arm, f"{path}: arms.{name}")
    if problem := next(problems_of_arms(arms), None):
        raise InputError(f"{path}: {problem}")
    return arms


def problems_of_arms(arms: Mapping[str, Arm]) -> Iterator[str]:
    """What is wrong with arms, in their order."""
    if len(arms) < 2:
        yield f"it names {len(arms)} of the two arms or more that a comparison needs, the baseline first"
    for name, arm in arms.items():
        place = f"arms.{name}"
        if not _NAME.fullmatch(name):
            yield f"{place}: a name is made of letters, digits, '.', '_' and '-'"
        if name in WAYS and arm.way != name:
            yield f"{place}.way is {arm.way!r}: an arm called by a way of asking asks that way"
        if arm.way not in WAYS:
            yield f"{place}.way is {arm.way!r}: there are {', '.join(WAYS)}{did_you_mean(arm.way, WAYS)}"
        if arm.chunk is not None and (arm.chunk < 1 or arm.way == "per-sample"):
            yield f"{place}.chunk is {arm.chunk}: 1 or more samples of a request, where a way asks for several"
        if not arm.is_remote and arm.engine not in ENGINES:
            nearest = did_you_mean(arm.engine, ENGINES)
            yield f"{place}.engine is {arm.engine!r}: expected {', '.join(ENGINES)} or a URL{nearest}"
        if arm.is_remote and (arm.options or arm.environment):
            yield f"{place}: options and environment are of an engine started here; {arm.engine} is there already"
        if arm.workers < 1:
            yield f"{place}.workers is {arm.workers}: 1 or more"
        if arm.temperature is not None and not arm.temperature > 0:
            yield f"{place}.temperature is {arm.temperature:g}: above 0, as greedy samples have no distribution"
        if arm.top_p is not None and not 0 < arm.top_p <= 1:
            yield f"{place}.top_p is {arm.top_p:g}: above 0, and at most 1"
        if arm.top_k is not None and (arm.top_k < 1 and arm.top_k != -1):
            yield f"{place}.top_k is {arm.top_k}: 1 or more, or -1 for all"


def name_of_engine(engine: str) -> str:
    """What an arm is called after its engine: ``embedded``, or host and port of a URL."""
    if "://" not in engine:
        return engine
    return re.sub(r"[^A-Za-z0-9._-]", "-", urlsplit(engine).netloc.rpartition("@")[2]) or "engine"


def arms_of_engines(baseline: str, experiment: str, ways: tuple[str, str]) -> dict[str, Arm]:
    """Two arms that differ in their engine, named after it; by their side where both are called the same."""
    names = name_of_engine(baseline), name_of_engine(experiment)
    if alike := names[0] == names[1]:
        names = ("baseline", "experiment")
    return {
        name: Arm(way=way, engine=engine, own_engine=alike and "://" not in engine)
        for name, way, engine in zip(names, ways, (baseline, experiment), strict=True)
    }


def set_apart(asked: ArmsAsked, names: Iterable[str]) -> frozenset[str]:
    """The sampling parameters that some of the arms named set otherwise than others."""
    settings = [asked.arm(name).sampling for name in names]
    parameters = {name for of_arm in settings for name in of_arm}
    return frozenset(name for name in parameters if len({of_arm.get(name) for of_arm in settings}) > 1)


def differ_beyond_requests(asked: ArmsAsked) -> bool:
    """Whether arms have other engines or sampling parameters, and not only another way of asking."""
    return len(asked.deployments) > 1 or bool(set_apart(asked, asked.arms))


def check_names(row: object, kind: type[Any], place: str) -> None:
    """Holds the names in an object of a file to the fields of a dataclass.

    Raises:
        InputError: It is no object, or a name is unknown.
    """
    if not isinstance(row, Mapping):
        raise InputError(f"{place} is {type(row).__name__}, not an object")
    names = [known.name for known in fields(kind)]
    for unknown in sorted(set(map(str, row)) - set(names)):
        raise InputError(f"{place} has an unknown setting: {unknown}{did_you_mean(unknown, names)}")


def read_settings(row: object, kind: type[T], place: str) -> T:
    """A dataclass of settings from an object of a file; what is not there has its default.

    Raises:
        InputError: It is no object, a name is unknown, or a value is of another type.
    """
    check_names(row, kind, place)
    specs = row.get("specs") if isinstance(row, Mapping) else None
    for name, arm in specs.items() if isinstance(specs, Mapping) else ():
        check_names(arm, Arm, f"{place}.specs.{name}")
    try:
        return msgspec.convert(row, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{place}: {error}") from error
