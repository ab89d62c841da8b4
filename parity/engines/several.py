"""The engines of several arms together: started, seen to answer alike or not, and held to the same weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from parity.engines import open_engine
from parity.engines.client import EngineClient
from parity.engines.detection import Determinism, detect_alike, detect_determinism, together
from parity.engines.process import Engine, Progress
from parity.engines.router import engine_words
from parity.errors import EngineError, UsageError
from parity.records.arms import ArmsAsked, Deployment
from parity.records.experiment import nonce_of_version

OTHERS_STEP_SECONDS = 30.0
"""How long a step of another experiment on the same engine is waited for."""


def open_engines(
    asked: ArmsAsked, model_path: Path, log_dir: Path, *, control: bool = False, progress: Progress | None = None
) -> dict[Deployment, Engine]:
    """The engines of all arms, each started once; where there are several, they are called by their first arm.

    Raises:
        UsageError: As `open_engine`.
        EngineError: One did not come up; nothing is left running.
    """
    opened: dict[Deployment, Engine] = {}
    try:
        for deployment, arm in asked.deployments.items():
            opened[deployment] = open_engine(
                deployment.engine,
                model_path,
                log_dir,
                control=control,
                progress=progress,
                workers=deployment.workers,
                router=deployment.router or None,
                name=arm if len(asked.deployments) > 1 else "",
                options=deployment.options,
                environment=dict(deployment.environment),
            )
    except BaseException:
        for engine in opened.values():
            engine.stop()
        raise
    return opened


async def ask_engines(
    asked: ArmsAsked, clients: Mapping[Deployment, EngineClient], note: Callable[[str], None]
) -> tuple[dict[Deployment, Determinism], Determinism]:
    """What each engine was seen to promise, and what all of them together; several must hold the same weights.

    Raises:
        EngineUnavailable: A request got no answer.
    """
    names = asked.deployments
    seen = {
        deployment: await detect_determinism(client.generate, await client.capabilities(), client.dialect)
        for deployment, client in clients.items()
    }
    for deployment, of_engine in seen.items():
        called = f"{names[deployment]}: " if len(seen) > 1 else ""
        note(f"engine {called}{engine_words(deployment)}: {of_engine.summary}")
    if len(seen) == 1:
        return seen, next(iter(seen.values()))
    alike = await detect_alike({names[one]: (client.generate, client.dialect) for one, client in clients.items()})
    note(f"engines answer seeds {'alike' if alike.holds else 'differently'}: {alike.seen}")
    return seen, together([(asked.arm(arm).way, seen[asked.deployment(arm)]) for arm in asked.arms], alike)


async def what_engines_state(asked: ArmsAsked, clients: Mapping[Deployment, EngineClient]) -> dict[str, str]:
    """The version and the number format that the engines state, each with its first arm where they are not the same."""
    infos = {asked.deployments[one]: await client.server_info() for one, client in clients.items()}

    def joined(key: str) -> str:
        values = {name: str(info.get(key) or "not stated") for name, info in infos.items()}
        if len(set(values.values())) == 1:
            return next(iter(values.values()))
        return ", ".join(f"{name}: {value}" for name, value in values.items())

    return {"engine_version": joined("version"), "engine_dtype": joined("dtype")}


async def push_weights(clients: Mapping[Deployment, EngineClient], checkpoint: Path, version: str) -> None:
    """Gives every engine the same weights, and holds them equal by what the engines say.

    Raises:
        EngineError: An engine refused or reports another version, or two state other digests of the same weights.
        EngineUnavailable: No answer.
    """
    for client in clients.values():
        await client.update_weights(checkpoint, version)
    if len(clients) > 1 and (apart := parted(await digests_of(clients.values()))):
        raise EngineError(f"engines hold other weights than each other after an update to {version}: {apart}")


Digests = Mapping[str, tuple[str, Mapping[str, str]]]
"""By engine: what kind of engine keeps the weights, as digests of another kind are of other bytes; and the digests."""


async def digests_of(clients: Iterable[EngineClient]) -> Digests:
    """The digests that engines give of their weights.

    Raises:
        EngineError: `/server_info` is no JSON object, or there is no answer (EngineUnavailable).
    """
    found = {}
    for client in clients:
        info = await client.server_info()
        kind = f"{info.get('version')} {info.get('dtype')}"
        found[client.engine_id] = (kind, await client.weight_digests())
    return found


def parted(digests: Digests) -> str:
    """Which weights two engines of one kind hold other digests of; empty where none do, or none can be compared."""
    (first, (kind, expected)), *others = digests.items()
    for engine, (other_kind, found) in others:
        apart = sorted(name for name in expected.keys() & found.keys() if expected[name] != found[name])
        if kind == other_kind and apart:
            return f"{first} and {engine} differ in {len(apart)} of {len(expected)} weights, such as {apart[0]}"
    return ""


async def check_alone(client: EngineClient, nonce: str, note: Callable[[str], None]) -> None:
    """Looks whether another experiment trains on the same engine, whose weights each would take for its own.

    An experiment that ended left its last label behind, so that a label is waited for to change.

    Raises:
        UsageError: One does.
    """
    before = (await client.model_info()).get("weight_version")
    other = nonce_of_version(before)
    if other in ("", nonce):
        return
    note(f"the engine has weights of another experiment ({other}): looking for {OTHERS_STEP_SECONDS:.0f} s")
    for _ in range(10):
        await asyncio.sleep(OTHERS_STEP_SECONDS / 10)
        now = (await client.model_info()).get("weight_version")
        if now != before:
            raise UsageError(
                f"{client.url}: another experiment trains on this engine (weights {before}, then {now}): wait until it "
                "has ended, or use another engine"
            )
