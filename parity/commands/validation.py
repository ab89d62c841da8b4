"""Whether what a command was asked can be done: everything that can be seen before anything is loaded or started."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

from parity.commands.reward import reward_function
from parity.errors import UsageError, did_you_mean
from parity.records.arms import ENGINES, WAYS, ArmsAsked, differ_beyond_requests, problems_of_arms
from parity.records.bench import BenchConfig
from parity.records.experiment import DESIGNS, LIST_TWIN, ExperimentConfig
from parity.records.margins import check_sampling_margins
from parity.records.sampling import SamplingConfig
from parity.trainer.tasks import get_task


def check_question(asked: ArmsAsked) -> None:
    """Checks what every comparison is asked for.

    Raises:
        UsageError: An arm, an engine or a router's policy is not one that there is, both arms are the same, or workers
            are asked of a deployment.
    """
    if not asked.specs:
        for name in asked.arms:
            if name not in WAYS:
                raise UsageError(f"no arm {name!r}: there are {', '.join(WAYS)}{did_you_mean(name, WAYS)}")
        if asked.baseline == asked.experiment:
            raise UsageError(f"both arms are {asked.baseline!r}: a comparison needs two different ones")
        if "://" not in asked.engine and asked.engine not in ENGINES:
            nearest = did_you_mean(asked.engine, ENGINES)
            raise UsageError(f"no engine {asked.engine!r}: expected {', '.join(ENGINES)} or a URL{nearest}")
    elif problem := next(problems_of_arms(asked.specs), None):
        raise UsageError(problem)
    for deployment in asked.deployments:
        if deployment.workers != 1 or deployment.router:
            from parity.engines import check_fleet

            check_fleet(deployment.engine, deployment.workers, deployment.router or None)


def check_experiment(config: ExperimentConfig) -> None:
    """Checks what can be checked before anything runs.

    Raises:
        UsageError: An arm, a design, a count or a fault is not one that there is.
    """
    check_question(config)
    unknown = set(config.designs) - set(DESIGNS)
    if unknown:
        nearest = did_you_mean(min(unknown), DESIGNS)
        raise UsageError(f"no design {', '.join(sorted(unknown))}: there are {', '.join(DESIGNS)}{nearest}")
    if "replay" in config.designs and "paired" not in config.designs:
        raise UsageError("a replay needs a recording: add --design paired")
    if "replay" in config.designs and differ_beyond_requests(config):
        raise UsageError("a replay serves one engine's recording to every arm: it shows nothing of engines or sampling")
    if LIST_TWIN in config.designs and (config.specs or set(config.arms) != {"per-sample", "native"}):
        raise UsageError(f"a {LIST_TWIN} compares per-sample with native, in place of which it asks for lists")
    for name in ("seeds", "steps", "twin_steps"):
        if getattr(config, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, not {getattr(config, name)}")
    if not 0 < config.patience < float("inf"):
        raise UsageError(f"--patience is a positive number of seconds, not {config.patience}")
    if not 0 < config.probe_share <= 1:
        raise UsageError(f"--probe-share must be in (0, 1], got {config.probe_share}")
    for deployment in config.deployments:
        if deployment.is_remote and not config.control:
            raise UsageError(f"training pushes weights to {deployment.engine}: allow it with --control")
    task = get_task(config.task)
    if config.plants:
        from parity.faults import parse_plant

        last = max(config.steps, config.twin_steps) - 1
        for text in config.plants:
            fault, step = parse_plant(text)
            if step > last:
                raise UsageError(f"--plant {text}: steps count from 0, and the last one is {last}")
            if fault.needs_images and not task.has_images:
                raise UsageError(f"--plant {text}: task {task.name} shows no images; --task digits does")


def check_sampling(config: SamplingConfig) -> None:
    """Checks what can be checked before anything runs.

    Raises:
        UsageError: An arm, a number, a margin or a combination is not one that there is.
    """
    check_question(config)
    if config.model_path is not None and all(deployment.is_remote for deployment in config.deployments):
        raise UsageError("--model-path is of an engine started here; a URL keeps its own weights")
    least = {"group_size": 1, "max_groups": 2} | ({} if config.fixed is None else {"fixed": 2})
    least |= {} if config.max_new_tokens is None else {"max_new_tokens": 1}
    for name, minimum in least.items():
        if getattr(config, name) < minimum:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {minimum}, not {getattr(config, name)}")
    if config.temperature <= 0:
        raise UsageError("--temperature must be above 0: greedy samples have no distribution to compare")
    if config.prompts is not None and config.max_new_tokens is None:
        raise UsageError("--prompts needs --max-new-tokens: the cap of a response")
    if config.prompts is None and config.prompt_key is not None:
        raise UsageError("--prompt-key is of --prompts")
    check_sampling_margins(config.margins)
    low, high = config.reward_range
    if not -math.inf < low < high < math.inf:
        raise UsageError(f"--reward-range {low:g} {high:g}: expected the lowest reward, then the highest")
    if get_task(config.task).has_images:
        raise UsageError(f"task {config.task} shows images, and prompts are asked as text here: try a probe of `run`")


def check_sampling_inputs(config: SamplingConfig) -> None:
    """Reads what a sampling is given, to refuse it before an engine is started.

    Raises:
        UsageError: There is no such reward function.
        InputError: The prompts cannot be read.
        EngineError: At the engine's URL is no engine.
    """
    check_live_engines(config.arm(name).engine for name in config.arms)
    if config.reward is not None:
        reward_function(config.reward)
    if config.prompts is not None:
        from parity.commands.sample.prompts import read_prompts

        read_prompts(Path(config.prompts), config.prompt_key)


def check_live_engines(engines: Iterable[str]) -> None:
    """Looks at the engines that somebody else runs; one that is started here is not there yet.

    Raises:
        UsageError: One is no URL of a server.
        EngineError: Nothing answers there, or something else than an engine.
    """
    from parity.engines.identify import check_engine
    from parity.engines.remote import remote_engine

    for url in dict.fromkeys(engine for engine in engines if "://" in engine):
        remote_engine(url, control=False)
        check_engine(url)


def check_bench(config: BenchConfig) -> None:
    """Checks what can be checked before anything is started.

    Raises:
        UsageError: Something does not go together; the message says what.
    """
    config.validate()
    from parity.engines import check_fleet

    for policy in config.policies:
        check_fleet(config.engine, config.workers, policy)
