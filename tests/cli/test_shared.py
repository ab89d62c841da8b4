"""What commands say before they run, and how one that was cut short says what goes on from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from parity.cli import cli
from parity.cli.shared import interruptible
from parity.commands.compare import MINIMUM_STEPS
from parity.errors import EngineError, UsageError

GO_ON = "go on with: parity run --out 'out of the way' --resume"


def cut_short(error: BaseException) -> None:
    with interruptible("run", Path("out of the way")):
        raise error


def test_an_engine_that_failed_for_good_leaves_the_command_that_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("out of the way").mkdir()
    with pytest.raises(EngineError) as raised:
        cut_short(EngineError("engine embedded-0 was not healthy after 300 s"))
    assert str(raised.value).startswith("engine embedded-0 was not healthy after 300 s\n")
    assert GO_ON in str(raised.value)


def test_ctrl_c_leaves_it_too_once_there_is_something_to_go_on_with(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cut_short(KeyboardInterrupt())
    assert "go on with" not in capsys.readouterr().err
    Path("out of the way").mkdir()
    with pytest.raises(SystemExit) as raised:
        cut_short(KeyboardInterrupt())
    assert raised.value.code == 130
    assert GO_ON in capsys.readouterr().err


def test_a_wrong_command_is_not_to_be_gone_on_with():
    with pytest.raises(UsageError, match=r"^no task 'digit'$"):
        cut_short(UsageError("no task 'digit'"))


def make_directory(*files: str) -> None:
    for name in files:
        path = Path("parity-out", "mine", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("content")


@pytest.mark.parametrize(
    ("error", "files", "kept"),
    [
        (UsageError("wrong"), ["experiment.json", ".lock"], False),
        (EngineError("did not start"), [".lock", "experiment.json"], False),
        (EngineError("did not start"), ["logs/engine.log", "experiment.json"], True),
        (EngineError("died"), ["experiment.json", "runs/native-seed0/events.jsonl"], True),
    ],
)
def test_a_command_that_did_nothing_leaves_no_directory(tmp_path, monkeypatch, error, files, kept):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(type(error)) as raised, interruptible("run", Path("parity-out", "mine")):
        make_directory(*files)
        raise error
    assert Path("parity-out", "mine").exists() == kept
    assert Path("parity-out").exists() == kept
    assert ("go on with" in str(raised.value)) == ("runs/native-seed0/events.jsonl" in files)


def test_how_many_steps_curves_need_is_said_before_they_are_run():
    said = " ".join(CliRunner().invoke(cli, ["run", "--help"]).output.split())
    assert f"fewer than {MINIMUM_STEPS} leave L3 inconclusive" in said
