"""An engine starts, restarts and ends, and leaves no process behind, however parity itself ends."""

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from parity.engines import EngineProcess, open_engine
from parity.engines.process import Engine
from parity.errors import EngineError, UsageError

FAKE = Path(__file__).with_name("fake_engine.py")

PARENT = """
import sys, time
from pathlib import Path
from parity.engines import EngineProcess
fake, log_dir, *flags = sys.argv[1:]
def command(port):
    return [sys.executable, fake, str(port), *flags]
engine = EngineProcess("fake", command, environment={}, log_dir=Path(log_dir), start_timeout=30)
engine.start()
print("healthy", flush=True)
time.sleep(600)
"""


@pytest.fixture
def engines(tmp_path):
    made = []

    def make(*flags, name="fake", **settings):
        def command(port):
            return [sys.executable, str(FAKE), str(port), *flags]

        engine = EngineProcess(name, command, log_dir=tmp_path, **{"environment": {}, "start_timeout": 30, **settings})
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.stop()


def descendants(pid):
    """The processes that `pid` has started, at any depth; they can be asked about after its end."""
    return psutil.Process(pid).children(recursive=True)


def all_gone(processes, within=10.0):
    _, alive = psutil.wait_procs(processes, timeout=within)
    return alive == []


def family(engine):
    """The engine, and the child that its log names, which left the engine's session."""
    child = int(re.findall(r"child (\d+)", engine.log_path.read_text())[-1])
    return [psutil.Process(engine.pid), psutil.Process(child)]


def health(engine):
    with urllib.request.urlopen(f"{engine.url}/health", timeout=5) as response:
        return response.status


def test_a_started_engine_answers_and_a_stopped_one_is_gone_with_its_children(engines):
    engine = engines("stubborn", "children")
    assert not engine.alive()
    engine.start()
    processes = family(engine)
    assert engine.alive() and health(engine) == 200
    assert all(process.is_running() for process in processes)
    engine.stop()
    assert all_gone(processes, within=0)
    assert not engine.alive() and engine.pid is None
    engine.stop()


def test_restart_keeps_the_port_and_appends_to_the_log(engines):
    engine = engines()
    engine.start()
    url, pid = engine.url, engine.pid
    engine.start()
    assert engine.url == url and engine.pid != pid
    assert health(engine) == 200
    assert engine.log_path.read_text().count("== ") == 2
    engine.stop()
    engine.start()
    assert engine.url == url and health(engine) == 200


def test_nobody_else_is_given_the_port_while_the_engine_is_down(engines):
    engine = engines()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", engine.port))


@pytest.mark.parametrize("flags", [("children",), ("children", "sick"), ("children", "stubborn")])
def test_kill_9_of_the_parent_leaves_nothing(tmp_path, flags):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, FAKE, tmp_path, *flags], stdout=subprocess.PIPE, text=True)
    log = tmp_path / "fake.log"
    deadline = time.monotonic() + 30
    while not (log.exists() and "mark" in log.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    if "sick" not in flags:
        assert parent.stdout.readline() == "healthy\n"
    processes = descendants(parent.pid)
    assert len(processes) == 3, "the supervisor, the engine and the engine's child"
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert all_gone(processes)


def test_an_engine_killed_by_somebody_is_noticed_and_its_children_go_with_it(engines):
    engine = engines("children")
    engine.start()
    processes = family(engine)
    processes[0].send_signal(signal.SIGKILL)
    assert all_gone(processes)
    assert not engine.alive()
    engine.start()
    assert engine.alive() and health(engine) == 200


def test_the_engine_does_not_outlive_its_supervisor(engines):
    engine = engines()
    engine.start()
    running = psutil.Process(engine.pid)
    running.parent().kill()
    assert all_gone([running])
    engine.stop()


def test_one_engine_ends_while_another_goes_on(engines):
    first, second = engines(name="first"), engines(name="second")
    first.start()
    second.start()
    running = psutil.Process(first.pid)
    first.stop()
    assert all_gone([running], within=0)
    assert second.alive() and health(second) == 200


def test_an_engine_that_ends_while_starting_is_an_error_with_its_log(engines):
    engine = engines("dies")
    with pytest.raises(
        EngineError, match=r"(?s)engine fake ended with exit code 1 after .*fake\.log:\n.*cannot load the checkpoint"
    ):
        engine.start()
    assert not engine.alive()


def test_a_command_that_does_not_exist_is_an_error_that_names_it(tmp_path):
    engine = EngineProcess("none", lambda port: ["/no/such/python"], environment={}, log_dir=tmp_path, start_timeout=30)
    with engine, pytest.raises(EngineError, match="/no/such/python"):
        engine.start()


def test_an_engine_that_never_becomes_healthy_is_ended(engines):
    engine = engines("sick", "children", start_timeout=1)
    with pytest.raises(EngineError, match=r"(?s)fake.* 1 s.*mark"):
        engine.start()
    child = int(re.findall(r"child (\d+)", engine.log_path.read_text())[0])
    assert not psutil.pid_exists(child)


def test_progress_tells_the_seconds_and_the_last_line_of_the_log(engines):
    told = []
    engines("slow", progress=lambda seconds, line: told.append((seconds, line))).start()
    assert told
    assert told[0][0] >= 1 and told[0][1].startswith("mark")


def test_progress_does_not_take_our_own_line_for_one_of_the_engine(engines):
    told = []
    engines("slow", "mute", progress=lambda _, line: told.append(line)).start()
    assert set(told) == {""}


def test_the_environment_is_added_to_ours_and_an_empty_value_removes(engines, monkeypatch):
    monkeypatch.setenv("FAKE_GONE", "still here")
    engine = engines(environment={"FAKE_MARK": "seen", "FAKE_GONE": ""})
    engine.start()
    assert engine.log_tail(1) == ["mark seen None"]


def test_an_engine_process_is_an_engine(engines):
    engine: Engine = engines()
    assert engine.client().url == engine.url


def test_an_unknown_engine_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"'tgi'.*embedded, sglang, vllm or a URL"):
        open_engine("tgi", tmp_path, tmp_path)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_without_an_environment_of_the_engine_the_error_says_how_to_get_one(tmp_path, monkeypatch, engine):
    monkeypatch.setenv(f"PARITY_{engine.upper()}_PYTHON", str(tmp_path / "python"))
    with pytest.raises(EngineError, match=rf"make {engine}"):
        open_engine(engine, tmp_path, tmp_path)
