"""Samples both arms block by block, each on disk before it is looked at, until the evidence suffices.

An incomplete block was never evaluated, and is sampled again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parity.commands.check import reward_function
from parity.commands.question import check_sampling
from parity.commands.sample.asking import RESCORED_GROUPS, ArmBlock, Asker
from parity.commands.sample.judging import Recorded, contract_findings, decided, fixed_findings
from parity.commands.sample.prompts import Prompt, read_prompts
from parity.commands.sample.store import SamplingStore
from parity.contract_checks import Rules
from parity.engines import Engine, open_engine
from parity.engines.client import Waits
from parity.engines.designs import check_free_groups
from parity.engines.detection import detect_determinism
from parity.engines.router import engine_words
from parity.findings import Finding, Level, Message, Status, judge
from parity.records.provenance import commit, versions
from parity.records.samples import Rollout, Sample
from parity.records.sampling import BLOCK, SamplingConfig
from parity.records.store import exclusive, read_json
from parity.report.sampling import SamplingResult
from parity.stats import Evidence
from parity.trainer.policy import load_tokenizer
from parity.trainer.tasks import Task, get_task
from parity.trainer.warm_start import prepare_policy


@dataclass(frozen=True, slots=True)
class SamplingProgress:
    """Progress: groups done, the most there will be, groups a second in each arm, and the findings so far."""

    done: int
    limit: int
    rate: float
    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class Watcher:
    """What a front end shows: `block` after each block, `note` for everything else worth a line."""

    block: Callable[[SamplingProgress], None]
    note: Callable[[str], None]


def sample_arms(
    config: SamplingConfig, out: Path, *, command: str, watcher: Watcher, cache: Path, resume: bool = False
) -> SamplingResult:
    """Samples both arms, or goes on with that, until the evidence suffices or the groups are used up.

    Args:
        config: What to sample; with `resume` as on disk, except for a larger `max_groups`.
        out: The directory of samples and exchanges.
        command: The command line, for the record.
        watcher: Shows every block.
        cache: Where warm-started policies are kept.
        resume: Goes on with what is on disk.

    Raises:
        UsageError: The configuration does not fit together, or `out` holds something else.
        InputError: The prompts cannot be read, or a reward is out of its range.
        EngineError: The engine does not come up, or a group failed.
    """
    check_sampling(config)
    with exclusive(out):
        store = SamplingStore(out, config)
        facts = {"command": command, "commit": commit(Path(__file__).parent), "versions": versions()}
        if resume:
            store.reopen(facts)
        else:
            store.create({**facts, "created_at": time.time()})
        prompts = None if config.prompts is None else read_prompts(Path(config.prompts), config.prompt_key)
        policy = _policy(config, cache, watcher)
        engine_name = engine_words(config.engine, config.workers, config.router)
        watcher.note(f"engine {engine_name}: " + ("a deployment that already runs" if policy is None else "starting"))
        engine = open_engine(
            config.engine, policy or out, out / "logs", workers=config.workers, router=config.router or None
        )
        try:
            return asyncio.run(_sample(config, store, prompts, policy, engine, watcher))
        finally:
            engine.stop()


def _policy(config: SamplingConfig, cache: Path, watcher: Watcher) -> Path | None:
    """The checkpoint that an engine is to serve; None for a deployment, which has its own."""
    if "://" in config.engine:
        return None
    if config.model_path is not None:
        return Path(config.model_path)
    return prepare_policy(get_task(config.task), cache, watcher.note)


async def _sample(
    config: SamplingConfig,
    store: SamplingStore,
    prompts: Sequence[Prompt] | None,
    policy: Path | None,
    engine: Engine,
    watcher: Watcher,
) -> SamplingResult:
    task = get_task(config.task)
    reward = _reward(config, task)
    cap = config.max_new_tokens or task.max_new_tokens
    rules = _rules(config, cap, reward, policy)
    async with engine.client(Waits(note=watcher.note)) as client:
        seen = await detect_determinism(client.generate, await client.capabilities())
        watcher.note(f"engine {config.engine}: {seen.summary}")
        store.amend({**_engine_facts(await client.server_info(), policy), "engine_determinism": seen.to_json()})
        check_free_groups(config.arms, seen)
        asker = Asker(config, client, seen.capabilities, cap, reward)
        sampled = await _blocks(asker, store, _source(config, task, prompts, policy), rules, watcher)
        rollouts = store.rollout(config.baseline), store.rollout(config.experiment)
        rescored = sampled.rescored
        if rescored is None:
            rescored = await asker.rescored(rollouts) if len(rollouts[0]) else []
    evidence = sampled.evidence
    recorded = Recorded(rollouts, (list(store.exchanges(config.baseline)), list(store.exchanges(config.experiment))))
    findings = [
        *sampled.refusal,
        *contract_findings(config, rules, recorded),
        *(evidence.findings() if evidence is not None else fixed_findings(config, rollouts)),
        *rescored,
    ]
    counts = {
        "samples": sum(map(len, rollouts)),
        "groups": len(rollouts[0]) // config.group_size,
        "exchanges": sum(map(len, recorded.exchanges)),
    }
    return SamplingResult(config, tuple(findings), judge(findings), counts, sampled.stopped)


def _engine_facts(info: Mapping[str, Any], policy: Path | None) -> dict[str, str]:
    """What answered: version and number format as the engine states them, and the model that it serves."""
    version, dtype = (str(info.get(name) or "not stated") for name in ("version", "dtype"))
    model = str(info.get("model_path") or "")
    if policy is not None:
        shape = read_json(policy / "config.json")
        model = f"{shape.get('model_type')}, {shape.get('num_hidden_layers')} layers of {shape.get('hidden_size')}"
    return {"engine_version": version, "engine_dtype": dtype, "model": model}


Source = Callable[[int, int], Sequence[Prompt]]
"""The prompts of some groups, from the index of the first and their number: the same for the same arguments."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    """How sampling ended.

    Attributes:
        evidence: What was watched; None for a set size.
        rescored: Findings on log-probs scored again, if that was done already.
        stopped: Why it ended.
        refusal: A finding on a response that breaks the protocol.
    """

    evidence: Evidence | None
    rescored: list[Finding] | None
    stopped: Message
    refusal: tuple[Finding, ...] = ()


async def _blocks(asker: Asker, store: SamplingStore, source: Source, rules: Rules, watcher: Watcher) -> _Sampled:
    """Samples until something is decided; tokens are scored again as soon as there are enough groups for that."""
    config = asker.config
    rescored: list[Finding] | None = None
    margins = config.margins, config.reward_range
    evidence = Evidence.start(*margins, asker.max_new_tokens) if config.fixed is None else None
    done, stopped = 0, None
    for blocks in _recorded_blocks(store):
        evidence = _watched(evidence, config, done, blocks)
        done += len(blocks[0]) // config.group_size
        stopped = decided(evidence.findings()) if evidence is not None else None
    if done:
        watcher.note(f"{done} groups of each arm are on disk")
    began, before = time.monotonic(), done
    while done < config.limit and stopped is None:
        size = min(BLOCK, config.limit - done)
        sampled, refused = await asker.block(done, source(done, size))
        for arm, block in sampled.items():
            store.append(arm, block.samples, block.exchanges)
        if refused is not None:
            refusal = Message("an answer breaks the protocol: {reason}", reason=refused)
            finding = Finding("response_refused", Level.CONTRACT, Status.FAIL, refusal)
            return _Sampled(evidence, rescored, refusal, (finding,))
        findings = contract_findings(config, rules, _recorded(config, sampled))
        evidence = _watched(evidence, config, done, _recorded(config, sampled).rollouts)
        done += size
        if rescored is None and done >= RESCORED_GROUPS:
            rescored = await asker.rescored((store.rollout(config.baseline), store.rollout(config.experiment)))
        findings += rescored or []
        if evidence is not None:
            findings += evidence.findings()
            stopped = decided(findings)
        elif any(finding.fails for finding in findings):
            stopped = decided(findings)
        watcher.block(SamplingProgress(done, config.limit, (done - before) / (time.monotonic() - began), findings))
    return _Sampled(evidence, rescored, stopped or Message("all {done} groups are sampled", done=done))


def _watched(
    evidence: Evidence | None, config: SamplingConfig, start: int, rollouts: tuple[Rollout, Rollout]
) -> Evidence | None:
    """The evidence after a block; the block's own generator makes a resumed sampling go on as it would have."""
    return None if evidence is None else evidence.update(*rollouts, np.random.default_rng([config.seed, 0, start]))


def _recorded(config: SamplingConfig, sampled: dict[str, ArmBlock]) -> Recorded:
    baseline, experiment = (sampled[arm] for arm in config.arms)
    rollouts = Rollout.from_samples(baseline.samples), Rollout.from_samples(experiment.samples)
    return Recorded(rollouts, (baseline.exchanges, experiment.exchanges))


def _recorded_blocks(store: SamplingStore) -> Iterator[tuple[Rollout, Rollout]]:
    """The blocks on disk, in order."""
    arms = [store.rollout(arm) for arm in store.config.arms]
    groups = len(arms[0]) // store.config.group_size
    for start in range(0, groups, BLOCK):
        first, second = (
            Rollout(arm.table.filter(pc.is_in(arm.table["group_index"], pa.array(range(start, start + BLOCK)))))
            for arm in arms
        )
        yield first, second


def _source(config: SamplingConfig, task: Task, prompts: Sequence[Prompt] | None, policy: Path | None) -> Source:
    """Where prompts come from; on an engine started here they are tokenised as in training, elsewhere sent as text."""
    tokenizer = None if policy is None else load_tokenizer(policy)

    def prompts_of(start: int, count: int) -> Sequence[Prompt]:
        if prompts is None:
            drawn = [Prompt(text=text) for text in task.prompts(config.seed, start // BLOCK, BLOCK)[:count]]
        else:
            drawn = [_shuffled(prompts, config.seed, index) for index in range(start, start + count)]
        if tokenizer is None:
            return drawn
        return [
            prompt if prompt.text is None else Prompt(prompt.text, tuple(tokenizer.encode(prompt.text)), prompt.fields)
            for prompt in drawn
        ]

    return prompts_of


def _shuffled(prompts: Sequence[Prompt], seed: int, index: int) -> Prompt:
    """The prompt of a group: all of them in random order, then all again in another."""
    order = list(range(len(prompts)))
    random.Random(f"{seed}/{index // len(prompts)}").shuffle(order)
    return prompts[order[index % len(prompts)]]


def _reward(config: SamplingConfig, task: Task) -> Callable[[Sample], float] | None:
    if config.reward is not None:
        return reward_function(config.reward)
    if config.prompts is not None:
        return None
    return lambda sample: task.reward(sample.extra["prompt"], sample.text or "")


def _rules(config: SamplingConfig, cap: int, reward: Callable[[Sample], float] | None, policy: Path | None) -> Rules:
    """What every sample must obey; of a deployment's model nothing is known."""
    shape = {} if policy is None else read_json(policy / "config.json")
    ends = shape.get("eos_token_id")
    if policy is not None and (policy / "generation_config.json").exists():
        ends = read_json(policy / "generation_config.json").get("eos_token_id", ends)
    return Rules(
        group_size=config.group_size,
        max_new_tokens=cap,
        context_length=shape.get("max_position_embeddings"),
        vocab_size=shape.get("vocab_size"),
        stop_token_ids=frozenset([ends] if isinstance(ends, int) else ends or ()),
        temperature=config.temperature,
        reward=reward,
    )
