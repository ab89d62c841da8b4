"""The real SGLang, started once: it answers as recorded, takes weights, aborts, serves all arms and leaves nothing."""

import asyncio
import copy
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
import torch
from real_engine import needs_sglang

from parity.conformance import CASES, check_engine
from parity.conformance.known import known_deviations
from parity.conformance.probe import About
from parity.engines import open_engine
from parity.engines.designs import choose_designs
from parity.engines.detection import detect_determinism
from parity.errors import EngineError, UsageError
from parity.findings import Status
from parity.records.exchanges import read_exchanges
from parity.records.experiment import ExperimentConfig
from parity.trainer.policy import build_policy, load_policy, policy_config, save_policy
from rollout_patch import ARMS, Capabilities, RequestFailed, SampleRequest, generate_group

RECORDED = Path(__file__).parents[2] / "data" / "sglang-0.5.23-cpu.exchanges.jsonl"
PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100]


pytestmark = needs_sglang


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Two checkpoints of one shape and different weights, with the context that the recording's model had."""
    directory = tmp_path_factory.mktemp("checkpoints")
    config = policy_config(max_position_embeddings=2048)
    return [save_policy(build_policy(seed, config), directory / f"seed-{seed}") for seed in (1, 2)]


@pytest.fixture(scope="module")
def engine(checkpoints, tmp_path_factory):
    with open_engine("sglang", checkpoints[0], tmp_path_factory.mktemp("logs")) as running:
        yield running


def recorded():
    exchanges = list(read_exchanges(RECORDED))
    aborted = {"abort-all", "abort-running-n4", "abort-running-single", "abort-running-batched", "abort-mixed-queue-n8"}
    return [exchange for exchange in exchanges if exchange.extra["case"] not in aborted]


TIMES = {
    *("request_received_ts", "api_server_dispatch_finish_ts", "request_finished_ts", "forward_entry_time"),
    *("prefill_finished_time", "first_token_latency", "queue_time", "decode_throughput"),
    *("storage_prefetch_wait", "storage_staging_wait"),
}
"""What `--enable-metrics` adds to an answer; the recorded server ran without it."""


def shape(item):
    """The fields of one output, those of times apart, and the kinds of its values."""
    meta = item["meta_info"]
    return set(item), set(meta) - TIMES, {name: type(value) for name, value in item.items()}


def finish_shapes(exchanges):
    return {
        (item["meta_info"]["finish_reason"]["type"], frozenset(item["meta_info"]["finish_reason"]))
        for exchange in exchanges
        if exchange.status == 200
        for item in exchange.outputs
    }


@pytest.mark.parametrize("exchange", recorded(), ids=lambda exchange: exchange.extra["case"])
async def test_a_recorded_request_is_answered_in_the_recorded_shape(engine, exchange):
    async with engine.client() as client:
        if exchange.status != 200:
            with pytest.raises(RequestFailed) as failure:
                await client.generate(exchange.request)
            assert (failure.value.status, failure.value.body) == (exchange.status, exchange.response)
            return
        response = await client.generate(exchange.request)
    assert type(response) is type(exchange.response)
    items = response if isinstance(response, list) else [response]
    assert [shape(item) for item in items] == [shape(item) for item in exchange.outputs]
    for item in items:
        finish = item["meta_info"]["finish_reason"]
        assert (finish["type"], frozenset(finish)) in finish_shapes(recorded())
        assert item["meta_info"]["completion_tokens"] == len(item["output_ids"])
        if exchange.request.get("return_logprob"):
            triples = item["meta_info"]["output_token_logprobs"]
            assert [token for _, token, _ in triples] == item["output_ids"]


def prompt_logprobs_by_transformers(checkpoint):
    with torch.no_grad():
        logits = load_policy(checkpoint)(torch.tensor([PROMPT])).logits[0]
    picked = torch.log_softmax(logits.double(), dim=-1)[:-1].gather(1, torch.tensor(PROMPT[1:])[:, None])
    return picked[:, 0].tolist()


async def prompt_logprobs(client):
    request = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    meta = (await client.generate(request))["meta_info"]
    return [logprob for logprob, _, _ in meta["input_token_logprobs"][1:]], meta["weight_version"]


async def test_new_weights_are_served_under_their_version_and_refused_ones_change_nothing(
    engine, checkpoints, tmp_path
):
    old, new = map(prompt_logprobs_by_transformers, checkpoints)
    assert max(abs(a - b) for a, b in zip(old, new, strict=True)) > 0.1
    async with engine.client() as client:
        await client.update_weights(checkpoints[0], "step-0")
        logprobs, version = await prompt_logprobs(client)
        assert (logprobs, version) == (pytest.approx(old, abs=1e-4), "step-0")
        await client.update_weights(checkpoints[1], "step-1")
        logprobs, version = await prompt_logprobs(client)
        assert (logprobs, version) == (pytest.approx(new, abs=1e-4), "step-1")
        with pytest.raises(EngineError, match="/update_weights_from_disk: status 400"):
            await client.update_weights(tmp_path / "nothing-here", "step-2")
        logprobs, version = await prompt_logprobs(client)
        assert (logprobs, version) == (pytest.approx(new, abs=1e-4), "step-1")


async def test_an_update_waits_for_the_requests_that_run(engine, checkpoints):
    request = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 200, "ignore_eos": True, "n": 4}}
    async with engine.client() as client:
        await client.update_weights(checkpoints[0], "before")
        running = asyncio.create_task(client.generate(request))
        await asyncio.sleep(0.2)
        await client.update_weights(checkpoints[1], "after")
        assert {item["meta_info"]["weight_version"] for item in await running} == {"before"}
        assert (await client.model_info())["weight_version"] == "after"


async def test_abort_all_gives_what_there_is_so_far(engine):
    request = {
        "input_ids": PROMPT,
        "sampling_params": {"max_new_tokens": 1900, "ignore_eos": True, "n": 4},
        "return_logprob": True,
    }
    async with engine.client() as client:
        running = asyncio.create_task(client.generate(request))
        await asyncio.sleep(1)
        await client.abort_all()
        items = await asyncio.wait_for(running, 30)
    assert len(items) == 4
    for item in items:
        assert item["meta_info"]["finish_reason"]["type"] == "abort"
        assert 0 < len(item["output_ids"]) < 1900
        assert len(item["meta_info"]["output_token_logprobs"]) == len(item["output_ids"])


async def test_a_paused_engine_keeps_new_requests_waiting(engine):
    async with engine.client() as client:
        await client.pause()
        waiting = asyncio.create_task(client.generate({"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}}))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
        await client.continue_()
        assert len((await asyncio.wait_for(waiting, 30))["output_ids"]) <= 2


@dataclass
class Slot:
    """A host's sample, as small as can be."""

    output: object = None
    seen: dict = field(default_factory=dict)


class Host:
    """A host's adapter for `Slot`."""

    def request(self, sample):
        """Eight tokens after the prompt."""
        params = {"max_new_tokens": 8, "temperature": 1.0}
        return SampleRequest(sampling_params=params, input_ids=PROMPT, options={"return_logprob": True})

    def apply(self, sample, output):
        """Keeps the output."""
        sample.output = output

    def snapshot(self, sample):
        """A copy of all fields."""
        return copy.deepcopy(sample.__dict__)

    def restore(self, sample, snapshot):
        """All fields back."""
        sample.__dict__.update(snapshot)


@pytest.mark.parametrize(("arm", "requests"), list(zip(ARMS, (8, 1, 1), strict=True)))
async def test_a_group_comes_by_each_arm(engine, arm, requests):
    samples = [Slot() for _ in range(8)]
    async with engine.client() as client:
        can = await client.capabilities()
        assert can == Capabilities()
        report = await generate_group(arm, samples, adapter=Host(), post=client.generate, capabilities=can)
    assert (report.arm_used, report.reasons, report.requests) == (arm, (), requests)
    assert all(len(sample.output.logprobs) == len(sample.output.output_ids) > 0 for sample in samples)
    assert len({tuple(sample.output.output_ids) for sample in samples}) > 1, "eight free samples are not one"


async def test_it_ignores_seeds_and_says_so_so_that_a_recording_takes_a_twins_place(engine):
    async with engine.client() as client:
        seen = await detect_determinism(client.generate, await client.capabilities())
    assert (seen.repeats.holds, seen.in_any_batch.holds, seen.seeds_differ.holds) == (False, False, True)
    assert (seen.free_per_sample.holds, seen.free_batched.holds, seen.free_native.holds) == (True, True, True)
    assert (seen.clones, seen.contradictions) == ((), ())
    assert seen.capabilities == Capabilities(free_clones=False)
    assert choose_designs(ExperimentConfig("per-sample", "native"), seen) == ("replay", "paired")
    with pytest.raises(UsageError, match="sampling_seed"):
        choose_designs(ExperimentConfig("per-sample", "native", designs=("twin",)), seen)


def test_it_deviates_from_the_protocol_where_that_is_known_and_nowhere_else(engine):
    findings = check_engine(engine.url, control=True)
    assert [finding.message for finding in findings if finding.fails] == []
    deviating = {finding.check.removeprefix("engine_") for finding in findings if finding.status is Status.FAIL}
    sent = {case.name for case in CASES if not case.destructive}
    assert deviating == known_deviations(About(sglang="0.5.23")).keys() & sent


def test_a_stopped_server_leaves_no_process_and_no_listener(engine):
    running = psutil.Process(engine.pid)
    processes = [running, *running.children(recursive=True)]
    assert len(processes) >= 3, "SGLang runs a scheduler and a detokenizer"
    port = engine.port
    engine.stop()
    deadline = time.monotonic() + 10
    while any(process.is_running() for process in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not engine.alive()
    listeners = [c for c in psutil.net_connections("tcp") if c.laddr and c.laddr.port == port and c.status == "LISTEN"]
    assert listeners == []
