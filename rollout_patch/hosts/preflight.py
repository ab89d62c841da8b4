"""What would happen under a host's flags, before anything is started: which groups go which way, and why."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rollout_patch.eligibility import CONDITIONS, Capabilities, choose_arm
from rollout_patch.hosts import miles, relax, slime
from rollout_patch.hosts.calls import capabilities_of, seed_conditions
from rollout_patch.hosts.engines import Engines, ask_engines
from rollout_patch.hosts.guard import fingerprint_of
from rollout_patch.hosts.known import BODIES
from rollout_patch.hosts.options import Options, read_options

FUNCTIONS = {
    "slime": "rollout_patch.hosts.slime.generate_rollout",
    "miles": "rollout_patch.hosts.miles.GroupRolloutFn",
    "relax": "rollout_patch.hosts.relax.generate_rollout",
}
"""What ``--rollout-function-path`` must name, by host."""

ALSO = {
    "slime": "rollout_patch.hosts.slime_fully_async.generate_rollout_fully_async",
    "miles": "rollout_patch.hosts.miles.generate_rollout",
}
"""What it may name instead: slime's fully asynchronous rollout, and Miles' legacy path."""

GOES, DOES_NOT, UNKNOWN = 0, 1, 3
"""Groups go as asked for; none can; or something could not be looked at. Exit codes, as of other commands."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """What a preflight found.

    Attributes:
        host: One line a function, with the revision in which its body was first tested, "unknown" or "missing".
        arm: The arm that groups are asked for in.
        way: The arm that they go, as far as flags and engines decide it.
        reasons: Why not the arm asked for.
        engines: What the engines said; `None` where none were named.
        options: How groups are asked for.
        problems: What is wrong with the flags.
    """

    host: Mapping[str, str]
    arm: str
    way: str
    reasons: tuple[str, ...]
    engines: Engines | None
    options: Options
    problems: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """`GOES`, `DOES_NOT` or `UNKNOWN`."""
        bodies = set(self.host.values())
        refused = {"unknown", "missing"} & bodies and not self.options.allow_unknown_host
        if self.problems or refused or (self.way == "per-sample" and self.arm != "per-sample"):
            return DOES_NOT
        return UNKNOWN if not bodies or (self.engines is not None and self.engines.silent) else GOES

    def lines(self) -> list[str]:
        """The result for people."""
        lines = [f"{name}: {label}" for name, label in self.host.items()]
        if not lines:
            lines.append("the host's code was not found, and nothing of it was looked at")
        if self.engines is not None:
            lines.append(f"engines: {self.engines.described()}")
        lines.append(f"groups are asked for {self.arm} and go {self.way}")
        lines += [f"  {reason}: {CONDITIONS[reason].sentence}" for reason in self.reasons]
        record = self.options.record
        lines.append(f"recorded: {'nothing' if record is None else f'samples, exchanges and groups, to {record}'}")
        return [*lines, *(f"problem: {problem}" for problem in self.problems)]


def preflight(
    host: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    checkout: Path | None = None,
    router: str | None = None,
    read_config: Callable[[Path], Mapping[str, Any]] | None = None,
) -> Preflight:
    """Looks at a host's code, its flags and its engines; starts nothing, and imports nothing of the host's.

    Args:
        host: "slime", "miles" or "relax".
        words: The host's command line, or the part of it that is about rollouts.
        environment: The environment that the rollout will have.
        checkout: The host's checkout; `None` looks for the installed package.
        router: The address of a running router.
        read_config: Reads the host's ``--custom-config-path``, whose entries are arguments too.

    Raises:
        ValueError: The host is unknown, or an option of the plug-in is wrong.
    """
    if host not in FUNCTIONS:
        raise ValueError(f"the host is {host!r}, none of {', '.join(FUNCTIONS)}")
    args = arguments_of(words)
    config = getattr(args, "custom_config_path", None)
    if config and read_config is not None:
        vars(args).update(read_config(Path(config)))
    options = read_options(args, environment)
    engines = None if router is None else asyncio.run(ask_engines(router.rstrip("/"), _get))
    able = capabilities_of(args, options)
    if engines is not None:
        able = engines.added_to(able)
    try:
        names = [*_flags(host, args, able), *seed_conditions(able)]
    except TypeError as error:
        raise ValueError(f"a flag has a value of another kind than {host} gives it: {error}") from error
    if engines is not None:
        names += engines.conditions()
        if engines.silent and getattr(args, "sglang_config", None):
            names.append("engine_unknown")
    way, reasons = choose_arm(options.arm, names)
    return Preflight(bodies(host, checkout), options.arm, way, reasons, engines, options, _problems(host, args))


def arguments_of(words: Sequence[str]) -> Any:
    """The flags of a command line as the host's arguments: numbers as numbers, flags without a value as true."""
    given: dict[str, Any] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            name = flag.replace("-", "_")
            given[name] = _value(value) if equals else True
        elif name:
            given[name] = _value(word) if given[name] is True else given[name]
    given.setdefault("custom_generate_function_path", None)
    return SimpleNamespace(**given)


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return word


def _flags(host: str, args: Any, able: Capabilities) -> list[str]:
    if host == "slime":
        return slime.conditions_of(args)
    if host == "relax":
        return relax.conditions_of(args)
    names = miles.conditions_of(args, [], bool(args.custom_generate_function_path))
    lora = miles.sends_adapter(args) and not able.lora_with_n
    return [*names, "lora_adapter", "lora_lists_refused"] if lora else names


def _problems(host: str, args: Any) -> tuple[str, ...]:
    path = getattr(args, "rollout_function_path", FUNCTIONS[host])
    found = []
    if path not in (FUNCTIONS[host], ALSO.get(host)):
        found.append(f"--rollout-function-path is {path}, so that the plug-in is not called; it is {FUNCTIONS[host]}")
    if host == "relax" and getattr(args, "use_agentic_rollout", False):
        found.append("--use-agentic-rollout sets another rollout function, so that the plug-in is not called")
    if host == "miles" and getattr(args, "fully_async", False):
        found.append("Miles refuses --fully-async together with --rollout-function-path")
    if getattr(args, "n_samples_per_prompt", 2) == 1:
        found.append("--n-samples-per-prompt is 1: a group of one is one request in every arm")
    return tuple(found)


def bodies(host: str, checkout: Path | None) -> dict[str, str]:
    """The functions of a host whose bodies are known, each with the revision that it was first tested in.

    Empty where the host's code is not found; "unknown" is another body, "missing" no such function.
    """
    root = checkout or _installed(host)
    if root is None or not (root / host).is_dir():
        return {}
    found = {}
    for full, known in BODIES[host].items():
        module, _, name = full.rpartition(".")
        path = root / f"{module.replace('.', '/')}.py"
        nodes = ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else []
        digests = [fingerprint_of(node) for node in nodes if getattr(node, "name", "") == name]
        found[full] = known.get(digests[0], "unknown") if digests else "missing"
    return found


def _installed(host: str) -> Path | None:
    spec = importlib.util.find_spec(host)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return Path(places[0]).parent if places else None


async def _get(url: str) -> Any:
    def fetch() -> Any:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)

    return await asyncio.to_thread(fetch)
