"""The engines of several arms together: started, seen to answer alike or not, and held to the same weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from parity.engines import open_engine
from parity.engines.client import EngineClient
from parity.engines.detection import Determinism, detect_alike, detect_determinism, together
from parity.engines.process import Engine, Progress
from parity.engines.router import engine_words, engines_words
from parity.errors import UsageError
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
    """The version and the number format that the engine states; of several engines, beside each in one text."""
    stated = []
    for client in clients.values():
        info = await client.server_info()
        stated.append([str(info.get(key) or "not stated") for key in ("version", "dtype")])
    if len(stated) == 1:
        return {"engine_version": stated[0][0], "engine_dtype": stated[0][1]}
    words = engines_words(asked).split("; ")
    each = [f"{engine} ({version}, {dtype})" for engine, (version, dtype) in zip(words, stated, strict=True)]
    return {"engines": "; ".join(each), "engine_version": "", "engine_dtype": ""}


@dataclass(frozen=True, slots=True)
class Weights:
    """What an engine says of the weights that it holds.

    Attributes:
        engine: Its name.
        version: Their label.
        kind: What kind of engine keeps them, as digests of another kind are of other bytes.
        digests: The digest of each weight, where the engine gives them.
    """

    engine: str
    version: object
    kind: str
    digests: Mapping[str, str]

    def compared(self, other: Weights) -> bool:
        """Whether digests of both can be compared."""
        return self.kind == other.kind and bool(self.digests.keys() & other.digests.keys())

    def parted(self, other: Weights) -> str:
        """Where the digests of two engines of one kind differ; empty where they do not, or cannot be compared."""
        both = self.digests.keys() & other.digests.keys() if self.compared(other) else set()
        apart = sorted(name for name in both if self.digests[name] != other.digests[name])
        return f"{len(apart)} of {len(both)} weights have other digests, such as {apart[0]}" if apart else ""


async def weights_of(clients: Mapping[Deployment, EngineClient]) -> list[Weights]:
    """What each engine says of its weights, in the order given.

    Raises:
        EngineError: An engine's answer is no JSON object, or there is none (EngineUnavailable).
    """
    found = []
    for client in clients.values():
        info = await client.server_info()
        kind = " ".join(str(info.get(name)) for name in ("version", "dtype", "quantization"))
        version = (await client.model_info()).get("weight_version")
        found.append(Weights(client.engine_id, version, kind, await client.weight_digests()))
    return found


async def push_weights(clients: Mapping[Deployment, EngineClient], checkpoint: Path, version: str) -> list[Weights]:
    """Gives every engine the same weights; what several say of them then, the baseline's first.

    Raises:
        EngineError: An engine refused, or reports another version.
        EngineUnavailable: No answer.
    """
    for client in clients.values():
        await client.update_weights(checkpoint, version)
    return await weights_of(clients) if len(clients) > 1 else []


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
