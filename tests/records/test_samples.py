from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.records.samples import SCHEMA, Rollout, Sample

finite = st.floats(-50, 0)
samples = st.builds(
    Sample,
    group_index=st.integers(0, 9),
    index=st.integers(0, 7),
    rollout_id=st.none() | st.integers(0, 99),
    output_ids=st.none() | st.lists(st.integers(0, 1000), max_size=5),
    logprobs=st.none() | st.lists(finite, max_size=5),
    text=st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
    reward=st.none() | finite,
    weight_versions=st.none() | st.lists(st.text(st.characters(codec="utf-8"), max_size=3), max_size=2),
    extra=st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), st.integers(0, 9), max_size=2),
)


@settings(derandomize=True)
@given(st.lists(samples, max_size=6))
def test_samples_survive_their_columns(rows: list[Sample]) -> None:
    assert list(Rollout.from_samples(rows).samples()) == rows


@settings(derandomize=True, max_examples=25)
@given(rows=st.lists(samples, max_size=6))
def test_samples_survive_parquet(rows: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("parquet") / "step.parquet"
    pq.write_table(Rollout.from_samples(rows).table, path)
    assert list(Rollout.read_parquet(path).samples()) == rows


@settings(derandomize=True)
@given(st.lists(samples, max_size=6), st.lists(samples, max_size=6))
def test_a_ragged_column_has_each_row(first: list[Sample], second: list[Sample]) -> None:
    rollout = Rollout.concatenate([Rollout.from_samples(first), Rollout.from_samples(second)])
    ragged = rollout.ragged("output_ids")
    for row, sample in enumerate([*first, *second]):
        assert ragged[row].tolist() == (sample.output_ids or [])
        assert ragged.valid[row] == (sample.output_ids is not None)
        assert ragged.lengths[row] == len(sample.output_ids or [])
    assert np.bincount(ragged.rows_of_values, minlength=len(rollout)).tolist() == ragged.lengths.tolist()


def test_what_is_not_known_is_not_zero() -> None:
    rollout = Rollout.from_samples([Sample(0, 0, reward=0.0), Sample(0, 1)])
    values, known = rollout.numbers("reward")
    assert (values[0], known.tolist()) == (0.0, [True, False])
    assert np.isnan(values[1])
    assert not rollout.has("advantage")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"group_index": [0]}), "file: .*'index'"),
        (pa.table({"group_index": [0], "index": [None]}), "file: .*'index'.* 1 "),
        (pa.table({"group_index": [0], "index": [0], "rewards": [1.0]}), r"file: .*\['rewards'\]"),
        (pa.table({"group_index": [0], "index": [0], "reward": ["x"]}), "file: .*'reward'.*string.*double"),
        (pa.table({"group_index": [0], "index": [0], "output_ids": [2**40]}), "file: .*'output_ids'.*int64"),
    ],
)
def test_a_table_that_is_no_samples_is_refused(table: pa.Table, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Rollout.from_table(table, "file")


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    path = tmp_path / "step.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"step\.parquet: "):
        Rollout.read_parquet(path)
    with pytest.raises(InputError, match=r"none\.parquet"):
        Rollout.read_parquet(tmp_path / "none.parquet")


def test_no_rollouts_make_an_empty_one() -> None:
    assert Rollout.concatenate([]).table.schema == SCHEMA
