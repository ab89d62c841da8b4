"""However a command ends, an exit code of 1 is a verdict, and what went wrong is one sentence."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from parity.cli import cli, main
from parity.cli.ending import describe_error
from parity.errors import EngineError, InputError


def parity(*arguments: object, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "parity", *map(str, arguments)]
    return subprocess.run(command, **{"capture_output": True, "timeout": 120, **options})


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "a.samples.jsonl"
    path.write_text('{"group_index": 0, "index": 0, "output_ids": [2], "logprobs": [-0.5, -0.5]}\n')
    return path


def test_a_closed_pipe_is_no_verdict(dump: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = parity("check", dump, capture_output=False, stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (128 + signal.SIGPIPE, b"")
    assert parity("check", dump).returncode == 1, "what the same command says where it is read"


def test_a_full_disk_behind_standard_output_is_no_verdict(dump: Path) -> None:
    with open("/dev/full", "wb") as full:
        result = parity("check", dump, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 2
    assert result.stderr.decode().count("\n") == 1
    assert os.strerror(errno.ENOSPC) in result.stderr.decode()


def test_an_encoding_without_a_character_costs_no_verdict(dump: Path) -> None:
    result = parity("check", dump, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (1, b"")
    assert b"FAIL" in result.stdout


def endless() -> None:
    endless()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ValueError("odd"),
        RuntimeError("PytorchStreamWriter failed writing file data/0"),
        UnicodeEncodeError("ascii", "x", 0, 1, "no"),
        SystemError("a\x1bb\nFAKE: PASS"),
        OSError(28, "No space left on device", "out/a.json"),
        None,
    ],
    ids=str,
)
def test_whatever_goes_wrong_is_one_sentence_and_no_verdict(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(**_: object) -> None:
        if error is None:
            endless()
        raise error or AssertionError

    monkeypatch.setattr(cli.commands["selftest"], "callback", broken)
    monkeypatch.setattr(sys, "argv", ["parity", "selftest"])
    monkeypatch.setattr("parity.cli.end_as_by_ctrl_c", lambda: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("parity: ")
    assert said.count("\n") == 1
    assert "\x1b" not in said


def test_a_defect_is_named_by_its_place() -> None:
    try:
        EngineError(*[1]).missing  # noqa: B018
    except AttributeError as error:
        assert "defect of parity" in describe_error(error)


def test_an_option_that_is_a_file_here_is_refused_and_nothing_is_imported(tmp_path: Path, dump: Path) -> None:
    (tmp_path / "evil.py").write_text("open('ran', 'w')\ndef f(sample): return 0.0\n")
    (tmp_path / "--reward=evil:f").touch()
    names = sorted(path.name for path in tmp_path.iterdir())
    result = parity("check", *names, cwd=tmp_path)
    assert result.returncode == 2
    assert b"--reward=evil:f" in result.stderr
    result = parity("check", dump, "--reward", "evil:f", cwd=tmp_path)
    assert result.returncode == 2
    assert not (tmp_path / "ran").exists()
    result = parity("check", dump, "--reward", "./evil.py:f", cwd=tmp_path)
    assert result.returncode == 1, "asked for by its path"
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["torch", "click", "aiohttp", "orjson"])
def test_a_file_of_the_working_directory_stands_for_no_package(tmp_path: Path, dump: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("open('ran', 'w')\n")
    assert parity("check", dump, cwd=tmp_path).returncode == 1
    assert not (tmp_path / "ran").exists()


def test_what_an_error_quotes_forges_no_line_and_keeps_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "9f8e7d6c5b")
    error = InputError("a\nFAKE: PASS\x1b[2J, http://me:hunter2@host/x?token=abc 9f8e7d6c5b", "a detail\x07")
    assert str(error) == "a\\nFAKE: PASS\\x1b[2J, http://***@host/x?token=*** ***\n  a detail\\x07"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("in_background", [False, True])
def test_a_job_is_ended_by_a_scheduler_also_where_it_ignores_ctrl_c(number: int, in_background: bool) -> None:
    code = (
        "import signal, sys, time\n"
        f"signal.signal(signal.SIGINT, signal.SIG_IGN) if {in_background} else None\n"
        "from parity.cli.ending import end_as_by_ctrl_c, exit_of_signal\n"
        "end_as_by_ctrl_c()\n"
        "try:\n    print('up', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n    sys.exit(exit_of_signal())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
