"""Workers behind the real sglang-router are one engine: asked through the router, controlled one by one."""

import asyncio
import importlib.util
import sys
import urllib.request
from collections import Counter

import pytest

pytest.importorskip("sglang_router", reason="needs the package sglang-router")

import light_worker
import psutil

from parity.engines import EngineProcess, Fleet, open_engine
from parity.engines.router import ROUTING_KEY, RouterLog, policies
from parity.errors import EngineError, UsageError
from parity.records.exchanges import output_id
from parity.records.samples import Sample
from parity.trainer.group_sender import SampleAdapter
from rollout_patch import RequestFailed, generate_group

SHORT = {"input_ids": [72, 101], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
LONG = {"input_ids": [72, 101], "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
NAMES = ["worker-0", "worker-1", "worker-2"]


def light_fleet(log_dir, policy="round_robin", count=3):
    """Workers that are up at once, not started yet."""

    def command(port):
        return [sys.executable, light_worker.__file__, str(port)]

    workers = [
        EngineProcess(f"worker-{index}", command, environment={}, log_dir=log_dir, start_timeout=60)
        for index in range(count)
    ]
    return Fleet(workers, policy, log_dir)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with light_fleet(tmp_path_factory.mktemp("logs")) as running:
        running.start()
        yield running
        processes = [psutil.Process(part.pid) for part in (*running.workers, running.router)]
    assert psutil.wait_procs(processes, timeout=0)[1] == [], "nothing is left running"


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


async def answered_by(client, count, **headers):
    """The worker of each of several requests sent one after the other, as the client names it."""
    answers = [await client.generate(SHORT, headers) for _ in range(count)]
    return [client.served_by(output_id(answer)) for answer in answers]


def requests_of(worker):
    """How many requests a worker itself says it was sent."""
    with urllib.request.urlopen(f"{worker.url}/metrics", timeout=5) as response:
        return float(response.read().split()[-1])


async def test_requests_go_round_and_the_worker_that_answered_is_named(fleet):
    async with fleet.client() as client:
        before = {worker.engine_id: requests_of(worker) for worker in fleet.workers}
        named = Counter(await answered_by(client, 7))
        assert sorted(named.values()) == [2, 2, 3]
        assert {worker.engine_id: requests_of(worker) - before[worker.engine_id] for worker in fleet.workers} == named
        assert client.served_by("of nobody") == client.served_by(None) == fleet.engine_id == "router"


async def test_weights_go_to_every_worker_and_not_before_the_last_request_has_ended(fleet, checkpoint):
    async with fleet.client() as client, fleet.workers[2].client() as last, fleet.workers[0].client() as first:
        await client.update_weights(checkpoint, "old")
        running = asyncio.create_task(last.generate(LONG))
        await asyncio.sleep(0.05)
        update = asyncio.create_task(client.update_weights(checkpoint, "new"))
        seen = []
        while not running.done():
            seen.append((await first.model_info())["weight_version"])
        assert running.result()["meta_info"]["weight_version"] == "old"
        assert len(seen) > 1 and set(seen[:-1]) == {"old"}, "an idle worker waits for the busy one"
        await update
        assert (await client.model_info())["weight_version"] == "new"
        answers = [await client.generate(SHORT) for _ in range(3)]
        assert {answer["meta_info"]["weight_version"] for answer in answers} == {"new"}
        await first.update_weights(checkpoint, "apart")
        with pytest.raises(EngineError, match="apart"):
            await client.model_info()


async def test_what_a_worker_refuses_is_an_error_that_names_it(fleet, tmp_path, checkpoint):
    async with fleet.client() as client:
        await client.update_weights(checkpoint, "good")
        with pytest.raises(EngineError, match=r"engine worker-0, .*status 400: no such checkpoint"):
            await client.update_weights(tmp_path / "none", "bad")
        assert (await client.model_info())["weight_version"] == "good"


async def test_an_abort_reaches_every_worker(fleet):
    async with fleet.client() as client:
        running = [asyncio.create_task(client.generate(LONG)) for _ in range(3)]
        await asyncio.sleep(0.1)
        await client.abort_all()
        answers = await asyncio.gather(*running)
        assert {client.served_by(output_id(answer)) for answer in answers} == set(NAMES)
        assert [answer["meta_info"]["finish_reason"]["type"] for answer in answers] == ["abort"] * 3
        await client.pause()
        await client.continue_()
        assert len(await answered_by(client, 1)) == 1


@pytest.mark.parametrize("policy", policies())
async def test_each_policy_of_the_installed_router_answers_and_names_its_worker(fleet, policy, tmp_path):
    other = Fleet(fleet.workers, policy, tmp_path)
    other.router.start()
    try:
        async with other.client() as client:
            named = await answered_by(client, 6, **{ROUTING_KEY: "0-1"})
            assert set(named) <= set(NAMES)
            if policy == "manual":
                assert len(set(named)) == 1, "one key, one worker"
    finally:
        other.router.stop()  # and not the workers, which others use
        other._reservation.close()


async def test_a_list_that_the_router_refuses_is_not_sent(fleet):
    samples = [Sample(0, i, rollout_id=0, prompt_ids=[72], max_new_tokens=2, sampling_seed=7 * i) for i in range(4)]
    async with fleet.client() as client:
        with pytest.raises(RequestFailed) as refusal:
            await client.generate({"input_ids": [[72]] * 2, "sampling_params": [{"sampling_seed": 1}] * 2})
        assert refusal.value.status == 422
        can, rows = await client.capabilities(), []
        report = await generate_group(
            "batched", samples, adapter=SampleAdapter(), post=client.generate, capabilities=can, recorder=rows.append
        )
        assert (report.arm_used, report.reasons) == ("per-sample", ("sampling_params_lists_refused",))
        assert {row["status"] for row in rows} == {200}


async def test_only_what_died_is_started_again(fleet):
    async with fleet.client() as client:
        for victim in (fleet.workers[1], fleet.router):
            pids = {part.engine_id: part.pid for part in (*fleet.workers, fleet.router)}
            killed = psutil.Process(victim.pid)
            killed.kill()
            psutil.wait_procs([killed], timeout=10)
            assert not fleet.alive() and not await client.health()
            assert await asyncio.to_thread(fleet.revive) == (victim.engine_id,)
            changed = {part.engine_id for part in (*fleet.workers, fleet.router) if part.pid != pids[part.engine_id]}
            assert changed == {victim.engine_id}
            assert fleet.alive() and await client.health()
            assert set(await answered_by(client, 3)) == set(NAMES)
        assert await asyncio.to_thread(fleet.revive) == ()


async def test_the_request_that_a_dead_worker_had_says_which_one_it_was(fleet):
    async with fleet.client() as client:
        killed = psutil.Process(fleet.workers[0].pid)
        killed.kill()
        psutil.wait_procs([killed], timeout=10)
        failures = []
        for _ in range(6):
            try:
                await client.generate(SHORT)
            except RequestFailed as failure:
                failures.append(failure)
        assert len(failures) == 2, "every third request, as nobody else sends it again"
        assert all(failure.status == 500 and fleet.workers[0].url in str(failure.body) for failure in failures)
        await asyncio.to_thread(fleet.revive)


def test_the_routers_metrics_name_every_worker(fleet):
    with urllib.request.urlopen(fleet.metrics_url, timeout=5) as response:
        text = response.read().decode()
    assert all(f'smg_worker_cb_outcomes_total{{worker="{worker.url}"' in text for worker in fleet.workers)


def test_a_worker_that_does_not_come_up_leaves_nothing_running(tmp_path):
    fleet = light_fleet(tmp_path, count=2)
    fleet.workers[1]._command = lambda port: [sys.executable, "-c", "raise SystemExit('no memory')"]
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(EngineError, match=r"(?s)engine worker-1 ended with exit code 1.*no memory"):
        fleet.start()
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize(
    ("workers", "router", "said"),
    [
        (2, "consistent_hashing", "no router policy 'consistent_hashing'.*round_robin"),
        (1, "fastest", "no router policy"),
        (0, None, "--workers is 0"),
    ],
)
def test_workers_and_policies_that_there_are_not_are_usage_errors(tmp_path, workers, router, said):
    with pytest.raises(UsageError, match=said):
        open_engine("embedded", tmp_path, tmp_path, workers=workers, router=router)


def test_a_deployment_has_its_own_router(tmp_path):
    with pytest.raises(UsageError, match="engines started here"):
        open_engine("http://127.0.0.1:1", tmp_path, tmp_path, router="random")


def test_without_a_router_installed_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"sglang-router.*\[router\]"):
        open_engine("embedded", tmp_path, tmp_path, workers=2)


LINE = (
    '\x1b[1mhttp_request\x1b[0m{\x1b[3mrequest_id\x1b[0m=\x1b[0m"%s"}: \x1b[2mevents\x1b[0m: '
    "Sending request \x1b[3murl\x1b[0m=\x1b[0m%s\n"
)


def test_the_log_is_read_as_it_grows_and_half_a_line_is_left_for_later(tmp_path):
    path = tmp_path / "router.log"
    path.write_text(LINE % ("earlier", "http://a"))
    log = RouterLog(path)
    assert log.worker("earlier") is None, "what an earlier router logged is not ours"
    with path.open("a") as writer:
        writer.write(LINE % ("one", "http://a") + "something else\n" + (LINE % ("two", "http://b"))[:-5])
        writer.flush()
        assert (log.worker("one"), log.worker("two")) == ("http://a", None)
        writer.write((LINE % ("two", "http://b"))[-5:])
        writer.flush()
        assert log.worker("two") == "http://b"


def test_a_log_that_was_taken_away_says_nothing_and_costs_no_answer(tmp_path):
    path = tmp_path / "router.log"
    path.write_text("")
    log = RouterLog(path)
    path.unlink()
    assert log.worker("one") is None
    path.write_text(LINE % ("two", "http://b"))
    assert log.worker("two") == "http://b"
