"""`parity bench` as a command, and its file."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import orjson
import psutil
import pytest
from aiohttp import web
from click.testing import CliRunner, Result
from paced_worker import paced_workers
from toy_engine import toy_engine

from parity.cli import cli
from parity.commands.bench import running
from parity.engines import RemoteEngine, router
from parity.errors import EngineError, InputError, ParityError, UsageError
from parity.records.bench_files import read_bench

DATA = Path(__file__).parents[2] / "data"
SMALL = ["--groups", "4", "--group-size", "2", "--prompt-tokens", "6", "--new-tokens", "3", "--repeats", "2"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", *arguments])


@pytest.fixture
def worker():
    with paced_workers(1) as (one,):
        yield one


def test_a_url_is_measured_and_everything_is_written(worker, tmp_path):
    result = run(worker.url, *SMALL, "--mode", "per-sample", "native", "chunk=1", "--out", str(tmp_path), "--json")
    assert result.exit_code == 0, result.output
    content = orjson.loads(result.stdout)
    assert orjson.loads((tmp_path / "bench.json").read_bytes()) == content
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    assert {one["mode"]: one["requests"] for one in content["summaries"]} == {
        "per-sample": 8,
        "native": 4,
        "chunk=1": 8,
    }
    ratios = {(one["mode"], one["metric"]): one["ratio"] for one in content["ratios"]}
    assert (ratios["native", "requests"], ratios["chunk=1", "requests"]) == pytest.approx((0.5, 1.0))
    assert worker.requests == 3 * (8 + 4 + 8)  # warm-up included


def test_arms_are_measured_by_name(worker, tmp_path):
    arms = tmp_path / "arms.toml"
    arms.write_text("[arms.stock]\n[arms.whole]\nway = 'native'\n[arms.pairs]\nway = 'native'\nchunk = 1\n")
    first = run(worker.url, *SMALL, "--arms", str(arms), "--out", str(tmp_path / "a"), "--json")
    assert first.exit_code == 0, first.output
    sent = {one["mode"]: one["requests"] for one in orjson.loads(first.stdout)["summaries"]}
    assert sent == {"stock": 8, "whole": 4, "pairs": 8}
    modes = read_bench(tmp_path / "a" / "bench.json").config.modes
    assert [mode.text for mode in modes] == ["stock:per-sample", "whole:native", "pairs:chunk=1"]
    again = (worker.url, *SMALL, "--mode", "stock:per-sample", "whole:native", "pairs:chunk=1")
    second = run(*again, "--compare", str(tmp_path / "a" / "bench.json"), "--out", str(tmp_path / "b"))
    assert second.exit_code == 0, second.output


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("[arms.a]\n[arms.b]\nengine = 'sglang'", "these arms have other engines"),
        ("[arms.a]\n[arms.b]\ntemperature = 0.5", "these arms have other engines or sampling parameters"),
        ("[arms.a]\nway = 'batched'\nchunk = 2\n[arms.b]", "chunks of native requests alone"),
        ("[arms.a]\noptions = ['-x']\n[arms.b]\noptions = ['-x']", "bench starts engines as they are"),
    ],
)
def test_arms_that_differ_in_more_than_their_requests_are_refused(tmp_path, table, said):
    (tmp_path / "arms.toml").write_text(table)
    with pytest.raises(UsageError, match=said):
        cli.main(["bench", "--arms", str(tmp_path / "arms.toml")], standalone_mode=False)


def test_the_tables_name_what_was_measured_and_what_was_not(worker, tmp_path):
    result = run(worker.url, *SMALL, "--counts", worker.url, "--out", str(tmp_path))
    assert result.exit_code == 0, result.output
    for words in ("per-sample", "batched", "native", "ratio to", "decode tokens", "4 groups x 2 samples"):
        assert words in result.output
    assert re.search(r"not compared: engine CPU", result.output)
    assert result.output.count("engine CPU") == 1  # no column of blanks
    assert "95 % interval" in result.output
    assert "load of each engine" not in result.output
    assert "…" not in result.output  # all of it can be read on 80 columns


def test_a_benchmark_is_compared_with_an_earlier_one(worker, tmp_path):
    assert run(worker.url, *SMALL, "--out", str(tmp_path / "a"), "--quiet").exit_code == 0
    earlier = str(tmp_path / "a" / "bench.json")
    result = run(worker.url, *SMALL, "--out", str(tmp_path / "b"), "--compare", earlier, "--json", "--quiet")
    compared = orjson.loads(result.stdout)["compared"]
    assert {one["baseline"] for one in compared} == {"per-sample earlier", "batched earlier", "native earlier"}
    assert [one["ratio"] for one in compared if one["metric"] == "requests"] == pytest.approx([1, 1, 1])
    longer = ["4" if word == "3" else word for word in SMALL]
    other = run(worker.url, *longer, "--compare", earlier)
    assert re.search(r"new_tokens\b.* 3 .* 4\b", str(other.exception))


def test_no_prompt_is_that_of_an_earlier_benchmark_unless_a_seed_is_given(tmp_path):
    prompts = set()
    seen = []
    with toy_engine(ask=lambda payload: prompts.add(tuple(payload["input_ids"]))) as engine:
        for seed in ((), (), ("--seed", "7"), ("--seed", "7")):
            options = (*SMALL, "--mode", "per-sample", "--vocabulary", "50", "--out", str(tmp_path), *seed)
            assert run(engine.url, *options).exit_code == 0
            seen.append(frozenset(prompts))
            prompts.clear()
    assert not seen[0] & seen[1]
    assert seen[2] == seen[3]


def test_what_an_earlier_benchmark_does_not_hold_is_not_compared(worker, tmp_path):
    assert run(worker.url, *SMALL, "--mode", "native", "--out", str(tmp_path / "a"), "--quiet").exit_code == 0
    earlier = str(tmp_path / "a" / "bench.json")
    for modes, said in (
        (["native"], ""),  # the control
        (["native", "chunk=1"], "not compared with the earlier benchmark: chunk=1, which it does not hold"),
        (["chunk=1"], "not compared with the earlier benchmark: chunk=1, which it does not hold"),
    ):
        result = run(worker.url, *SMALL, "--mode", *modes, "--out", str(tmp_path / "b"), "--compare", earlier)
        assert result.exit_code == 0
        words = " ".join(result.output.split())
        assert said in words and ("not compared with" in words) == bool(said)


def test_a_cache_that_was_emptied_once_and_kept_once_is_unequal_work(worker, tmp_path):
    options = (*SMALL, "--mode", "native", "--quiet")
    assert run(worker.url, *options, "--out", str(tmp_path / "a"), "--control").exit_code == 0
    earlier = ("--compare", str(tmp_path / "a" / "bench.json"))
    assert run(worker.url, *options, "--out", str(tmp_path / "b"), *earlier, "--control").exit_code == 0
    with pytest.raises(UsageError):
        CliRunner().invoke(cli, ["bench", worker.url, *options, *earlier], catch_exceptions=False)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A benchmark's file."""
    directory = tmp_path_factory.mktemp("measured")
    with paced_workers(1) as (worker,):
        assert run(worker.url, *SMALL, "--out", str(directory), "--counts", worker.url).exit_code == 0
    return directory / "bench.json"


def test_what_is_read_back_is_what_was_measured(measured):
    result = read_bench(measured)
    assert [mode.name for mode in result.config.modes] == ["per-sample", "batched", "native"]
    assert len(result.rollouts) == 6
    assert {load.decode_tokens for one in result.rollouts for load in one.engines.values()} == {4 * 2 * 3}


def change(content, path, value):
    *parents, last = path
    for key in parents:
        content = content[key]
    if value is None:
        del content[last]
    else:
        content[last] = value


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["format"], 2, "no benchmark of format 1"),
        (["rollouts"], [], "no rollouts"),
        (["rollouts"], {}, "Expected `array`, got `object` - at `$.rollouts`"),
        (["rollouts", 1, "seconds"], None, "missing required field `seconds` - at `$.rollouts[1]`"),
        (["rollouts", 1, "seconds"], "1", "Expected `float`, got `str` - at `$.rollouts[1].seconds`"),
        (["rollouts", 1, "seconds"], 0, "> 0.0 - at `$.rollouts[1].seconds`"),
        (["rollouts", 1, "samples"], -1, ">= 0 - at `$.rollouts[1].samples`"),
        (["rollouts", 1, "samples"], True, "Expected `int`, got `bool` - at `$.rollouts[1].samples`"),
        (
            ["rollouts", 0, "request_seconds", "p50"],
            [],
            "Expected `float`, got `array` - at `$.rollouts[0].request_seconds[...]`",
        ),
        (["rollouts", 0, "engines"], {"a": 3}, "Expected `object`, got `int` - at `$.rollouts[0].engines[...]`"),
        (["config", "workload", "groups"], None, "config lacks groups"),
        (["config", "modes"], ["natif"], "no mode 'natif'"),
    ],
)
def test_a_file_that_is_no_benchmark_is_refused_by_place(path, value, said, measured, tmp_path):
    file = tmp_path / "bench.json"
    content = orjson.loads(measured.read_bytes())
    change(content, path, value)
    file.write_bytes(orjson.dumps(content))
    with pytest.raises(ParityError, match=re.escape(said)):
        read_bench(file)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff"])
def test_a_file_that_is_no_json_object_is_refused(content, tmp_path):
    (tmp_path / "bench.json").write_bytes(content)
    with pytest.raises(InputError, match=r"bench\.json"):
        read_bench(tmp_path / "bench.json")


def drop_one(payload, outputs):
    if len(outputs) > 1:
        outputs.pop()


def test_unequal_work_is_an_exit_code_and_no_ratio_of_time(tmp_path):
    for lie, code in ((lambda *_: None, 0), (drop_one, 3)):
        with toy_engine(lie=lie) as engine:
            result = run(
                engine.url, *SMALL, "--mode", "per-sample", "native", "--vocabulary", "50", "--out", str(tmp_path)
            )
        assert result.exit_code == code, result.output
    assert "a request for 2 samples was answered with 1" in " ".join(result.output.split())


def test_logs_and_counters_alone_are_counted():
    pages = [str(DATA / "sglang-0.5.23.metrics.txt"), str(DATA / "sglang-router-0.3.2.metrics.txt")]
    result = run("--counts", *pages, "--json")
    assert result.exit_code == 0, result.output
    loads = orjson.loads(result.stdout)
    assert loads["sglang-0.5.23.metrics"] == {"requests": 3.0, "decode_tokens": 128.0}
    assert loads["127.0.0.1:43007"] == {"requests": 4.0, "decode_tokens": None}
    assert "not compared" in run("--counts", pages[1]).output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://127.0.0.1:1", "--engine", "embedded"], "not both"),
        (["localhost:30000"], "is no URL"),
        (["http://127.0.0.1:1", "--workers", "2"], "is a deployment as it is"),
        (["--router", "round_robin", "round_robbin"], "no router policy 'round_robbin'"),
        (["--router", "round_robin", "round_robin"], "a policy is measured once"),
        (["--mode", "natif"], "no mode 'natif'"),
        (["--mode", f"chunk={'9' * 5000}"], "no mode 'chunk=999"),
        (["--seed", str(2**63)], "--seed is 9223372036854775808: expected less than 2**63"),
        (["http://127.0.0.1:1", "--counts", "http://[::1"], "http://[::1: no URL"),
        (["http://127.0.0.1:1", "--compare", "gone.json"], "gone.json: cannot be read"),
        (["http://127.0.0.1:9"], "http://127.0.0.1:9: nothing answers there (connection refused)"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments, said):
    assert said in str(run(*arguments).exception)


def test_a_directory_that_cannot_be_written_is_said_before_anything_is_asked(worker, tmp_path):
    (tmp_path / "file").write_text("")
    result = run(worker.url, *SMALL, "--out", str(tmp_path / "file" / "under"))
    assert isinstance(result.exception, OSError) and "file" in str(result.exception)
    assert worker.requests == 0


@pytest.mark.parametrize("runs", [False, True])
def test_an_engine_that_ended_is_named_with_its_logs(runs, tmp_path, monkeypatch):
    class Engine(RemoteEngine):
        def alive(self):
            return runs

    monkeypatch.setattr(running, "open_engine", lambda *_, **__: Engine("http://127.0.0.1:9", "embedded-0", False))
    said = str(run("--engine", "embedded", *SMALL, "--model-path", str(tmp_path), "--out", str(tmp_path)).exception)
    assert "no engine answers at http://127.0.0.1:9/health" in said
    assert said.startswith(f"embedded-0 ended meanwhile, logs in {tmp_path / 'logs'}: ") is not runs


def test_an_engine_that_does_not_say_its_vocabulary_needs_it_said():
    with toy_engine() as engine:
        assert "say it with --vocabulary" in str(run(engine.url, *SMALL).exception)


@pytest.mark.slow
def test_engines_behind_real_routers_are_started_once_measured_and_counted(tmp_path):
    before = set(psutil.Process().children(recursive=True))
    result = run(
        *("--engine", "embedded", "--workers", "2", "--router", "round_robin", "cache_aware"),
        *(*SMALL, "--warm-up", "0", "--shared-prefix", "all"),
        *("--mode", "per-sample", "native", "--images", "1", "--out", str(tmp_path), "--json"),
    )
    assert result.exit_code == 0, result.output
    image_tokens = (56 // 28) ** 2
    document = orjson.loads(result.stdout)
    for one in document["rollouts"]:
        assert one["prompt_tokens"] == 4 * 2 * (6 - 1 + image_tokens)  # one placeholder became the image's tokens
    for one in document["summaries"]:
        assert one["engine_cpu"] > 0
        assert one["uncounted_requests"] == 0
        assert sum(load["decode_tokens"] for load in one["engines"].values()) == 2 * 4 * 2 * 3
        # two engines, of which one holds the prefix: it has all of the requests or half of them
        assert one["request_spread"]["cv"] == (1 if one["policy"] == "cache_aware" else 0)
    assert len(list((tmp_path / "logs").glob("embedded-*.log"))) == 2
    walls = {(one["policy"], one["mode"]): one for one in document["across"] if one["metric"] == "seconds"}
    assert walls.keys() == {("cache_aware", "per-sample"), ("cache_aware", "native")}
    assert all(one["baseline"] == "round_robin" and one["ratio"] > 0 for one in walls.values())
    assert set(psutil.Process().children(recursive=True)) <= before


def test_what_was_measured_before_an_engine_died_is_kept(tmp_path):
    asked = []

    def ask(payload):
        asked.append(payload)
        if len(asked) > 4 * 8:  # a warm-up and three repeats of 4 x 2 requests are answered, and then no more
            raise web.HTTPInternalServerError

    with toy_engine(ask=ask) as engine:
        options = ("--mode", "per-sample", "--vocabulary", "50", "--repeats", "5", "--out", str(tmp_path))
        result = run(engine.url, *SMALL[:-2], *options)
    assert isinstance(result.exception, EngineError)
    assert "3 of 5 repeats were whole" in result.output
    kept = read_bench(tmp_path / "bench.json")
    assert [one.repeat for one in kept.rollouts] == [0, 1, 2]
    assert kept.config.repeats == 3


@pytest.mark.slow
def test_a_router_that_does_not_come_up_beside_another_leaves_nothing_running(tmp_path, monkeypatch):
    commands = router.command

    def command(policy, *rest):
        return commands(policy, *rest) if policy == "round_robin" else [sys.executable, "-c", "raise SystemExit(7)"]

    monkeypatch.setattr(router, "command", command)
    before = set(psutil.Process().children(recursive=True))
    result = run(
        *("--engine", "embedded", "--workers", "2", "--router", "round_robin", "random", *SMALL),
        *("--out", str(tmp_path)),
    )
    assert isinstance(result.exception, EngineError) and "7" in str(result.exception)
    assert set(psutil.Process().children(recursive=True)) <= before
