"""Paired and mixed training runs, interleaved in time, over the engines of their arms; the owner of time and resume.

Every run has its own trainer; runs share engines, which are given a run's weights before each of its rollouts. The runs
of a pair take turns step by step, in an order drawn for each step, so that whatever the machine does meanwhile is
shared by both arms.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import shlex
import shutil
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from parity.engines import Engine, EngineClient, Fleet
from parity.engines.answers import SteadyPost
from parity.engines.client import Waits
from parity.engines.designs import LIST_TWIN_REACH, choose_designs
from parity.engines.replaying import replaying_post
from parity.engines.router import engines_words
from parity.engines.several import ask_engines, check_alone, open_engines, push_weights, what_engines_state
from parity.errors import EngineError, EngineUnavailable, InputError, TrainingError, UsageError, shown
from parity.faults import AfterScoring, planting
from parity.metrics import balance_metrics, rollout_metrics
from parity.records.arms import Deployment
from parity.records.exchanges import Exchange
from parity.records.experiment import (
    LIST_TWIN,
    ExperimentConfig,
    Pair,
    plan_pairs,
    weight_version,
)
from parity.records.provenance import commit, versions
from parity.records.samples import Rollout, Sample
from parity.records.store import (
    WEIGHTS_PARTED,
    RunStore,
    amend_experiment,
    create_experiment,
    exclusive,
    read_experiment,
    run_store,
    seal_checkpoint,
)
from parity.trainer.arm_path import ArmPath
from parity.trainer.group_sender import GroupSender
from parity.trainer.policy import load_tokenizer
from parity.trainer.rollouts import RolloutResult, generate_rollout, placeholders_of
from parity.trainer.tasks import Task, get_task
from parity.trainer.trainer import Trainer
from parity.trainer.warm_start import config_for, prepare_policy
from rollout_patch import (
    Assignment,
    Post,
    RequestFailed,
    ResponseRefused,
    group_metrics,
    probe,
    switchback,
)

STEP_ATTEMPTS = 5
"""How often a step is begun before the run gives up."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One finished step, for whoever watches.

    `done` and `total` count steps of the whole experiment; `seconds` is how long this step took and `rate` the steps a
    second of this process so far.
    """

    pair: Pair
    run: str
    step: int
    metrics: Mapping[str, Any]
    done: int
    total: int
    seconds: float
    rate: float

    @property
    def seconds_left(self) -> float:
        """Seconds until the last step, at the rate so far."""
        return (self.total - self.done) / self.rate


@dataclass(frozen=True, slots=True)
class Watcher:
    """What a front end is told: `step` after each step, `note` for everything else worth a line."""

    step: Callable[[StepReport], None]
    note: Callable[[str], None]


def run_experiment(
    config: ExperimentConfig,
    out: Path,
    *,
    command: str,
    watcher: Watcher,
    cache: Path,
    resume: bool = False,
    rewind: bool = False,
) -> None:
    """Runs, or goes on with, all pairs of an experiment, up to a step that cannot be trained on.

    Args:
        config: What is asked for; with `resume` it must equal what the directory says.
        out: The experiment's directory.
        command: The command line, for the record.
        watcher: Told of every step.
        cache: Where warm-started policies are kept between experiments.
        resume: Goes on with an experiment from what is on disk.
        rewind: Where a run's newest checkpoint is damaged, goes back to the one before, and makes a step again.

    Raises:
        UsageError: The configuration cannot be run, or is not the one on disk.
        EngineError: The engine does not come up, or a step failed `STEP_ATTEMPTS` times.
        InputError: A checkpoint to go on from is damaged.
    """
    with exclusive(out):
        if resume:
            _check_resumed(config, read_experiment(out))
            _check_checkpoints(config, out, watcher, rewind)
        else:
            create_experiment(out, _describe(config, command))
        task = get_task(config.task)
        policy = prepare_policy(task, cache, watcher.note)
        engine_name = engines_words(config)
        running = all(deployment.is_remote for deployment in config.deployments)
        watcher.note(f"engine {engine_name}: " + ("already runs" if running else f"starting, logs in {out / 'logs'}"))
        progress = _start_progress(engine_name, watcher)
        engines = open_engines(config, policy, out / "logs", control=config.control, progress=progress)
        try:
            asyncio.run(_run_pairs(config, out, task, policy, engines, watcher, resume))
        except TrainingError as error:  # the step's samples are on disk, and the contract says what is wrong with them
            watcher.note(f"{error}; no further step is run")
        finally:
            for engine in engines.values():
                engine.stop()


def _describe(config: ExperimentConfig, command: str) -> dict[str, Any]:
    return {
        "format": 1,
        "nonce": secrets.token_hex(4),
        "baseline": config.baseline,
        "experiment": config.experiment,
        "arms": {name: asdict(config.arm(name).shown()) for name in config.arms},
        "task": config.task,
        "engine": engines_words(config),
        "steps": config.steps,
        "seeds": list(range(1, config.seeds + 1)),
        "margins": dict(config.margins),
        "policy": _describe_policy(get_task(config.task)),
        "commands": [command],
        "commit": commit(Path(__file__).parent),
        "versions": versions(),
        "config": config.to_json(),
        "created_at": time.time(),
    }


def _describe_policy(task: Task) -> dict[str, Any]:
    """What checks must know of the policy."""
    config = config_for(task)
    shape = config.get_text_config()
    return {
        "model": f"{config.model_type}, {shape.num_hidden_layers} layers of {shape.hidden_size}, warm-started",
        "vocab_size": shape.vocab_size,
        "context_length": shape.max_position_embeddings,
        "stop_token_ids": [shape.eos_token_id],
        "media_placeholders": [config.image_token_id] if task.has_images else [],
    }


def _check_resumed(config: ExperimentConfig, experiment: Mapping[str, Any]) -> None:
    before, now = (one.to_json() for one in (ExperimentConfig.from_json(experiment.get("config")), config))
    differ = [
        f"{name}: {before[name]} there, {now[name]} now"
        for name in before
        if name != "patience" and before[name] != now[name]
    ]
    if differ:
        raise UsageError("--resume goes on with what was asked; these differ: " + "; ".join(differ))


def _check_checkpoints(config: ExperimentConfig, out: Path, watcher: Watcher, rewind: bool) -> None:
    """Holds the checkpoint that each run goes on from to its digests, before anything is started.

    Raises:
        InputError: One is damaged, and not rewound.
    """
    experiment = read_experiment(out)
    pairs = plan_pairs(config, experiment.get("designs", ())) if "nonce" in experiment else []  # else without digests
    for pair in pairs:
        for name in pair.names:
            store = run_store(out, name)
            finished = store.finished_steps()
            if finished == pair.steps or (finished == 0 and not store.checkpoint_path(0).exists()):
                continue
            if not (damage := store.damage_of_checkpoint(finished)):
                continue
            before = finished and not store.damage_of_checkpoint(finished - 1)
            if not (rewind and before):
                again = f"parity run --out {shlex.quote(str(out))} --resume --rewind"
                raise InputError(
                    f"{damage}; the checkpoint is damaged, and nothing is trained from it",
                    f"the one of step {finished - 1} before it is sound; go on from there with: {again}"
                    if before
                    else "there is no sound one before it: start the experiment again, in another --out",
                )
            store.rewind()
            store.append_event("rewind", time.time(), step=finished - 1, message=shown(damage))
            watcher.note(f"{name}: back to step {finished - 1}, as the checkpoint of step {finished} is damaged")


def _start_progress(engine: str, watcher: Watcher) -> Callable[[float, str], None]:
    def progress(seconds: float, _: str) -> None:
        if int(seconds) % 10 == 0:
            watcher.note(f"engine {engine}: starting, {seconds:.0f} s")

    return progress


@dataclass(slots=True)
class _Run:
    """One run in progress."""

    store: RunStore
    pair: Pair
    arm: str
    trainer: Trainer
    after_scoring: AfterScoring | None
    finished: int
    peak_memory: int = 0


@dataclass(frozen=True, slots=True)
class _Bench:
    """What all runs of an experiment share."""

    config: ExperimentConfig
    out: Path
    task: Task
    tokenizer: Any
    policy: Path
    engines: Mapping[Deployment, Engine]
    clients: Mapping[Deployment, EngineClient]
    senders: Mapping[Deployment, GroupSender]
    nonce: str

    def path(self, arm: str, recording: Post | None = None) -> ArmPath:
        """How an arm's groups reach its engine, or a recording in its place."""
        sender = self.senders[self.config.deployment(arm)]
        return ArmPath(arm, self.config.arm(arm), sender if recording is None else replace(sender, post=recording))

    def deployments(self, run: _Run) -> list[Deployment]:
        """Who answers a run."""
        arms = run.pair.arms if run.pair.mixed else (run.arm,)
        return list(dict.fromkeys(map(self.config.deployment, arms)))


async def _run_pairs(
    config: ExperimentConfig,
    out: Path,
    task: Task,
    policy: Path,
    engines: Mapping[Deployment, Engine],
    watcher: Watcher,
    resume: bool,
) -> None:
    experiment = read_experiment(out)
    nonce = str(experiment.get("nonce", ""))
    waits = Waits(patience=config.patience, note=watcher.note)
    async with AsyncExitStack() as stack:
        clients = {
            deployment: await stack.enter_async_context(engine.client(waits)) for deployment, engine in engines.items()
        }
        for deployment, client in clients.items():
            if deployment.is_remote:
                await check_alone(client, nonce, watcher.note)
        if len(clients) > 1:  # only engines with the same weights can answer alike
            started = await push_weights(clients, policy, weight_version(nonce, "start", 0))
            amend_experiment(out, {"weights": [asdict(one) for one in started]})
        seen, joint = await ask_engines(config, clients, watcher.note)
        designs = choose_designs(config, joint)
        if LIST_TWIN in designs:
            watcher.note(f"{LIST_TWIN}: {LIST_TWIN_REACH}")
        facts = {"designs": designs, "engine_capabilities": asdict(joint.capabilities)}
        facts |= await what_engines_state(config, clients)
        # In other words after a resume where a refusal names a port, but then the capabilities say the same.
        facts["engine_determinism"] = experiment.get("engine_determinism", joint.to_json())
        amend_experiment(out, facts)
        pairs, tokenizer = plan_pairs(config, designs), load_tokenizer(policy)
        senders = {
            one: GroupSender(
                SteadyPost(client),
                seen[one].capabilities,
                client.served_by,
                placeholders=placeholders_of(task),
                dialect=client.dialect,
                decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
            )
            for one, client in clients.items()
        }
        bench = _Bench(config, out, task, tokenizer, policy, engines, clients, senders, nonce)
        total = sum(len(pair.names) * pair.steps for pair in pairs)
        done = here = 0
        start = time.monotonic()
        for pair in pairs:
            runs = [_open_run(bench, pair, role, resume) for role in range(len(pair.names))]
            done += sum(run.finished for run in runs)
            async for run, metrics, seconds in _run_pair(bench, pair, runs, watcher):
                done, here = done + 1, here + 1
                rate = here / (time.monotonic() - start)
                step = run.finished - 1
                watcher.step(StepReport(pair, run.store.name, step, metrics, done, total, seconds, rate))


async def _run_pair(
    bench: _Bench, pair: Pair, runs: Sequence[_Run], watcher: Watcher
) -> AsyncIterator[tuple[_Run, dict[str, Any], float]]:
    """Takes the steps of a pair's runs in turns, yields with metrics and seconds, and writes how they ended."""
    try:
        for step in range(min(run.finished for run in runs), pair.steps):
            # An order drawn for each step, the same after a resume, so that neither arm is always first.
            order = random.Random(f"{pair.design}-{pair.seed}-{step}").sample(runs, len(runs))
            for run in order:
                if run.finished > step:
                    continue
                began = time.monotonic()
                metrics = await _finish_step(bench, run, step, watcher)
                run.finished += 1
                run.peak_memory = max(run.peak_memory, _memory())
                yield run, metrics, time.monotonic() - began
    except BaseException as error:
        failed = isinstance(error, Exception)  # else by Ctrl-C, SIGTERM or SIGHUP
        message = shown(error)[:500] if failed else "interrupted by a signal"
        with suppress(OSError):  # of a full disk, which is what `error` is then
            for run in runs:
                _end_run(run, "abort", "failed" if failed else "interrupted", message=message)
        raise
    for run in runs:
        _end_run(run, "end", "completed")


def _open_run(bench: _Bench, pair: Pair, role: int, resume: bool) -> _Run:
    """Opens a run where it stands on disk, or at its beginning."""
    store = run_store(bench.out, pair.names[role])
    store.create()
    store.drop_unfinished()
    finished = store.finished_steps()
    first = store.checkpoint_path(0)
    if finished == 0 and not first.exists():
        partial = first.with_name(f".{first.name}.partial")
        shutil.copytree(bench.policy, partial)
        seal_checkpoint(partial)
        partial.rename(first)
    if not store.events():
        store.append_event("start", time.time(), step=0)
    elif resume and finished < pair.steps:
        store.append_event("resume", time.time(), step=finished)
    training = bench.config.training
    reference = bench.policy if training.kl_coefficient else None
    trainer = Trainer(store.checkpoint_path(finished), training, reference, bench.task)
    if finished < pair.steps:
        store.write_outcome(_outcome(pair, pair.run_arms[role], "running"))
    return _Run(store, pair, pair.run_arms[role], trainer, _planting(bench.config, pair, role), finished)


def _planting(config: ExperimentConfig, pair: Pair, role: int) -> AfterScoring | None:
    """What plants the faults that were asked for in samples of the experiment's arm."""
    if not config.plants or not (pair.mixed or role):
        return None
    plant = planting(config.plants)

    def in_experiment(step: int, samples: list[Sample]) -> None:
        plant(step, [one for one in samples if one.extra["assignment"]["arm"] == pair.arms[1]])

    return in_experiment if pair.mixed else plant


def _end_run(run: _Run, event: str, status: str, **details: Any) -> None:
    """Writes how a run ended, with what it counted; a run that had ended before stays as it is."""
    if run.store.outcome().get("status") == "completed":
        return
    run.store.append_event(event, time.time(), step=run.finished, **details)
    steps = range(run.finished)
    counts = {
        "samples": sum(len(run.store.rollout(step)) for step in steps),
        "groups": int(sum(row["rollout/groups"] for row in run.store.metrics())),
        "exchanges": sum(1 for step in steps for _ in run.store.exchanges(step)),
    }
    facts = {"peak_memory_bytes": run.peak_memory, "counts": counts, **details}
    run.store.write_outcome(_outcome(run.pair, run.arm, status, **facts))


def _memory() -> int:
    """Resident memory of this process and all it started, the engine included, in bytes."""
    here = psutil.Process()
    total = 0
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total


def _outcome(pair: Pair, arm: str, status: str, **details: Any) -> dict[str, Any]:
    return {
        "design": pair.design,
        "arm": arm,
        "seed": pair.seed,
        "asked_steps": pair.steps,
        "status": status,
        **details,
    }


async def _finish_step(bench: _Bench, run: _Run, step: int, watcher: Watcher) -> dict[str, Any]:
    """One step, begun again when the engine fails; what was begun leaves no trace in the counts."""
    for attempt in range(1, STEP_ATTEMPTS + 1):
        try:
            return await _step(bench, run, step)
        except ResponseRefused as error:
            raise EngineError(f"{run.store.name} step {step}: an answer breaks the protocol: {error}") from error
        except (EngineUnavailable, RequestFailed) as error:
            run.store.append_event("retry", time.time(), step=step, attempt=attempt, message=str(error)[:500])
            watcher.note(f"{run.store.name} step {step}: {error}; attempt {attempt} of {STEP_ATTEMPTS}")
            await _revive(bench, run, step, attempt, watcher)
    raise EngineError(f"{run.store.name} step {step}: the engine failed {STEP_ATTEMPTS} times; see events.jsonl")


async def _revive(bench: _Bench, run: _Run, step: int, attempt: int, watcher: Watcher) -> None:
    """Restarts an engine that died; gives one that lives a moment, and restarts it when it does not answer."""
    engines = [bench.engines[deployment] for deployment in bench.deployments(run)]
    if all(engine.alive() for engine in engines):
        await asyncio.sleep(min(2.0**attempt, 30))
    try:
        revived = [name for engine in engines for name in await asyncio.to_thread(engine.revive)]
    except asyncio.CancelledError:  # by Ctrl-C; the thread is waited for, and without an engine it ends at once
        for engine in engines:
            engine.stop()
        raise
    for name in revived:
        watcher.note(f"engine {name}: started again")
        run.store.append_event("engine_restart", time.time(), step=step, engine_id=name)


async def _step(bench: _Bench, run: _Run, step: int) -> dict[str, Any]:
    """Weights to the engine, rollout to disk, training, checkpoint, and last the line that counts the step."""
    began = time.monotonic()
    recording = _recording(bench, run.pair, step) if run.pair.design == "replay" else None
    if recording is None:
        version = weight_version(bench.nonce, run.store.name, step)
        clients = {deployment: bench.clients[deployment] for deployment in bench.deployments(run)}
        seen = await push_weights(clients, run.store.checkpoint_path(step), version)
        for other in seen[1:]:
            if apart := seen[0].parted(other):
                run.store.append_event(WEIGHTS_PARTED, time.time(), step=step, engine_id=other.engine, message=apart)
    updated = time.monotonic()
    result = await _rollout(bench, run, step, recording)
    if result.compared is not None:
        run.store.compared.write_step(step, result.compared, result.compared_exchanges)
    run.store.write_step(step, result.rollout, result.exchanges)
    written = time.monotonic()
    train = _train(run, step, result.rollout)
    trained = time.monotonic()
    run.trainer.save(run.store.checkpoint_path(step + 1))
    seal_checkpoint(run.store.checkpoint_path(step + 1))
    metrics = {
        "step": step,
        **rollout_metrics(result.rollout, result.seconds, sum(one.workers for one in bench.deployments(run))),
        **_balance([bench.engines[deployment] for deployment in bench.deployments(run)], result),
        **train,
        **group_metrics(result.reports),
        "perf/requests": float(len(result.exchanges) + len(result.compared_exchanges)),
        "perf/update_weights_time": updated - began,
        "perf/train_time": trained - written,
        "perf/step_time": time.monotonic() - began,
    }
    run.store.append_metrics(metrics)
    run.store.prune_checkpoints(keep_from=step)
    return metrics


def _balance(engines: Sequence[Engine], result: RolloutResult) -> dict[str, float]:
    """How a rollout fell on the workers of one router; of two arms' groups, those that are trained on."""
    if len(engines) > 1 or not isinstance(engines[0], Fleet) or len(engines[0].workers) == 1:
        return {}
    names = [worker.engine_id for worker in engines[0].workers]
    return balance_metrics(result.rollout, [exchange.engine_id for exchange in result.exchanges], names)


def _train(run: _Run, step: int, rollout: Rollout) -> dict[str, float]:
    try:
        return run.trainer.train(rollout)
    except (InputError, TrainingError) as error:
        raise TrainingError(f"{run.store.name}: cannot be trained on: {error}") from error


def _recording(bench: _Bench, pair: Pair, step: int) -> Post:
    recorded: list[Exchange] = list(run_store(bench.out, f"{pair.arms[0]}-seed{pair.seed}").exchanges(step))
    return replaying_post(recorded)


def _assigning(config: ExperimentConfig, pair: Pair, step: int) -> Callable[[int], Assignment]:
    """Draws the arms of each group of a mixed run's step, again the same after a resume."""
    baseline, experiment = pair.arms

    def assign(group_index: int) -> Assignment:
        if pair.design == "switchback":
            return switchback(baseline, experiment, seed=pair.seed, rollout_id=step, group_index=group_index)
        return probe(
            baseline, experiment, share=config.probe_share, seed=pair.seed, rollout_id=step, group_index=group_index
        )

    return assign


async def _rollout(bench: _Bench, run: _Run, step: int, recording: Post | None) -> RolloutResult:
    return await generate_rollout(
        task=bench.task,
        tokenizer=bench.tokenizer,
        config=bench.config.training,
        step=step,
        seed=run.pair.seed,
        arm=_assigning(bench.config, run.pair, step) if run.pair.mixed else run.arm,
        paths={arm: bench.path(arm, recording) for arm in run.pair.arms},
        seeded=run.pair.seeded,
        after_scoring=run.after_scoring,
    )
