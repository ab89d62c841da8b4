"""Small files that stand for much: each is refused in little memory, by a sentence that says what allows more."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parity.errors import InputError, OverBudget
from parity.records import budgets
from parity.sources.curves.logs import read_log
from parity.sources.registry import open_source, read_runs

SAMPLE = {"group_index": 0, "index": 0, "response_length": 1, "status": "completed"}
PEAK = 1 << 30


def of_tokens(path: Path, tokens: Any) -> Path:
    torch = pytest.importorskip("torch")
    torch.save({"rollout_id": 0, "samples": [{**SAMPLE, "tokens": tokens}]}, path)
    return path


def shared(path: Path) -> Path:
    tokens: list[Any] = [1]
    for _ in range(40):
        tokens = [tokens, tokens]
    return of_tokens(path, tokens)


def holding_itself(path: Path) -> Path:
    tokens: list[Any] = [1]
    tokens.append(tokens)
    return of_tokens(path, tokens)


def expanded(path: Path) -> Path:
    return of_tokens(path, pytest.importorskip("torch").zeros(1).expand(3 * 10**9))


class Call:
    """Pickles as a call of a function that PyTorch's loader allows."""

    def __init__(self, function: Callable[..., Any], argument: object) -> None:
        self.call = function, (argument,)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object]]:
        return self.call


def calling(path: Path, function: Callable[..., Any], argument: object) -> Path:
    content = {"rollout_id": 0, "samples": [{**SAMPLE, "tokens": Call(function, argument)}]}
    zipped(path, {"a/data.pkl": pickle.dumps(content, protocol=2), "a/version": b"3\n", "a/byteorder": b"little"})
    return path


def zipped(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def deflated(path: Path) -> Path:
    return zipped(path, {"a/data.pkl": b"\x80\x02](" + b"K\0" * (20 << 20) + b"e."}, zipfile.ZIP_DEFLATED)


def compressed_line(path: Path) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b'{"group_index": 0, "index": 0, "output_ids": [')
        for _ in range(100):
            file.write(b"[]," * 100_000)
        file.write(b"[]]}\n")
    return path


def rows(path: Path) -> Path:
    column = pa.array(np.zeros(5_000_000, dtype=np.int64))
    pq.write_table(pa.table({"group_index": column, "index": column}), path, compression="zstd")
    return path


def one_list(path: Path) -> Path:
    tokens = pa.array([np.zeros(20_000_000, dtype=np.int64)])
    pq.write_table(pa.table({"group_index": [0], "index": [0], "output_ids": tokens}), path, compression="zstd")
    return path


def one_text_often(path: Path) -> Path:
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(9_000, dtype=np.int32)), ["x" * 5_000_000])
    numbers = pa.array(np.arange(9_000))
    table = pa.table({"group_index": numbers, "index": numbers, "text": texts})
    pq.write_table(table, path, compression="zstd")
    return path


BOMBS: dict[str, Callable[[Path], Path]] = {
    "shared.pt": shared,
    "expanded.pt": expanded,
    "array.pt": lambda path: calling(path, np.ndarray, (2**31 - 1,)),
    "bytes.pt": lambda path: calling(path, bytearray, 10**10),
    "deflated.pt": deflated,
    "line.samples.jsonl.gz": compressed_line,
    "rows.parquet": rows,
    "list.parquet": one_list,
    "text.parquet": one_text_often,
}


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget of 32 MB for what is unpacked, so that tests need not make more."""
    monkeypatch.setattr(budgets, "unpacked_bytes", lambda: 32 << 20)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_stands_for_much_is_over_its_budget(name: str, tmp_path: Path) -> None:
    path = BOMBS[name](tmp_path / name)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(OverBudget, match="PARITY_BUDGET=4"):
        list((open_source(path).samples or list)())
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_list_that_holds_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds itself"):
        list((open_source(holding_itself(tmp_path / "a.pt")).samples or list)())


def test_a_prompt_that_samples_share_is_no_bomb(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tokens = list(range(1, 2_000))
    samples = [{**SAMPLE, "index": index, "tokens": tokens} for index in range(64)]
    torch.save({"rollout_id": 0, "samples": samples}, tmp_path / "a.pt")
    (rollout,) = (open_source(tmp_path / "a.pt").samples or list)()
    assert len(rollout) == 64


def clearml_session(path: Path) -> Path:
    line = b"[" + b"{}," * 2_000_000 + b"{}]\n"
    return zipped(path, {"task.json": b"{}", "metrics.jsonl": line * 8}, zipfile.ZIP_DEFLATED)


def document(path: Path) -> Path:
    path.write_bytes(b'{"log_history": [' + b"{}," * 3_000_000 + b"{}]}")
    return path


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(("name", "make"), [("session.zip", clearml_session), ("trainer_state.json", document)])
def test_curves_that_unfold_to_much_are_over_their_budget(
    name: str, make: Callable[[Path], Path], tmp_path: Path
) -> None:
    with pytest.raises(OverBudget, match="PARITY_BUDGET=4"):
        read_runs(str(make(tmp_path / name)))


@pytest.mark.parametrize("name", ["a.samples.jsonl", "a.pt", "events.out.tfevents.1", "a.csv", "run.log"])
def test_a_pipe_or_a_device_is_refused_at_once(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    (tmp_path / f"zero-{name}").symlink_to("/dev/zero")
    for path in (tmp_path / name, tmp_path / f"zero-{name}"):
        with pytest.raises(InputError):
            open_source(path)
        with pytest.raises(InputError):
            read_runs(str(path))


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "502 ",
        "(a pid=1, ip=",
        "'a': a.",
        "'k': f(",
        "step:1 - ",
        "{",
        "\x1b[0",
        "aError",
        "'",
        "step 1: {",
        "x.y.",
        "(",
    ],
)
def test_a_long_line_takes_a_time_in_its_length(unit: str, tmp_path: Path) -> None:
    """At a quadratic pattern twice the line takes four times as long, and this one hours."""
    path = tmp_path / "run.log"
    path.write_text("step 0: {'train/loss': 1.0}\n" + "step 1: {'a': " + unit * (900_000 // len(unit)) + "\n")
    assert read_log(path)


def test_budgets_are_multiplied_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.dumps([0] * 3_000).encode()
    monkeypatch.setattr(budgets, "elements", lambda: 2_000)
    with pytest.raises(OverBudget):
        budgets.decode_json(content, "it")
    monkeypatch.undo()
    before = budgets.answer_bytes()
    monkeypatch.setenv(budgets.VARIABLE, "2.5")
    assert budgets.answer_bytes() == int(2.5 * before)
    monkeypatch.setenv(budgets.VARIABLE, "many")
    with pytest.raises(InputError.__base__, match="PARITY_BUDGET"):  # type: ignore[arg-type]
        budgets.answer_bytes()


def test_memory_that_a_reader_takes_is_held_to_its_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(OverBudget), budgets.limited_memory(tmp_path / "a"):
        io.BytesIO(bytes(2 * PEAK))
    assert len(bytes(1 << 20)) == 1 << 20
