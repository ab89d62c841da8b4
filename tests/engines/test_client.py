"""The client hands over exactly what the engine said, and turns what it refused into errors that say why."""

import asyncio
import itertools
import json
import socket
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from parity.engines import EngineClient, client
from parity.engines.remote import remote_engine
from parity.errors import EngineError, EngineUnavailable, UsageError
from parity.records.exchanges import read_exchanges
from rollout_patch import Capabilities, RequestFailed

RECORDED = Path(__file__).parents[1] / "data" / "sglang-0.5.23-cpu.exchanges.jsonl"


@pytest.fixture
def impatient(monkeypatch):
    """Calls that may be made twice are made twice."""
    monkeypatch.setattr(client, "CONTROL_ATTEMPTS", 2)


class Script:
    """A server that answers each endpoint as told, and keeps what it was asked."""

    def __init__(self, **answers):
        self.answers = {f"/{name}": answer for name, answer in answers.items()}
        self.asked = []

    async def answer(self, request):
        """What was told for the endpoint: status and content, or a handler of its own."""
        body = await request.text()
        self.asked.append((request.path_qs, json.loads(body) if body else None))
        answer = self.answers.get(request.path, (404, {"detail": "Not Found"}))
        if callable(answer):
            return await answer(request)
        status, content = answer
        if isinstance(content, str):
            return web.Response(status=status, text=content)
        return web.json_response(content, status=status)


@asynccontextmanager
async def serving(script, **settings):
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", script.answer)
    async with (
        TestServer(app) as server,
        EngineClient(str(server.make_url("")).rstrip("/"), "e0", **settings) as engine,
    ):
        yield engine


async def test_every_recorded_exchange_comes_through_unchanged():
    exchanges = [e for e in read_exchanges(RECORDED) if e.url == "/generate"]
    assert len({exchange.status for exchange in exchanges}) > 1
    for exchange in exchanges:
        script = Script(generate=(exchange.status, exchange.response))
        async with serving(script) as engine:
            if exchange.status == 200:
                assert await engine.generate(exchange.request) == exchange.response
            else:
                with pytest.raises(RequestFailed) as failure:
                    await engine.generate(exchange.request)
                assert (failure.value.status, failure.value.body) == (exchange.status, exchange.response)
        assert script.asked == [("/generate", exchange.request)]


async def test_headers_are_sent():
    seen = {}

    async def answer(request):
        seen.update(request.headers)
        return web.json_response({})

    async with serving(Script(generate=answer)) as engine:
        await engine.generate({"text": "a"}, {"X-SMG-Routing-Key": "group-3"})
    assert seen["X-SMG-Routing-Key"] == "group-3"
    assert seen["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("status", "text"), [(502, "<h1>Bad Gateway</h1>"), (200, "not JSON"), (200, ""), (200, "NaN")]
)
async def test_an_answer_that_is_no_json_is_handed_over_as_text(status, text):
    async with serving(Script(generate=(status, text))) as engine:
        with pytest.raises(RequestFailed) as failure:
            await engine.generate({})
    assert (failure.value.status, failure.value.body) == (status, text)


async def test_a_cut_connection_is_no_answer_and_is_not_tried_again():
    async def cut(request):
        request.transport.close()
        return web.Response()

    script = Script(generate=cut)
    async with serving(script) as engine:
        with pytest.raises(RequestFailed) as failure:
            await engine.generate({})
    assert failure.value.status is None
    assert len(script.asked) == 1


async def test_an_answer_cut_in_the_middle_is_no_answer():
    async def cut(request):
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"text": "')
        request.transport.close()
        return response

    async with serving(Script(generate=cut)) as engine:
        with pytest.raises(RequestFailed) as failure:
            await engine.generate({})
    assert failure.value.status is None


async def test_a_refused_connection_is_no_answer(impatient):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        async with EngineClient(f"http://127.0.0.1:{closed.getsockname()[1]}", "e0") as engine:
            with pytest.raises(RequestFailed) as failure:
                await engine.generate({})
            assert failure.value.status is None
            with pytest.raises(EngineUnavailable, match=r"engine e0, http://127\.0\.0\.1:\d+/flush_cache"):
                await engine.flush_cache()
            assert await engine.health() is False


async def late(request):
    await asyncio.sleep(600)


ENDPOINTS = {
    "generate": lambda engine: engine.generate({}),
    "update_weights_from_disk": lambda engine: engine.update_weights(Path("weights"), "v2"),
    "flush_cache": lambda engine: engine.flush_cache(),
    "abort_request": lambda engine: engine.abort_all(),
    "pause_generation": lambda engine: engine.pause(),
    "continue_generation": lambda engine: engine.continue_(),
    "model_info": lambda engine: engine.model_info(),
    "server_info": lambda engine: engine.server_info(),
    "health": lambda engine: engine.health(),
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
async def test_an_engine_that_takes_requests_and_never_answers_is_given_up_at_every_endpoint(endpoint, monkeypatch):
    monkeypatch.setattr(client, "CONTROL_ATTEMPTS", 2)
    monkeypatch.setattr(client, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(client, "INFO_SECONDS", 0.1)
    sound = {"flush_cache": (200, "Cache flushed."), "health": (200, ""), "metrics": (200, "")}
    said = []
    waits = client.Waits(patience=0.3, notice_after=0.1, note=said.append)
    async with serving(Script(**{**sound, endpoint: late}), waits=waits) as engine:
        try:
            answer = await asyncio.wait_for(ENDPOINTS[endpoint](engine), 20)
            assert (endpoint, answer) == ("health", False)
        except (RequestFailed, EngineUnavailable) as error:
            assert "no answer" in str(error)
    if endpoint not in ("health", "model_info", "server_info"):  # these end before there is anything to say
        assert any(f"/{endpoint}" in line and "engine healthy" in line for line in said)


async def test_tokens_that_come_keep_a_request_waiting_and_an_engine_that_is_not_healthy_is_named(monkeypatch):
    monkeypatch.setattr(client, "LOOK_SECONDS", 0.1)
    tokens = itertools.count(1)

    async def metrics(request):
        return web.Response(text=f'# HELP x\nsglang:generation_tokens_total{{model="a"}} {next(tokens)}.0\n')

    async def slow(request):
        await asyncio.sleep(1)
        return web.json_response({"text": "a"})

    waits = client.Waits(patience=0.3, notice_after=0.1)
    script = Script(generate=slow, metrics=metrics, health=(200, ""))
    async with serving(script, waits=waits) as engine:
        assert await engine.generate({}) == {"text": "a"}
        script.answers["/metrics"] = (200, "sglang:generation_tokens_total 5\n")
        with pytest.raises(RequestFailed, match=r"no token for .* engine healthy"):
            await engine.generate({})
        script.answers["/health"] = (503, "")
        with pytest.raises(RequestFailed, match="engine not healthy"):
            await engine.generate({})


async def test_an_engine_started_here_that_is_not_healthy_twice_or_is_gone_is_to_be_restarted(monkeypatch):
    monkeypatch.setattr(client, "LOOK_SECONDS", 0.1)
    waits, alive = client.Waits(patience=60, notice_after=0.1), [True]
    script = Script(generate=late, health=(503, ""))
    async with serving(script, waits=waits, alive=lambda: alive[0]) as engine:
        with pytest.raises(RequestFailed, match="engine not healthy"):
            await asyncio.wait_for(engine.generate({}), 20)
        alive[0] = False
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(engine.generate({}), 20)


@pytest.mark.parametrize("endpoint", ["generate", "model_info", "pause_generation"])
async def test_a_redirect_is_not_followed(endpoint, monkeypatch):
    monkeypatch.setattr(client, "CONTROL_ATTEMPTS", 2)
    elsewhere = Script(elsewhere=(200, {}))
    async with serving(elsewhere) as other:

        async def away(request):
            raise web.HTTPTemporaryRedirect(f"{other.url}/elsewhere")

        async with serving(Script(**{endpoint: away})) as engine:
            with pytest.raises((RequestFailed, EngineError)):
                await ENDPOINTS[endpoint](engine)
    assert elsewhere.asked == []


async def test_calls_that_may_be_made_twice_outlive_faults_that_pass(tmp_path):
    faults = itertools.cycle([(503, "busy"), (200, '{"cut'), (302, ""), None])

    def faulty(sound):
        async def answer(request):
            status, content = next(faults) or (200, json.dumps(sound))
            return web.Response(status=status, text=content)

        return answer

    script = Script(
        flush_cache=faulty("Cache flushed."),
        update_weights_from_disk=faulty(UPDATED),
        model_info=faulty({"weight_version": "v2"}),
        server_info=faulty({"deterministic": True}),
    )
    async with serving(script) as engine:
        await engine.update_weights(tmp_path, "v2")
        assert (engine.weights, (await engine.capabilities()).seeded) == ("v2", True)
    assert len(script.asked) > 8


async def test_an_answer_beyond_the_bound_is_not_read_on(monkeypatch):
    monkeypatch.setattr(client.budgets, "answer_bytes", lambda: 1000)
    script = Script(generate=(200, {"text": "a" * 900}))
    async with serving(script) as engine:
        assert len((await engine.generate({}))["text"]) == 900
        script.answers["/generate"] = (200, {"text": "a" * 1000})
        with pytest.raises(RequestFailed, match="1,000 bytes; PARITY_BUDGET=4"):
            await engine.generate({})


async def test_a_connection_that_was_idle_is_not_trusted():
    ports = []

    async def answer(request):
        ports.append(request.transport.get_extra_info("peername")[1])
        return web.json_response({})

    async with serving(Script(generate=answer)) as engine:
        await engine.generate({})
        await engine.generate({})
        time.sleep(1.1)  # as a training step does: the loop cannot see the server close the connection
        await engine.generate({})
    first, at_once, after_a_while = ports
    assert first == at_once != after_a_while


async def test_many_requests_run_at_once():
    all_here = asyncio.Barrier(200) if hasattr(asyncio, "Barrier") else None
    if all_here is None:
        pytest.skip("asyncio.Barrier came with Python 3.11")

    async def answer(request):
        await all_here.wait()
        return web.json_response({})

    async with serving(Script(generate=answer)) as engine:
        await asyncio.wait_for(asyncio.gather(*[engine.generate({"text": str(i)}) for i in range(200)]), 30)


UPDATED = {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}


async def test_weights_are_updated_after_a_drain_and_the_version_is_read_back(tmp_path):
    script = Script(
        flush_cache=(200, "Cache flushed."),
        update_weights_from_disk=(200, UPDATED),
        model_info=(200, {"weight_version": "v2"}),
    )
    async with serving(script) as engine:
        await engine.update_weights(tmp_path, "v2")
    drain, update, read_back = script.asked
    assert drain[0].startswith("/flush_cache?timeout=")
    assert update == ("/update_weights_from_disk", {"model_path": str(tmp_path), "weight_version": "v2"})
    assert read_back[0] == "/model_info"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"flush_cache": (400, "Timed out waiting for idle state.")}, "status 400: Timed out waiting for idle state"),
        (
            {"update_weights_from_disk": (400, {"success": False, "message": "Failed to get weights iterator: gone"})},
            "status 400: Failed to get weights iterator: gone",
        ),
        ({"update_weights_from_disk": (200, {"success": False, "message": "half"})}, "half"),
        ({"update_weights_from_disk": (200, "")}, "update_weights_from_disk"),
        ({"model_info": (200, {"weight_version": "v1"})}, "'v1' after an update to 'v2'"),
        ({"model_info": (200, {})}, "None after an update to 'v2'"),
    ],
)
async def test_an_update_that_did_not_happen_is_an_error_that_says_why(tmp_path, answers, message, impatient):
    sound = {
        "flush_cache": (200, "Cache flushed."),
        "update_weights_from_disk": (200, UPDATED),
        "model_info": (200, {"weight_version": "v2"}),
    }
    async with serving(Script(**{**sound, **answers})) as engine:
        with pytest.raises(EngineError, match=message) as error:
            await engine.update_weights(tmp_path, "v2")
    assert not isinstance(error.value, EngineUnavailable)


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_gateway_that_reaches_no_engine_is_unavailable(status, impatient):
    async with serving(Script(abort_request=(status, "no healthy upstream"))) as engine:
        with pytest.raises(EngineUnavailable, match=f"status {status}: no healthy upstream"):
            await engine.abort_all()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error": "invalid type"}, "invalid type"),
        ({"error": {"message": "too long"}}, "too long"),
        ({"object": "error", "message": "bad mode", "type": "Bad Request"}, "bad mode"),
        ("plain words", "plain words"),
        ([1, 2], r"\[1, 2\]"),
    ],
)
async def test_the_reason_is_found_in_every_shape_of_error(body, message):
    async with serving(Script(pause_generation=(400, body))) as engine:
        with pytest.raises(EngineError, match=f"/pause_generation: status 400: {message}$"):
            await engine.pause()


async def test_control_calls_ask_what_sglang_expects():
    script = Script(
        abort_request=(200, ""),
        pause_generation=(200, {"status": "ok"}),
        continue_generation=(200, {"status": "ok"}),
        health=(200, ""),
    )
    async with serving(script) as engine:
        await engine.abort_all()
        await engine.pause()
        await engine.continue_()
        assert await engine.health() is True
    assert script.asked == [
        ("/abort_request", {"abort_all": True}),
        ("/pause_generation", {}),
        ("/continue_generation", {}),
        ("/health", None),
    ]


async def test_an_engine_that_is_still_loading_is_not_healthy():
    async with serving(Script(health=(503, ""))) as engine:
        assert await engine.health() is False


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"engine": "parity-embedded", "deterministic": True, "seed_per_slot": True}, (True, True)),
        ({"version": "0.5.23", "enable_deterministic_inference": True}, (True, False)),
        ({"version": "0.5.23", "enable_deterministic_inference": False}, (False, False)),
        ({"version": "0.5.23"}, (False, False)),
        ({"seed_per_slot": True}, (False, False)),
        ({"deterministic": "true"}, (False, False)),
    ],
)
async def test_what_an_engine_promises_is_read_from_its_settings(info, expected):
    async with serving(Script(server_info=(200, info))) as engine:
        can = await engine.capabilities()
    assert can == Capabilities(seeded=expected[0], seed_per_slot=expected[1])


async def test_older_names_of_the_information_endpoints_are_tried():
    async with serving(Script(get_model_info=(200, {"weight_version": "v1"}))) as engine:
        assert await engine.model_info() == {"weight_version": "v1"}
        with pytest.raises(EngineError, match="/get_server_info: status 404: Not Found"):
            await engine.server_info()


async def test_information_that_is_no_object_is_an_error(impatient):
    async with serving(Script(server_info=(200, [1]))) as engine:
        with pytest.raises(EngineError, match=r"/server_info: status 200: \[1\]"):
            await engine.capabilities()


async def test_somebody_elses_engine_is_asked_for_samples_and_not_touched(tmp_path):
    script = Script(generate=(200, {"text": "a"}), flush_cache=(200, "Cache flushed."), server_info=(200, {}))
    async with serving(script) as there, remote_engine(there.url, control=False).client() as engine:
        assert await engine.generate({"text": "b"}) == {"text": "a"}
        assert await engine.capabilities() == Capabilities()
        before = len(script.asked)
        for refused in (
            engine.update_weights(tmp_path, "v1"),
            engine.flush_cache(),
            engine.abort_all(),
            engine.pause(),
        ):
            with pytest.raises(UsageError, match="somebody else runs"):
                await refused
        with pytest.raises(UsageError, match="somebody else runs"):
            await engine.continue_()
        assert len(script.asked) == before
        async with remote_engine(there.url, control=True).client() as allowed:
            await allowed.flush_cache()
        assert len(script.asked) == before + 1


async def test_a_client_outside_its_context_says_so():
    with pytest.raises(RuntimeError, match="async with"):
        await EngineClient("http://127.0.0.1:1", "e0").generate({})


async def test_a_router_is_known_by_itself_and_its_engine_by_the_first_worker_that_answers(impatient):
    counts = {"router_manager": True, "routers_count": 1, "workers_count": 2}  # as sglang-router 0.3.2 answers
    settings = {"version": "0.5.23", "enable_deterministic_inference": True}
    async with serving(Script(server_info=(200, settings))) as worker:
        with socket.socket() as nobody:  # bound, and not listening
            nobody.bind(("127.0.0.1", 0))
            urls = [{"url": f"http://127.0.0.1:{nobody.getsockname()[1]}"}, {"url": worker.url}]
            script = Script(get_server_info=(200, counts), workers=(200, {"workers": urls}))
            async with serving(script, control=False) as router:
                assert await router.server_info() == settings | counts
                routed = Capabilities(seeded=True, text_lists=False, sampling_params_lists=False)
                assert await router.capabilities() == routed
        assert await worker.capabilities() == Capabilities(seeded=True)
    async with serving(Script(get_server_info=(200, counts), workers=(200, {"workers": "?"}))) as router:
        assert await router.server_info() == counts
