"""TensorBoard's and W&B's files, read back, and the options that ask for them."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from parity.cli import main
from parity.errors import UsageError
from parity.findings import Finding, Level, Status, Where
from parity.report.document import Report
from parity.report.trackers import Targets, check_installed, content, publish
from parity.sources.registry import read_runs


def test_tensorboard_reads_back_and_a_second_writing_replaces_only_the_first(
    odd_report: Report, files: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    to = tmp_path / "tensorboard"
    for _ in range(2):
        (line,) = publish(odd_report, files, Targets(tensorboard=to))
        foreign = to / "mine" / "native-seed0" / "events.out.tfevents.1.other"
        foreign.touch()
    assert line == f"TensorBoard: tensorboard --logdir {to / 'mine'}"
    assert foreign.exists()
    for run in ("per-sample-seed0", "native-seed0"):
        (written,) = (to / "mine" / run).glob("*.parity")
        (read,) = read_runs(str(written))
        assert set(read.curves) == set(odd_report.curves[run])
        for metric, curve in odd_report.curves[run].items():
            assert not read.curves[metric].rewound
            np.testing.assert_array_equal(read.curves[metric].steps, curve.steps)
            np.testing.assert_array_equal(read.curves[metric].values, curve.values.astype(np.float32), metric)


def test_tensorboard_shows_the_verdict_the_report_and_its_pictures(
    odd_report: Report, files: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    list(publish(odd_report, files, Targets(tensorboard=tmp_path)))
    shown = EventAccumulator(str(tmp_path / "mine" / "comparison"))
    shown.Reload()
    assert {"curves-twin", "rollout-time"} <= set(shown.Tags()["images"])
    assert shown.Images("curves-twin")[0].encoded_image_string == (files / "curves-twin.png").read_bytes()
    (verdict,) = shown.Tensors("verdict")
    assert verdict.tensor_proto.string_val[0].startswith(b"PARITY: native equals per-sample")


def test_any_text_of_a_report_can_be_stored(odd_report: Report) -> None:
    hostile = Finding("\ud800", Level.CONTRACT, Status.FAIL, "\ud800" * 1_000_000, Where(field="\udfff"))
    shown = replace(odd_report, findings=(hostile,))
    stored = [content.words(shown), *(cell for rows in content.tables(shown).values() for row in rows for cell in row)]
    assert max(len(text.encode()) for text in stored) < 10 * content.LONGEST


def test_a_directory_that_cannot_be_written_is_said_and_no_error(odd_report: Report, files: Path) -> None:
    pytest.importorskip("tensorboard")
    (line,) = publish(odd_report, files, Targets(tensorboard=files / "report.md"))
    assert line.startswith("TensorBoard: not written: ")


def test_wandb_reads_back(odd_report: Report, files: Path) -> None:
    pytest.importorskip("wandb")
    lines = list(publish(odd_report, files, Targets(wandb=True)))
    where = {line.split(": ")[1]: line.split(": ")[2] for line in lines if line.count(": ") == 2}
    for run in ("per-sample-seed0", "native-seed0"):
        (read,) = read_runs(where[run])
        assert read.ending == "completed"
        for metric, curve in odd_report.curves[run].items():
            np.testing.assert_array_equal(read.curves[metric].steps, curve.steps)
            np.testing.assert_array_equal(read.curves[metric].values, curve.values, metric)
        assert math.isnan(read.curves["train/grad_norm"].values[9])
    pictures = {path.name.partition("_")[0] for path in Path(where["comparison"]).rglob("*.png")}
    assert {"curves-twin", "rollout-time"} <= pictures
    assert lines[-1] == "W&B: upload each with: wandb sync DIRECTORY"


def test_a_tracker_that_is_not_installed_is_said_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "clearml", None)
    check_installed(Targets())
    with pytest.raises(UsageError, match=r"--clearml .*pip install '\.\[clearml\]'"):
        check_installed(Targets(clearml=True))


@pytest.fixture
def parity(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(*arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["parity", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


def test_a_comparison_is_published_beside_its_verdict(
    parity: Callable[..., int], odd_report: Report, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    list(publish(odd_report, files, Targets(tensorboard=tmp_path / "tb")))
    capsys.readouterr()
    sources = [tmp_path / "tb" / "mine" / run for run in ("per-sample-seed0", "native-seed0")]
    arguments = ("--baseline", sources[0], "--experiment", sources[1], "--quiet", "--out", tmp_path / "again")
    assert parity("compare", *arguments, "--tensorboard", tmp_path / "tb") == 3
    printed = capsys.readouterr()
    assert printed.out == "INCONCLUSIVE\n"
    assert printed.err == f"TensorBoard: tensorboard --logdir {tmp_path / 'tb' / 'again'}\n"
    assert len(list((tmp_path / "tb" / "again").iterdir())) == 3


def test_a_diff_publishes_nothing_and_says_so(
    parity: Callable[..., int], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parity("report", "--diff", files, files, "--clearml") == 2
    assert "--diff publishes nothing" in capsys.readouterr().err
