"""Whatever dies on the way, a seeded run ends with the curves it would have had."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from aiohttp import ClientSession, web
from small_experiment import STEPS, TWIN, Here, Parity, curves, stores

from parity.engines import EngineProcess
from parity.runner import _revive

WORKERS = {"embedded-0", "embedded-1"}


def wait_for_steps(out: Path, steps: int) -> None:
    deadline = time.monotonic() + 400
    while sum(store.finished_steps() for store in stores(out) if store.path.exists()) < steps:
        assert time.monotonic() < deadline, f"fewer than {steps} steps were finished"
        time.sleep(0.02)


def assert_same_curves(out: Path, undisturbed: Path) -> None:
    for store, reference in zip(stores(out), stores(undisturbed), strict=True):
        assert curves(store) == curves(reference)


def test_killed_runners_resume_to_the_same_curves(
    parity: Parity, finished_twin: tuple[Path, str], tmp_path: Path
) -> None:
    """One that could not say so; then one told to end, and one interrupted, which leave the truth on disk."""
    out = tmp_path / "out"
    process = parity("run", *TWIN, "--out", out)
    wait_for_steps(out, 1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive, "the engine must not outlive its runner"
    for steps, number in ((2, signal.SIGTERM), (4, signal.SIGINT)):
        process = parity("run", "--out", out, "--resume")
        wait_for_steps(out, steps)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert f"parity run --out {out} --resume" in errors
        assert "Traceback" not in errors
        started = [store for store in stores(out) if store.events()]
        assert {store.outcome()["status"] for store in started} == {"interrupted"}
        assert {store.events()[-1]["event"] for store in started} == {"abort"}
    process = parity("run", "--out", out, "--resume")
    printed, errors = process.communicate(timeout=500)
    assert process.returncode == 0, printed + errors
    assert_same_curves(out, finished_twin[0])
    assert any(event["event"] == "resume" for store in stores(out) for event in store.events())


def started_by(process: subprocess.Popen[str]) -> dict[str, psutil.Process]:
    """The router and the workers that a run has started, these by their ports."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            line = child.cmdline()
            if line[1:3] == ["-m", "parity.engines.embedded"]:
                found[line[-1]] = child
            elif line[0] == "sglang::router":
                found["router"] = child
    return found


def test_a_worker_and_the_router_may_die_on_the_way(
    parity: Parity, finished_twin: tuple[Path, str], tmp_path: Path
) -> None:
    pytest.importorskip("sglang_router", reason="needs the package sglang-router")
    out = tmp_path / "out"
    process = parity("run", *TWIN, "--workers", "2", "--router", "cache_aware", "--out", out)
    wait_for_steps(out, 1)
    running = started_by(process)
    assert len(running) == 3
    running["router"].kill()
    wait_for_steps(out, 3)
    next(worker for name, worker in running.items() if name != "router").kill()
    printed, errors = process.communicate(timeout=500)
    assert process.returncode == 0, printed + errors
    assert_same_curves(out, finished_twin[0])
    restarted = [event for store in stores(out) for event in store.events() if event["event"] == "engine_restart"]
    assert {event["engine_id"] for event in restarted} in [{"router", worker} for worker in WORKERS]
    rollouts = [store.rollout(step) for store in stores(out) for step in range(STEPS)]
    assert {engine for rollout in rollouts for engine in rollout.strings("engine_id")} == WORKERS
    assert not psutil.wait_procs(running.values(), timeout=0)[1], "nothing is left running"


@pytest.fixture
def unreliable_url(policy_engine: EngineProcess) -> Iterator[str]:
    """An engine behind a proxy that answers each 9th request 502, and cuts each 11th after the engine has done it."""
    started: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.new_event_loop()
    session: ClientSession
    count = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal count
        body = await request.read()
        kept = {"Content-Type": request.headers["Content-Type"]} if body else {}
        async with session.request(
            request.method, policy_engine.url + request.path_qs, data=body, headers=kept
        ) as answer:
            content = await answer.read()
            if request.path == "/generate":
                count += 1
                if count % 9 == 0:
                    return web.Response(status=502, text="Bad Gateway")
                if count % 11 == 0:
                    assert request.transport is not None
                    request.transport.abort()
            return web.Response(status=answer.status, body=content, content_type="application/json")

    async def serve() -> web.AppRunner:
        nonlocal session
        session = ClientSession()
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        started.put_nowait(f"http://127.0.0.1:{runner.addresses[0][1]}")
        return runner

    app_runner = loop.run_until_complete(serve())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield started.get_nowait()
    asyncio.run_coroutine_threadsafe(session.close(), loop).result()
    asyncio.run_coroutine_threadsafe(app_runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_lost_answers_are_asked_for_again_and_counted(
    unreliable_url: str, parity_here: Here, finished_twin: tuple[Path, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = parity_here("run", *TWIN, "--engine", unreliable_url, "--control", "--out", out)
    assert done.returncode == 0, done
    assert_same_curves(out, finished_twin[0])
    exchanges = [exchange for store in stores(out) for step in range(STEPS) for exchange in store.exchanges(step)]
    assert {exchange.status for exchange in exchanges} == {0, 200, 502}
    assert len([exchange for exchange in exchanges if exchange.status == 200]) == STEPS * (16 + 4)


async def test_an_interruption_does_not_wait_for_an_engine_that_is_starting_again(tmp_path: Path) -> None:
    """A real engine takes minutes to start, and Ctrl-C would last as long."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    engine = EngineProcess("slow", lambda port: command, environment={}, log_dir=tmp_path, start_timeout=600)
    bench: Any = SimpleNamespace(engines={"its": engine}, deployments=lambda run: ["its"])
    reviving = asyncio.create_task(_revive(bench, cast(Any, None), 0, 1, cast(Any, None)))
    while (pid := engine.pid) is None:
        assert not reviving.done()
        await asyncio.sleep(0.01)
    reviving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reviving
    await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 60)
    assert not psutil.pid_exists(pid)
