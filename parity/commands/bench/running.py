"""A whole benchmark: engines started or found, warm-up, modes and policies taking turns, loads read around rollouts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from parity.commands.bench.loads import Source, growth, metrics_source, read_loads
from parity.commands.bench.measuring import measure
from parity.commands.bench.prompts import Vocabulary, requests, vocabulary_of
from parity.commands.validation import check_bench
from parity.engines import Engine, EngineClient, EngineProcess, Fleet, RemoteEngine, open_engine
from parity.errors import EngineError, InputError, UsageError
from parity.records.bench import BenchConfig, BenchResult, Load, Measurement, Mode

SETTLING_SECONDS = 2.0
"""How long to wait for engines to have counted what they answered."""

MOST_IMAGE_TOKENS = 64
"""Of one image to parity's own policy, which scales larger ones down."""


@dataclass(frozen=True, slots=True)
class Step:
    """How far a benchmark is.

    Attributes:
        done: Samples that came back, over all rollouts.
        total: Samples in all.
        doing: The rollout that runs.
        finished: It, once it is measured.
    """

    done: int
    total: int
    doing: str
    finished: Measurement | None = None


def run_bench(
    config: BenchConfig,
    model_path: Path | None,
    log_dir: Path,
    *,
    vocabulary: int | None = None,
    sources: Sequence[Source] = (),
    control: bool = False,
    progress: Callable[[Step], object] = lambda step: None,
    starting: Callable[[float, str], None] | None = None,
) -> BenchResult:
    """Measures every mode, under every policy, and stops what it started.

    The modes of a repeat, under all policies, run one after another in a random order. Every rollout has prompts of its
    own; where the engine is under control its prefix cache is emptied before each as well.

    Args:
        config: What to measure.
        model_path: The checkpoint to serve; by default one with random weights, of the shape of parity's own policy.
        log_dir: Where engines' logs, and that checkpoint, go.
        vocabulary: How many ids prompts may hold; asked of the engine by default.
        sources: What counts the load of each engine of a deployment.
        control: Whether the prefix cache of a deployment may be emptied.
        progress: Called for every group that is done and every rollout that is measured.
        starting: Called about once a second while an engine starts.

    Raises:
        UsageError: The parts of `config` do not fit together, or the vocabulary is not known.
        EngineError: An engine did not start or answer, or nothing came back for a rollout.
    """
    check_bench(config)
    if model_path is None and "://" not in config.engine:
        model_path = _random_model(config, log_dir)
    total, done = config.rollouts * config.workload.samples, 0

    def tell(count: int, doing: str, finished: Measurement | None) -> None:
        nonlocal done
        done += count
        progress(Step(done, total, doing, finished))

    with _launched(config, model_path, log_dir, control, starting) as engines:
        target = _Target(engines, sources, model_path, vocabulary, control)
        try:
            rollouts, info = asyncio.run(target.measure_all(config, tell))
        except EngineError as error:
            if ended := _ended(engines.values()):
                raise EngineError(f"{', '.join(ended)} ended meanwhile, logs in {log_dir}: {error}") from error
            raise
    return BenchResult(config, info, target.flushes, tuple(rollouts))


def whole_repeats(config: BenchConfig, rollouts: Sequence[Measurement], cache_emptied: bool) -> BenchResult | None:
    """What a benchmark that was stopped had measured: its first repeats that are whole; None before there is one."""
    each = len(config.policies) * len(config.modes)
    measured = [rollout for rollout in rollouts if rollout.repeat >= 0]
    repeats = len(measured) // each
    if not repeats:
        return None
    return BenchResult(replace(config, repeats=repeats), {}, cache_emptied, tuple(measured[: repeats * each]))


@contextmanager
def _launched(
    config: BenchConfig,
    model_path: Path | None,
    log_dir: Path,
    control: bool,
    starting: Callable[[float, str], None] | None,
) -> Iterator[Mapping[str | None, Engine]]:
    """The engines, by policy behind a router of it; all that was started is stopped at the end."""
    first = open_engine(
        config.engine,
        model_path or Path(),
        log_dir,
        control=control,
        progress=starting,
        workers=config.workers,
        router=config.policies[0],
    )
    engines: dict[str | None, Engine] = {config.policies[0]: first}
    try:
        if isinstance(first, Fleet):
            for policy in config.routers[1:]:
                engines[policy] = first.beside(policy, log_dir / policy, starting)
        yield engines
    finally:
        for engine in engines.values():
            engine.stop()


def _ended(engines: Iterable[Engine]) -> list[str]:
    """The names of those, of their workers and of their routers whose process does not run."""
    parts = [
        part
        for engine in engines
        for part in ((*engine.workers, engine.router) if isinstance(engine, Fleet) else (engine,))
    ]
    return list(dict.fromkeys(part.engine_id for part in parts if not part.alive()))


def _rounds(config: BenchConfig) -> list[tuple[int, str | None, Mode]]:
    """What runs when: each mode under each policy once a repeat, in a random order; repeats below 0 are warm-up."""
    rng = np.random.default_rng([config.seed, 0])
    each = [(policy, mode) for policy in config.policies for mode in config.modes]
    return [
        (repeat, *each[at])
        for repeat in range(-config.warm_up, config.repeats)
        for at in rng.permutation(len(each)).tolist()
    ]


def _random_model(config: BenchConfig, directory: Path) -> Path:
    """A checkpoint with random weights and room for prompt and response: what is sampled does not matter here."""
    from parity.trainer.policy import build_policy, image_policy_config, policy_config, save_policy

    work = config.workload
    room = work.prompt_tokens + work.images * MOST_IMAGE_TOKENS + work.new_tokens + 16
    shape = image_policy_config if work.images else policy_config
    return save_policy(build_policy(0, shape(max_position_embeddings=room)), directory / "model")


@dataclass(frozen=True, slots=True)
class _Target:
    """What is measured: by policy the engines behind a router of it, or one engine, or a deployment that is there."""

    engines: Mapping[str | None, Engine]
    given: Sequence[Source]
    model_path: Path | None
    vocabulary: int | None
    control: bool

    @property
    def first(self) -> Engine:
        """Any of them: it controls the workers of all."""
        return next(iter(self.engines.values()))

    @property
    def flushes(self) -> bool:
        return self.control or not isinstance(self.first, RemoteEngine)

    def sources(self) -> list[Source]:
        """Those given, and of a fleet the counters of each worker."""
        workers = self.first.workers if isinstance(self.first, Fleet) else ()
        return [*self.given, *(metrics_source(worker.url, worker.engine_id) for worker in workers)]

    async def measure_all(
        self, config: BenchConfig, tell: Callable[[int, str, Measurement | None], None]
    ) -> tuple[list[Measurement], dict[str, Any]]:
        """Every rollout that counts, and what the engine says of itself."""
        sources, rows = self.sources(), []
        async with self.first.client() as controller:
            if not await controller.health():
                raise EngineError(f"no engine answers at {self.first.url}/health")
            info = await _engine_info(controller)
            vocabulary = self._vocabulary(info)
            for repeat, policy, mode in _rounds(config):
                name = f"repeat {repeat + 1} of {config.repeats}" if repeat >= 0 else "warm-up"
                doing = f"{f'{policy}, ' if policy else ''}{mode.name}, {name}"
                if self.flushes:
                    await controller.flush_cache()
                places = config.modes.index(mode), config.policies.index(policy)
                groups = requests(
                    config.workload,
                    vocabulary,
                    np.random.default_rng([config.seed, 1, repeat + config.warm_up, *places]),
                )
                before = await read_loads(sources)
                engine = self.engines[policy]
                # Connections of its own: servers close idle ones, and one that lags may close one just as it is used.
                async with EngineClient(engine.url, engine.engine_id) as client:
                    client.dialect = controller.dialect
                    row = await measure(
                        client,
                        mode,
                        groups,
                        config.workload,
                        repeat=repeat,
                        pids=_pids(engine),
                        done=lambda count, doing=doing: tell(count, doing, None),  # type: ignore[misc]
                    )
                if not row.samples:
                    raise EngineError(f"{doing}: nothing came back; {row.failure}")
                loads = await _settled(sources, before, row)
                row = replace(row, engines=loads, policy=policy)
                tell(0, doing, row)
                if repeat >= 0:
                    rows.append(row)
        return rows, info

    def _vocabulary(self, info: dict[str, Any]) -> Vocabulary:
        """From the model's config if it can be read, else from the engine, else from the option.

        Raises:
            UsageError: None of them has it.
        """
        if self.vocabulary is not None and self.vocabulary < 2:
            raise UsageError(f"--vocabulary is {self.vocabulary}: expected 2 or more")
        path = self.model_path or Path(str(info.get("model_path")))
        known = vocabulary_of(_read_config(path)) or vocabulary_of(info)
        if self.vocabulary is not None:
            return replace(known or Vocabulary(0), size=self.vocabulary)
        if known is None:
            raise UsageError(
                f"{self.first.url} does not report the size of its vocabulary, and {path / 'config.json'} is not on "
                "this machine: say it with --vocabulary"
            )
        return known


def _pids(engine: Engine) -> list[int]:
    """Of the processes that were started here: the engines, and the router after them."""
    if isinstance(engine, Fleet):
        processes: tuple[EngineProcess, ...] = (*engine.workers, engine.router)
    else:
        processes = (engine,) if isinstance(engine, EngineProcess) else ()
    return [process.pid for process in processes if process.pid is not None]


async def _engine_info(client: EngineClient) -> dict[str, Any]:
    """What the engine reports of its model and of itself, as far as a report needs it."""
    info = {**await client.server_info(), **await client.model_info()}
    names = ("model_path", "model_type", "version", "engine", "dtype", "vocab_size", "weight_version")
    return {name: info[name] for name in names if name in info}


def _read_config(path: Path) -> dict[str, Any]:
    """A checkpoint's `config.json`; empty where there is none here.

    Raises:
        InputError: It is there, and no JSON object.
    """
    file = path / "config.json"
    try:
        config = orjson.loads(file.read_bytes())
    except OSError:
        return {}
    except orjson.JSONDecodeError as error:
        raise InputError(f"{file}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise InputError(f"{file}: expected an object")
    return config


async def _settled(sources: Sequence[Source], before: dict[str, Load], row: Measurement) -> dict[str, Load]:
    """What each engine served since, read until all of a rollout is counted or for `SETTLING_SECONDS`."""
    until = time.monotonic() + SETTLING_SECONDS
    while True:
        loads = growth(before, await read_loads(sources))
        counted = _counted([load.requests for load in loads.values()], row.requests) and _counted(
            [load.decode_tokens for load in loads.values()], row.output_tokens
        )
        if not loads or counted or time.monotonic() > until:
            return loads
        await asyncio.sleep(0.1)


def _counted(values: Sequence[float | None], wanted: int) -> bool:
    """Whether engines counted so many, as far as they count at all."""
    return None in values or sum(filter(None, values)) >= wanted
