"""Requests and decode tokens of each engine, as engines, routers and their logs count them."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paced_worker import paced_workers

from parity.commands.bench.loads import (
    AccessLog,
    growth,
    metrics_source,
    open_source,
    open_sources,
    read_counters,
    read_loads,
)
from parity.errors import EngineUnavailable, InputError, NotRecognised
from parity.metrics import spread
from parity.records.bench import Load

DATA = Path(__file__).parents[2] / "data"
ENGINE_PAGE = (DATA / "sglang-0.5.23.metrics.txt").read_text()
ROUTER_PAGE = (DATA / "sglang-router-0.3.2.metrics.txt").read_text()

# As SGLang 0.5.23 writes them, and as uvicorn does where nobody sets a format.
COUNTED = [
    b'[2026-11-30 05:48:30] INFO:     127.0.0.1:35762 - "POST /generate HTTP/1.1" 200 OK\n',
    b'INFO:     10.0.0.7:35762 - "POST /generate HTTP/1.1" 200 OK\n',
    b'[2026-11-30 05:48:30] INFO:     127.0.0.1:35762 - "POST /generate HTTP/1.1" 400 Bad Request\n',
    b'INFO:     127.0.0.1:35762 - "POST /generate?trace=1 HTTP/1.1" 200 OK\n',
    b'INFO:     127.0.0.1:35762 - "POST http://10.0.0.7:30000/generate HTTP/1.1" 200 OK\n',
]
NOT_COUNTED = [
    b'[2026-11-30 05:48:29] INFO:     127.0.0.1:35750 - "GET /health HTTP/1.1" 200 OK\n',
    b'INFO:     127.0.0.1:35762 - "POST /generate_other HTTP/1.1" 200 OK\n',
    b'INFO:     127.0.0.1:35762 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n',
    b"[2026-11-30 05:48:30] Prefill batch, #new-seq: 1, #new-token: 30 POST /generate\n",
    b"\n",
]


@pytest.mark.parametrize(
    ("lines", "count"), [(COUNTED + NOT_COUNTED, len(COUNTED)), *(([line], 0) for line in NOT_COUNTED)]
)
def test_requests_in_an_access_log_are_those_to_generate(lines, count, tmp_path):
    path = tmp_path / "engine.log"
    path.write_bytes(b"".join(lines))
    assert asyncio.run(AccessLog(path)()) == {"engine": Load(float(count))}


def test_a_log_that_grows_is_read_on_and_a_line_half_written_is_left(tmp_path):
    path = tmp_path / "sglang-0.log"
    path.write_bytes(b"".join(COUNTED[:2]) + COUNTED[2][:40])
    log = AccessLog(path)
    assert asyncio.run(read_loads([log])) == {"sglang-0": Load(2.0)}
    with path.open("ab") as file:
        file.write(COUNTED[2][40:] + NOT_COUNTED[0])
    assert asyncio.run(read_loads([log])) == {"sglang-0": Load(3.0)}


def test_logs_of_the_same_name_are_of_different_engines(tmp_path):
    """One directory a worker, or one ending a rank, is how most logs lie; no count may stand for another's."""
    places = [tmp_path / "w0" / "server.log", tmp_path / "w1" / "server.log", tmp_path / "rank.0", tmp_path / "rank.1"]
    for requests, path in enumerate([*places, tmp_path / "alone.log"], 1):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(COUNTED[0] * requests)
    loads = asyncio.run(read_loads(open_sources([str(path) for path in (*places, tmp_path / "alone.log")])))
    assert loads == {**{str(path): Load(float(count)) for count, path in enumerate(places, 1)}, "alone": Load(5.0)}
    assert asyncio.run(read_loads(open_sources([str(places[0])] * 2))) == {"server": Load(1.0)}


def cut(path):
    path.write_bytes(COUNTED[0])


def replace_by_a_longer_one(path):
    path.with_suffix(".new").write_bytes(COUNTED[0] * 9)
    path.with_suffix(".new").rename(path)


@pytest.mark.parametrize(
    ("change", "said"), [(cut, "cut or replaced"), (replace_by_a_longer_one, "cut or replaced"), (Path.unlink, "read")]
)
def test_a_log_that_is_rotated_while_it_is_counted_is_said(change, said, tmp_path):
    path = tmp_path / "worker.log"
    path.write_bytes(COUNTED[0] * 3)
    log = AccessLog(path)
    for _ in range(2):  # the control
        assert asyncio.run(log()) == {"worker": Load(3.0)}
    change(path)
    with pytest.raises(InputError, match=rf"worker\.log: .*{said}"):
        asyncio.run(log())


def test_a_log_with_a_huge_line_is_counted_in_little_memory(tmp_path):
    path = tmp_path / "worker.log"
    with path.open("wb") as file:
        file.write(COUNTED[0])
        file.truncate(1 << 24)  # zeros without an end of line
        file.seek(0, 2)
        file.write(b"\n" + COUNTED[0])
    tracemalloc.start()
    assert asyncio.run(AccessLog(path)()) == {"worker": Load(2.0)}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 21


def test_the_order_in_which_a_router_lists_its_workers_moves_no_count():
    samples = [line for line in ROUTER_PAGE.splitlines() if line.startswith("smg_worker_")]
    found, turned = (read_counters("\n".join(lines), "router") for lines in (samples, samples[::-1]))
    assert list(found.items()) == list(turned.items())


def test_the_counters_of_the_real_engine():
    """It had served one request of n = 4, one list of three prompts and one single prompt, 16 tokens a sample."""
    assert read_counters(ENGINE_PAGE, "worker") == {"worker": Load(3.0, (4 + 3 + 1) * 16.0)}


def test_the_counters_of_the_real_router():
    """Ten requests by round robin over three workers."""
    loads = read_counters(ROUTER_PAGE, "router")
    assert loads == {"127.0.0.1:43007": Load(4.0), "127.0.0.1:35929": Load(3.0), "127.0.0.1:43925": Load(3.0)}


def test_a_worker_whose_url_is_none_is_called_by_it():
    page = 'smg_worker_cb_outcomes_total{worker="http://[::1",outcome="success"} 3\n'
    assert read_counters(page, "router") == {"http://[::1": Load(3.0)}


def test_a_worker_that_got_nothing_counts_as_nothing():
    lines = [line for line in ROUTER_PAGE.splitlines() if not ("cb_outcomes" in line and "43925" in line)]
    assert read_counters("\n".join(lines), "router")["127.0.0.1:43925"] == Load(0.0)


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e400", "x"])
def test_a_counter_that_is_no_count_is_refused(value):
    with pytest.raises(InputError, match=r"^page(, sglang:generation_tokens_total)?: "):
        read_counters(f"sglang:generation_tokens_total{{}} {value}", "page")


@pytest.mark.parametrize("text", ["", "hello\n", "python_gc_objects_collected_total 3\n"])
def test_what_counts_nothing_is_not_recognised(text, tmp_path):
    with pytest.raises(NotRecognised):
        read_counters(text, "page")
    (tmp_path / "page.txt").write_text(text)
    with pytest.raises(NotRecognised):
        open_source(str(tmp_path / "page.txt"))


@settings(derandomize=True, max_examples=50)
@given(st.text(max_size=200), st.sampled_from(["sglang:generation_tokens_total", "smg_worker_cb_outcomes_total{"]))
def test_any_text_is_read_or_refused(text, start):
    with suppress(InputError):
        read_counters(start + text, "page")


def test_files_and_pages_are_told_apart_by_content(tmp_path):
    (tmp_path / "a.log").write_bytes(b"".join(NOT_COUNTED + COUNTED))
    (tmp_path / "b.txt").write_text(ENGINE_PAGE)
    with paced_workers(1) as (worker,):
        sources = [open_source(place) for place in (str(tmp_path / "a.log"), str(tmp_path / "b.txt"), worker.url)]
        loads = asyncio.run(read_loads(sources))
        assert loads == {"a": Load(5.0), "b": Load(3.0, 128.0), worker.url.removeprefix("http://"): Load(0.0, 0.0)}


def test_what_cannot_be_read_is_said(tmp_path):
    with pytest.raises(InputError, match=r"gone\.log: cannot be read"):
        open_source(str(tmp_path / "gone.log"))
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:9/metrics"):
        asyncio.run(read_loads([metrics_source("http://127.0.0.1:9")]))


def test_what_several_sources_say_of_one_engine_is_joined():
    async def one():
        return {"a": Load(3.0), "b": Load(1.0)}

    async def other():
        return {"a": Load(4.0, 64.0)}

    assert asyncio.run(read_loads([one, other])) == {"a": Load(3.0, 64.0), "b": Load(1.0)}


def test_growth_between_two_readings():
    before = {"same": Load(5.0, 10.0), "restarted": Load(5.0, 10.0), "silent": Load(1.0)}
    after = {"same": Load(9.0, 50.0), "restarted": Load(2.0, 20.0), "silent": Load(2.0), "new": Load(3.0, 4.0)}
    assert growth(before, after) == {
        "same": Load(4.0, 40.0),
        "restarted": Load(None, 10.0),
        "silent": Load(1.0),
        "new": Load(3.0, 4.0),
    }


def test_a_counter_that_appears_with_its_first_request_began_at_nothing():
    assert growth({"fresh": Load()}, {"fresh": Load(2.0, 32.0)}) == {"fresh": Load(2.0, 32.0)}


def test_the_spread_that_was_published():
    """Requests by engine of a published run, whose coefficient of variation was given as 41.9 %."""
    found = spread([24, 24, 26, 27, 29, 29, 30, 67])
    assert found and (round(found.cv, 3), found.max_over_mean) == (0.419, 67 / 32)


@pytest.mark.parametrize("values", [[5], [], [1, None], [0, 0]])
def test_no_spread_where_there_is_nothing_to_compare(values):
    assert spread(values) is None


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=16).filter(any), st.integers(1, 1000))
def test_the_spread_does_not_change_with_scale_and_is_none_for_equal_loads(values, scale):
    one, scaled = spread(values), spread([value * scale for value in values])
    assert one and scaled and (one.cv, one.max_over_mean) == pytest.approx((scaled.cv, scaled.max_over_mean))
    assert 1 <= one.max_over_mean <= len(values) * (1 + 1e-12)
    assert spread([scale] * len(values)).cv == 0
