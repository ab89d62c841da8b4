"""Samples all arms block by block, each on disk before it is looked at, until the evidence suffices.

An incomplete block was never evaluated, and is sampled again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from parity.commands.reward import reward_function
from parity.commands.sample.asking import RESCORED_GROUPS, Asker
from parity.commands.sample.judging import (
    Recorded,
    contract_findings,
    decided,
    decided_in_all,
    fixed_findings,
)
from parity.commands.sample.prompts import Prompt, read_prompts
from parity.commands.sample.store import SamplingStore
from parity.commands.validation import check_sampling
from parity.commands.weights import weights_finding
from parity.contract_checks import Rules
from parity.engines import Engine, EngineClient
from parity.engines.answers import SteadyPost
from parity.engines.client import Waits
from parity.engines.designs import check_free_groups
from parity.engines.router import engines_words
from parity.engines.several import ask_engines, open_engines, weights_of, what_engines_state
from parity.findings import Finding, Level, Message, Status, judge
from parity.records.arms import Deployment
from parity.records.exchanges import Exchange
from parity.records.provenance import commit, versions
from parity.records.samples import Rollout, Sample
from parity.records.sampling import BLOCK, SamplingConfig
from parity.records.store import exclusive, read_json
from parity.report.sampling import SamplingResult
from parity.stats import SEGMENTS, Evidence, over_arms, segment_findings
from parity.trainer.arm_path import ArmPath
from parity.trainer.group_sender import GroupSender
from parity.trainer.tasks import Task, get_task


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
) -> list[SamplingResult]:
    """Samples all arms, or goes on with that, until the evidence suffices or the groups are used up.

    Args:
        config: What to sample; with `resume` as on disk, except for a larger `max_groups`.
        out: The directory of samples and exchanges.
        command: The command line, for the record.
        watcher: Shows every block.
        cache: Where warm-started policies are kept.
        resume: Goes on with what is on disk.

    Returns:
        One result for each arm that is compared with the baseline.

    Raises:
        UsageError: The configuration does not fit together, or `out` holds something else.
        InputError: The prompts cannot be read, or a reward is out of its range.
        EngineError: An engine does not come up, or a group failed.
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
        watcher.note(f"engine {engines_words(config)}: " + ("already runs" if policy is None else "starting"))
        engines = open_engines(config, policy or out, out / "logs")
        try:
            return asyncio.run(_sample(config, store, prompts, policy, engines, watcher))
        finally:
            for engine in engines.values():
                engine.stop()


def _policy(config: SamplingConfig, cache: Path, watcher: Watcher) -> Path | None:
    """The checkpoint that engines started here are to serve; None where all are deployments, which have their own."""
    if all(deployment.is_remote for deployment in config.deployments):
        return None
    if config.model_path is not None:
        return Path(config.model_path)
    from parity.trainer.warm_start import prepare_policy  # imports torch, which sampling a deployment does without

    return prepare_policy(get_task(config.task), cache, watcher.note)


async def _sample(
    config: SamplingConfig,
    store: SamplingStore,
    prompts: Sequence[Prompt] | None,
    policy: Path | None,
    engines: Mapping[Deployment, Engine],
    watcher: Watcher,
) -> list[SamplingResult]:
    task = get_task(config.task)
    reward = _reward(config, task)
    cap = config.max_new_tokens or task.max_new_tokens
    rules = _rules(config, cap, reward, policy)
    async with AsyncExitStack() as stack:
        clients = {
            deployment: await stack.enter_async_context(engine.client(Waits(note=watcher.note)))
            for deployment, engine in engines.items()
        }
        seen, joint = await ask_engines(config, clients, watcher.note)
        stated = await what_engines_state(config, clients)
        store.amend({**stated, **await _model(clients, policy), "engine_determinism": joint.to_json()})
        check_free_groups([config.arm(arm).way for arm in config.arms], joint)
        senders = {
            one: GroupSender(SteadyPost(client), seen[one].capabilities, client.served_by, dialect=client.dialect)
            for one, client in clients.items()
        }
        paths = {arm: ArmPath(arm, config.arm(arm), senders[config.deployment(arm)]) for arm in config.arms}
        asker = Asker(config, paths, {arm: clients[config.deployment(arm)] for arm in config.arms}, cap, reward)
        sampled = await _blocks(asker, store, _source(config, task, prompts, policy), rules, watcher)
        rollouts = {arm: store.rollout(arm) for arm in config.arms}
        rescored = sampled.rescored
        if rescored is None:
            rescored = await asker.rescored(rollouts, RESCORED_GROUPS) if len(rollouts[config.baseline]) else {}
        weights = await _weights(clients)
    exchanges = {arm: list(store.exchanges(arm)) for arm in config.arms}
    findings = {}
    for arm in config.arms[1:]:
        pair, evidence = config.against(arm), sampled.evidence[arm]
        recorded = Recorded((rollouts[pair.baseline], rollouts[arm]), (exchanges[pair.baseline], exchanges[arm]))
        findings[arm] = [
            *sampled.refusal,
            *contract_findings(pair, rules, recorded),
            *weights.get(config.deployment(arm), []),
            *(evidence.findings() if evidence is not None else fixed_findings(pair, recorded.rollouts, cap)),
            *rescored.get(arm, []),
            *(segment_findings(*recorded.rollouts, config.margins) if len(recorded.rollouts[0]) else ()),
        ]
    return [
        _result(config.against(arm), of_arm, rollouts, exchanges, sampled.stopped)
        for arm, of_arm in over_arms(findings).items()
    ]


def _result(
    pair: SamplingConfig,
    findings: Sequence[Finding],
    rollouts: Mapping[str, Rollout],
    exchanges: Mapping[str, Sequence[Exchange]],
    stopped: Message,
) -> SamplingResult:
    counts = {
        "samples": sum(len(rollouts[arm]) for arm in pair.arms),
        "groups": len(rollouts[pair.baseline]) // pair.group_size,
        "exchanges": sum(len(exchanges[arm]) for arm in pair.arms),
    }
    segments = [finding for finding in findings if finding.check == SEGMENTS and finding.fails]
    return SamplingResult(
        pair, tuple(findings), judge(findings), counts, (decided(segments) if segments else None) or stopped
    )


async def _weights(clients: Mapping[Deployment, EngineClient]) -> dict[Deployment, list[Finding]]:
    """Whether the engines of other arms hold the weights of the baseline's, by engine."""
    if len(clients) == 1:
        return {}
    baseline, *others = await weights_of(clients)
    started_here = not any(deployment.is_remote for deployment in clients)
    return {
        deployment: [weights_finding(baseline, weights, started_here)]
        for deployment, weights in zip(list(clients)[1:], others, strict=True)
    }


async def _model(clients: Mapping[Deployment, EngineClient], policy: Path | None) -> dict[str, str]:
    """The model that is served: its shape where it was started here, else its path as the engines state it."""
    if policy is not None:
        shape = read_json(policy / "config.json")
        model = f"{shape.get('model_type')}, {shape.get('num_hidden_layers')} layers of {shape.get('hidden_size')}"
        return {"model": model}
    paths = [str((await client.server_info()).get("model_path") or "") for client in clients.values()]
    return {"model": ", ".join(dict.fromkeys(paths))}


Source = Callable[[int, int], Sequence[Prompt]]
"""The prompts of some groups, from the index of the first and their number: the same for the same arguments."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    """How sampling ended.

    Attributes:
        evidence: By arm, what was watched; None for a set size.
        rescored: By arm, findings on log-probs scored again, if that was done already.
        stopped: Why it ended.
        refusal: A finding on a response that breaks the protocol.
    """

    evidence: Mapping[str, Evidence | None]
    rescored: dict[str, list[Finding]] | None
    stopped: Message
    refusal: tuple[Finding, ...] = ()


async def _blocks(asker: Asker, store: SamplingStore, source: Source, rules: Rules, watcher: Watcher) -> _Sampled:
    """Goes on from the blocks on disk to the last one that is needed."""
    config = asker.config
    others = config.arms[1:]
    start = (
        None if config.fixed is not None else Evidence.start(config.margins, config.reward_range, asker.max_new_tokens)
    )
    evidence: dict[str, Evidence | None] = dict.fromkeys(others, start)
    rescored: dict[str, list[Finding]] | None = None
    look = RESCORED_GROUPS
    stopped: Message | None = None
    done = 0
    for blocks in _recorded_blocks(store):
        evidence = _watched(evidence, config, done, blocks)
        done += len(blocks[config.baseline]) // config.group_size
        known = {arm: watched.findings() for arm, watched in evidence.items() if watched is not None}
        stopped = decided_in_all(over_arms(known)) if known else None
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
        rollouts = {arm: Rollout.from_samples(block.samples) for arm, block in sampled.items()}
        evidence = _watched(evidence, config, done, rollouts)
        done += size
        if done >= look and (rescored is None or _is_open(rescored)):
            rescored = await asker.rescored({arm: store.rollout(arm) for arm in config.arms}, look)
            look *= 4
        findings = {}
        for arm in others:
            pair, watched = config.against(arm), evidence[arm]
            recorded = Recorded(
                (rollouts[pair.baseline], rollouts[arm]), (sampled[pair.baseline].exchanges, sampled[arm].exchanges)
            )
            findings[arm] = [
                *contract_findings(pair, rules, recorded),
                *(rescored or {}).get(arm, []),
                *(watched.findings() if watched is not None else ()),
            ]
        findings = over_arms(findings)
        every = [finding for of_arm in findings.values() for finding in of_arm]
        if config.fixed is None or any(finding.fails for finding in every):
            stopped = decided_in_all(findings)
        watcher.block(SamplingProgress(done, config.limit, (done - before) / (time.monotonic() - began), every))
    return _Sampled(evidence, rescored, stopped or Message("all {done} groups are sampled", done=done))


def _is_open(rescored: Mapping[str, Sequence[Finding]]) -> bool:
    """Whether more groups may decide what was scored again."""
    return any(finding.status is Status.INCONCLUSIVE for of_arm in rescored.values() for finding in of_arm)


def _watched(
    evidence: Mapping[str, Evidence | None], config: SamplingConfig, start: int, rollouts: Mapping[str, Rollout]
) -> dict[str, Evidence | None]:
    """The evidence after a block; the block's own generator makes a resumed sampling go on as it would have."""
    return {
        arm: None
        if watched is None
        else watched.update(rollouts[config.baseline], rollouts[arm], np.random.default_rng([config.seed, 0, start]))
        for arm, watched in evidence.items()
    }


def _recorded_blocks(store: SamplingStore) -> Iterator[dict[str, Rollout]]:
    """The blocks on disk by arm, in order."""
    arms = {arm: store.rollout(arm).table for arm in store.config.arms}
    groups = len(arms[store.config.baseline]) // store.config.group_size
    for start in range(0, groups, BLOCK):
        block = pa.array(range(start, start + BLOCK))
        yield {arm: Rollout(table.filter(pc.is_in(table["group_index"], block))) for arm, table in arms.items()}


def _source(config: SamplingConfig, task: Task, prompts: Sequence[Prompt] | None, policy: Path | None) -> Source:
    """Where prompts come from; on an engine started here they are tokenised as in training, elsewhere sent as text."""
    tokenizer = None
    if policy is not None:
        from parity.trainer.policy import load_tokenizer  # likewise

        tokenizer = load_tokenizer(policy)

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
