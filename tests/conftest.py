"""What tests share: valid rollouts and exchanges, a policy that is trained once, and the command as a process."""

from __future__ import annotations

import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from small_experiment import Here, Parity, command

from parity.engines import EngineProcess, open_engine
from parity.faults.clean import clean_exchanges
from parity.records.exchanges import Exchange
from parity.records.samples import Sample

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does, before torch is loaded

LONG = (
    *("runner/test_recovery.py", "runner", "conformance/test_conformance.py", "docs/test_commands.py"),
    *("report/trackers/test_clearml.py", "commands/sample", "conformance", "engines/embedded/test_control.py"),
    *("commands/bench/test_command.py", "faults/test_faults.py", "evidence/test_planning.py", "report/test_html.py"),
    *("engines/test_process.py", "engines/test_open_engine.py", "engines/test_fleet.py", "report/test_files.py"),
    *("evidence/sampling/test_margin.py", "evidence/sampling/test_monitor.py", "evidence/sampling/test_watched.py"),
    *("commands/test_watch.py", "report/trackers", "docs/test_docs.py", "commands/compare/test_compare_command.py"),
)
"""Files and folders of tests that take long, the longest first: they start first, and `make quick` is without them."""

STOP = 2
CAP = 40
VOCABULARY = 200
HAZARD = 0.05


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of `LONG` as slow, and puts them first, so that no worker is left with the longest at the end."""

    def rank(item: pytest.Item) -> int:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        return next((place for place, name in enumerate(LONG) if f"{path}/".startswith(f"{name}/")), len(LONG))

    for item in items:
        if rank(item) < len(LONG):
            item.add_marker(pytest.mark.slow)
    items.sort(key=rank)


def reward_of(sample: Sample) -> float:
    """1 for an even number of tokens, else 0: cheap, and a function of the response alone."""
    return float(len(sample.output_ids or ()) % 2 == 0)


def build_samples(
    seed: int = 0, steps: int = 1, groups: int = 4, n: int = 4, arm: str = "native", cap: int = CAP, words: int = 190
) -> list[Sample]:
    """Sound groups: at each place the end with probability 0.05, else one of `words` tokens, alike likely."""
    rng = random.Random(seed)
    samples = []
    for step in range(steps):
        for group in range(groups):
            prompt = [rng.randrange(3, VOCABULARY - 2) for _ in range(rng.randint(1, 12))]
            of_group = [_build_sample(rng, step, group, slot, prompt, arm, cap, words) for slot in range(n)]
            rewards = [reward_of(sample) for sample in of_group]
            deviation = statistics.stdev(rewards) if n > 1 else 0.0
            for sample, reward in zip(of_group, rewards, strict=True):
                sample.reward = reward
                sample.advantage = (reward - statistics.fmean(rewards)) / (deviation + 1e-6)
            samples += of_group
    return samples


def _build_sample(
    rng: random.Random, step: int, group: int, slot: int, prompt: list[int], arm: str, cap: int, words: int
) -> Sample:
    output: list[int] = []
    logprobs: list[float] = []
    while len(output) < cap and output[-1:] != [STOP]:
        stops = rng.random() < HAZARD
        output.append(STOP if stops else rng.randrange(3, 3 + words))
        logprobs.append(math.log(HAZARD if stops else (1 - HAZARD) / words))
    length, stopped = len(output), output[-1] == STOP
    return Sample(
        group,
        slot,
        rollout_id=step,
        prompt_ids=list(prompt),
        output_ids=output,
        logprobs=logprobs,
        text=" ".join(map(str, output)),
        finish_reason="stop" if stopped else "length",
        status="completed" if stopped else "truncated",
        loss_mask=[1] * length,
        response_length=length,
        max_new_tokens=cap,
        weight_versions=[f"v{step}"],
        sampling_seed=1000 * step + 100 * group + slot,
        temperature=1.0,
        top_p=1.0,
        top_k=-1,
        prompt_tokens=len(prompt),
        cached_tokens=len(prompt) - 1,
        arm=arm,
        engine_id="engine-0",
        extra={"prompt": " ".join(map(str, prompt))},
    )


@pytest.fixture(autouse=True)
def outside_of_github(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands under test do not write to the summary of the job that runs the tests."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def valid_samples() -> Callable[..., list[Sample]]:
    return build_samples


@pytest.fixture
def valid_exchanges() -> Callable[[Sequence[Sample]], list[Exchange]]:
    return clean_exchanges


@pytest.fixture
def parity_reward() -> Callable[[Sample], float]:
    return reward_of


@pytest.fixture(scope="session")
def policy_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm-started policy, trained once for all tests that run experiments, in whichever process they are."""
    base = tmp_path_factory.getbasetemp()
    cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "policies"
    _warm(cache)
    return cache


def _warm(cache: Path) -> Path:
    """The policy of the cache, which the first to ask for it trains."""
    from parity.trainer.tasks import get_task
    from parity.trainer.warm_start import warm_start

    return warm_start(get_task("arithmetic"), cache)


@pytest.fixture(scope="session")
def parity(policy_cache: Path) -> Parity:
    """Starts the command in a process of its own, with its output in pipes."""

    def start(*arguments: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "parity", *map(str, arguments)],
            env={**os.environ, "PARITY_CACHE": str(policy_cache), "COLUMNS": "160"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture(scope="session")
def parity_here(policy_cache: Path) -> Here:
    """Runs the command in this process."""
    return partial(command, cache=policy_cache)


@pytest.fixture(scope="session")
def policy(policy_cache: Path) -> Path:
    """The warm-started policy, as a checkpoint."""
    return _warm(policy_cache)


@pytest.fixture(scope="session")
def policy_engine(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An embedded engine that serves the policy, started once: a run gives it the weights of each of its steps."""
    engine = open_engine("embedded", policy, tmp_path_factory.mktemp("engine"))
    assert isinstance(engine, EngineProcess)
    with engine:
        yield engine


@pytest.fixture(scope="session")
def at_engine(policy_engine: EngineProcess) -> tuple[str, ...]:
    """The options that let a run use it."""
    return ("--engine", policy_engine.url, "--control")
