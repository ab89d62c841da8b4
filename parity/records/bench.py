"""What a benchmark asks for: the work of one rollout, the modes that ask for it, and the presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any

from msgspec import Meta

from parity.errors import UsageError, without_secrets
from parity.records.arms import WAYS, Arm, ArmsAsked, differ_beyond_requests

Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
"""What a number in a file of measurements may be."""

SHARED_PREFIX: Mapping[str, float] = {"none": 0.0, "part": 0.5, "all": 1.0}
"""The share of every prompt that is the same in all groups, by name."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A granularity of requests.

    Attributes:
        name: `per-sample`, `batched`, `native`, or `chunk=K`: requests of `n` = K; or the name of an arm.
        arm: The arm of `rollout_patch` that asks so.
        chunk: Most samples in one request; `None` is the whole group.
    """

    name: str
    arm: str
    chunk: int | None = None

    @property
    def text(self) -> str:
        """What `parse_mode` reads."""
        way = self.arm if self.chunk is None else f"chunk={self.chunk}"
        return way if self.name == way else f"{self.name}:{way}"


def parse_mode(name: str) -> Mode:
    """The mode of a name, or of an arm's name and a mode: ``ARM:MODE``.

    Raises:
        UsageError: There is no such mode.
    """
    arm, colon, way = name.rpartition(":")
    if colon and arm:
        return replace(parse_mode(way), name=arm)
    if name in WAYS:
        return Mode(name, name)
    key, _, size = name.partition("=")
    if key == "chunk" and size.isascii() and size.isdigit() and len(size) < 10 and int(size) > 0:
        return Mode(f"chunk={int(size)}", "native", int(size))
    raise UsageError(f"no mode {name!r}: there are {', '.join(WAYS)} and chunk=K with K of 1 or more")


def modes_of_arms(arms: Mapping[str, Arm]) -> tuple[Mode, ...]:
    """The modes of arms, which must differ in nothing but their way of asking.

    Raises:
        UsageError: They differ in something else, or one asks in batches of another size than the group.
    """
    asked = ArmsAsked("", "", specs=arms)
    if differ_beyond_requests(asked):
        raise UsageError(
            "bench measures ways of asking one engine; these arms have other engines or sampling parameters: measure "
            "each engine by itself, the second with --compare and the first one's bench.json"
        )
    if batched := [name for name, arm in arms.items() if arm.way == "batched" and arm.chunk is not None]:
        raise UsageError(f"arms.{batched[0]}.chunk: bench measures chunks of native requests alone")
    return tuple(Mode(name, arm.way, arm.chunk) for name, arm in arms.items())


@dataclass(frozen=True, slots=True)
class Workload:
    """One rollout; every mode asks for the same work.

    Attributes:
        groups: Prompts.
        group_size: Samples a prompt.
        prompt_tokens: Ids of a prompt, placeholders of images included.
        new_tokens: Tokens of each response: its cap, which it always reaches.
        shared_prefix: The share of the prompt's ids that is the same in all groups.
        images: Images a prompt, each with one placeholder.
        image_side: Pixels of a side of each image.
        concurrency: Most samples in flight; a request for several counts as so many.
    """

    groups: Count = 64
    group_size: Count = 8
    prompt_tokens: Count = 128
    new_tokens: Count = 64
    shared_prefix: Amount = 0.0
    images: Count = 0
    image_side: Count = 56
    concurrency: Count = 512

    def validate(self) -> None:
        """Checks the ranges.

        Raises:
            UsageError: A number is out of its range, named with its option.
        """
        for name in ("groups", "group_size", "prompt_tokens", "new_tokens", "image_side", "concurrency"):
            if (value := getattr(self, name)) < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}: expected 1 or more")
        if self.images < 0:
            raise UsageError(f"--images is {self.images}: expected 0 or more")
        if not 0 <= self.shared_prefix <= 1:
            raise UsageError(f"the shared prefix is {self.shared_prefix:g} of a prompt: expected 0 to 1")

    @property
    def samples(self) -> int:
        """Samples of a rollout."""
        return self.groups * self.group_size


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """What a benchmark asks for.

    Attributes:
        workload: One rollout.
        modes: How it is asked for; ratios are to the first.
        repeats: Measured rollouts of each mode.
        warm_up: Rollouts of each mode before them, which are not counted.
        seed: Of the prompts and of the modes' order.
        engine: `embedded`, `sglang`, `vllm`, or the URL of a deployment.
        workers: Engines to start.
        routers: Policies, with a router before the same engines for each; none starts no router for one worker.
    """

    workload: Workload = field(default_factory=Workload)
    modes: tuple[Mode, ...] = tuple(map(parse_mode, WAYS))
    repeats: Count = 5
    warm_up: Count = 1
    seed: Count = 0
    engine: str = "embedded"
    workers: Count = 1
    routers: tuple[str, ...] = ()

    def validate(self) -> None:
        """Checks what can be checked before anything is started.

        Raises:
            UsageError: Something does not go together; the message says what.
        """
        self.workload.validate()
        if not self.modes:
            raise UsageError("no mode to measure")
        for what, names in (("mode", [mode.name for mode in self.modes]), ("policy", self.routers)):
            if len(set(names)) != len(names):
                raise UsageError(f"a {what} is measured once: {', '.join(names)}")
        if self.workload.group_size == 1 and any(mode.arm != "per-sample" for mode in self.modes):
            raise UsageError("--group-size 1 leaves nothing to ask together: only the mode per-sample fits")
        for name, least in (("repeats", 1), ("warm_up", 0), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise UsageError(f"--{name.replace('_', '-')} is {value}: expected {least} or more")
        if self.seed >= 2**63:  # the most that JSON is written with
            raise UsageError(f"--seed is {self.seed}: expected less than 2**63")

    @property
    def rollouts(self) -> int:
        """All rollouts, warm-up included."""
        return len(self.policies) * len(self.modes) * (self.warm_up + self.repeats)

    @property
    def policies(self) -> tuple[str | None, ...]:
        """Under which the modes are measured; `None` alone where no policy was named."""
        return self.routers or (None,)

    def to_json(self) -> dict[str, Any]:
        """As JSON, modes by name, without the password in an engine's URL."""
        return {
            **asdict(self),
            "engine": without_secrets(self.engine),
            "modes": [mode.text for mode in self.modes],
            "routers": list(self.routers),
        }


_PER_SAMPLE_AND_NATIVE = (parse_mode("per-sample"), parse_mode("native"))

PRESETS: Mapping[str, BenchConfig] = {
    "text-256x4x256": BenchConfig(Workload(256, 4, new_tokens=256, concurrency=1024), _PER_SAMPLE_AND_NATIVE),
    "text-512x4x16": BenchConfig(Workload(512, 4, new_tokens=16, concurrency=2048), _PER_SAMPLE_AND_NATIVE),
    "image-64x8": BenchConfig(
        Workload(64, 8, images=1), _PER_SAMPLE_AND_NATIVE, workers=8, routers=("cache_aware", "round_robin")
    ),
}
"""Workloads of published reports, by name: groups x samples (x new tokens), each sample asked for alone against groups
asked for at once; the last over eight engines, where it takes 64 requests instead of 512."""


def at_url(config: BenchConfig, url: str) -> BenchConfig:
    """The same work, asked of a deployment that is there."""
    return replace(config, engine=url, workers=1, routers=())


@dataclass(frozen=True, slots=True)
class Load:
    """What one engine served; `None` is not known."""

    requests: Amount | None = None
    decode_tokens: Amount | None = None


QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One rollout in one mode.

    Attributes:
        mode: Its name.
        repeat: Counted from 0.
        seconds: From the first request to the last answer.
        requests: HTTP requests sent.
        samples: Outputs that came back.
        output_tokens: Tokens of all outputs.
        prompt_tokens: Prompt tokens as the engine counts them, once a sample; `None` where it does not say.
        cached_tokens: How many of those came from the prefix cache.
        at_cap: Outputs that ended by length at the cap.
        failed_groups: Groups that came back with an error or not at all.
        failure: The first such error.
        request_seconds: Quantiles of the time of a request, by name (`QUANTILES`).
        group_seconds: Of the time from a group's first request to its last answer.
        client_cpu: Seconds of CPU of this process.
        engine_cpu: Of the engines, and the router if there is one; `None` where they are not ours to look at.
        engines: What each engine served; empty where nothing counts it.
        policy: The router's policy, if it was started here.
    """

    mode: str
    repeat: Count
    seconds: Seconds
    requests: Count
    samples: Count
    output_tokens: Count
    prompt_tokens: Count | None
    cached_tokens: Count | None
    at_cap: Count
    failed_groups: Count
    failure: str | None
    request_seconds: Mapping[str, Amount]
    group_seconds: Mapping[str, Amount]
    client_cpu: Amount
    engine_cpu: Amount | None = None
    engines: Mapping[str, Load] = field(default_factory=dict)
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What was measured.

    Attributes:
        config: What was asked for.
        engine: What the engine says of itself.
        cache_emptied: Whether the prefix cache was emptied before each rollout.
        rollouts: Every measured one, in the order they ran.
    """

    config: BenchConfig
    engine: dict[str, Any]
    cache_emptied: bool
    rollouts: tuple[Measurement, ...]

    def of(self, policy: str | None, mode: str) -> list[Measurement]:
        """The rollouts of one mode under one policy, by repeat."""
        return sorted(
            (one for one in self.rollouts if (one.policy, one.mode) == (policy, mode)), key=lambda one: one.repeat
        )
