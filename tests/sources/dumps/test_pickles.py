"""PyTorch files: plain data is read, a crafted one runs nothing, a damaged one is an error with its place."""

from __future__ import annotations

import collections
import datetime
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.sources.dumps.pickles import load_pickle

PLAIN = {"samples": [{"tokens": [1, 2, 3], "reward": 0.5, "text": "one", "mask": torch.ones(3), "none": None}]}


class Reduced:
    """Pickled as a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def test_plain_data_is_read(tmp_path: Path) -> None:
    torch.save(PLAIN, tmp_path / "plain.pt")
    torch.save(PLAIN, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("plain.pt", "old.pt"):
        read = load_pickle(tmp_path / name)["samples"][0]
        assert read.pop("mask").tolist() == [1.0, 1.0, 1.0]
        assert read == {"tokens": [1, 2, 3], "reward": 0.5, "text": "one", "none": None}


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "uint8", "float16", "float32", "float64"])
def test_numpy_arrays_and_scalars_of_numbers_are_read(dtype: str, tmp_path: Path) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    torch.save({"array": array, "scalar": array[1, 2]}, tmp_path / "numpy.pt")
    read = load_pickle(tmp_path / "numpy.pt")
    np.testing.assert_array_equal(read["array"], array)
    assert read["array"].dtype == array.dtype
    assert read["scalar"] == array[1, 2]


@pytest.mark.parametrize(
    "craft",
    [
        lambda mark: Reduced(os.system, f"touch {mark}"),
        lambda mark: Reduced(eval, f"open({str(mark)!r}, 'w')"),
        lambda mark: Reduced(exec, f"open({str(mark)!r}, 'w')"),
        lambda mark: Reduced(open, str(mark), "w"),
        lambda mark: Reduced(os.mkdir, str(mark)),
        lambda mark: Reduced(torch.save, {}, str(mark)),
        lambda mark: Reduced(np.save, str(mark), np.zeros(1)),
        lambda mark: {"a": [np.zeros(1), Reduced(os.mkdir, str(mark))]},
    ],
)
def test_a_crafted_pickle_runs_nothing(craft: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    torch.save({"rollout_id": 0, "samples": [craft(mark)]}, tmp_path / "crafted.pt")
    torch.save(craft(mark), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(craft(mark)))
    (tmp_path / "bare2.pt").write_bytes(pickle.dumps(craft(mark), protocol=2))
    for name in ("crafted.pt", "old.pt", "bare.pt", "bare2.pt"):
        with pytest.raises(InputError, match=name):
            load_pickle(tmp_path / name)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".pt"] * 4


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (datetime.date(2026, 1, 1), "datetime.date"),
        (Path("x"), "pathlib.PosixPath"),
        (collections.deque([1]), "collections.deque"),
        (np.array([{"a": 1}], dtype=object), "a NumPy array of object"),
        (np.array(["text"]), "a NumPy array of <U4"),
    ],
)
def test_what_is_refused_is_named_with_how_to_convert_it(value: Any, named: str, tmp_path: Path) -> None:
    torch.save({"samples": [{"metadata": value}]}, tmp_path / "dump.pt")
    with pytest.raises(InputError) as error:
        load_pickle(tmp_path / "dump.pt")
    assert f"{tmp_path / 'dump.pt'}: refused" in str(error.value)
    assert named in str(error.value)
    assert "torch.load(path, weights_only=False)" in str(error.value)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.data())
def test_a_file_cut_off_or_changed_anywhere_is_bad_input_or_data(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "dump.pt"
    torch.save({**PLAIN, "array": np.arange(4)}, path, _use_new_zipfile_serialization=data.draw(st.booleans()))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        path.write_bytes(content[:place])
        with pytest.raises(InputError, match=r"dump\.pt: "):
            load_pickle(path)
        return
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        load_pickle(path)
    except InputError as error:
        assert str(path) in str(error)
