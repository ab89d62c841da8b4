"""Whatever a file says, a check ends with findings or with bad input: nothing else is raised."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from host_forms import dashboard_table, host_sample, rank_dump, relax_row, save_torch, verl_row, write_lines

from parity.commands.check import check_paths
from parity.contract_checks import Rules
from parity.errors import InputError, UsageError
from parity.records.samples import Rollout

N = 4
RULES = Rules(group_size=N, max_new_tokens=40, temperature=1.0, advantage="grpo", reward=lambda sample: 1.0)
VALUES: list[Any] = [
    None,
    True,
    0,
    1,
    -1,
    0.5,
    2**31,
    2**63,
    -(2**70),
    float("nan"),
    float("inf"),
    "",
    "text",
    "\ud800",
]
VALUES += ["completed", "aborted", "stop", [], [1], [-1.5, None], ["a"], [[1]], {}, {"a": 1}, {"type": "stop"}, [{}]]


def checked(path: Path) -> None:
    try:
        check_paths([path], RULES)
    except (InputError, UsageError) as error:
        assert str(path) in str(error)


def change(rng: random.Random, rows: list[dict[str, Any]]) -> None:
    """Puts anything into a field or two, or takes one away."""
    for _ in range(rng.randint(1, 2)):
        row = rng.choice(rows)
        name = rng.choice(sorted(row))
        if rng.random() < 0.8:
            row[name] = rng.choice(VALUES)
        else:
            del row[name]


@pytest.mark.parametrize("form", ["samples", "relax", "verl"])
def test_lines_with_anything_in_them(form: str, valid_samples: Any, tmp_path: Path) -> None:
    rng = random.Random(form)
    for _ in range(60):
        rows = [
            {"samples": one.to_json(), "relax": relax_row(one, row), "verl": verl_row(one)}[form]
            for row, one in enumerate(valid_samples(groups=2, n=N))
        ]
        change(rng, rows)
        checked(write_lines(tmp_path / "rows.jsonl", rows))


@pytest.mark.parametrize("part", ["exchange", "request", "output", "meta_info"])
def test_exchanges_with_anything_in_them(part: str, valid_samples: Any, valid_exchanges: Any, tmp_path: Path) -> None:
    rng = random.Random(part)
    for _ in range(40):
        rows = [one.to_json() for one in valid_exchanges(valid_samples(groups=2, n=N))]
        outputs = [output for row in rows for output in row["response"]]
        parts = {"exchange": rows, "request": [row["request"] for row in rows], "output": outputs}
        change(rng, {**parts, "meta_info": [output["meta_info"] for output in outputs]}[part])
        checked(write_lines(tmp_path / "rows.jsonl", rows))


@pytest.mark.parametrize("form", ["rollout", "train"])
def test_dumps_with_anything_in_them(form: str, valid_samples: Any, tmp_path: Path) -> None:
    rng = random.Random(form)
    for _ in range(40):
        samples = valid_samples(groups=2, n=N)
        content: dict[str, Any] = {"rollout_id": 0, "samples": [host_sample(one, N) for one in samples]}
        rows = content["samples"]
        if form == "train":
            content = rank_dump(samples, N, samples)
            rows = [content["rollout_data"]]
        change(rng, rng.choice([rows, rows, rows, [content]]))
        checked(save_torch(tmp_path / "dump.pt", content))


@pytest.mark.parametrize("kind", ["samples", "dashboard"])
def test_parquet_cut_off_or_changed_anywhere(kind: str, valid_samples: Any, tmp_path: Path) -> None:
    samples = valid_samples(groups=2, n=N)
    table = Rollout.from_samples(samples).table if kind == "samples" else dashboard_table(samples, N)
    path, rng = tmp_path / "rows.parquet", random.Random(0)
    pq.write_table(table, path, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    for _ in range(60):
        content = bytearray(whole)
        place = rng.randrange(len(content))
        if rng.random() < 0.2:
            content = content[:place]
        else:
            content[place] ^= rng.randrange(1, 256)
        path.write_bytes(content)
        checked(path)


@pytest.mark.parametrize(
    ("column", "array", "said"),
    [
        ("text", pa.array([b"\xff"]).view(pa.string()), "UTF8"),
        ("extra", pa.array(["[1]"]), "row 0: field 'extra' is no JSON object"),
        ("extra", pa.array(["{"]), "row 0: field 'extra' is no JSON object"),
        ("reward", pa.array(["high"]), "column 'reward'"),
        ("index", pa.array([None], pa.int64()), "column 'index' has 1 null in 1 row"),
        ("colour", pa.array([1]), "unknown columns"),
    ],
)
def test_a_column_that_is_wrong_is_named(column: str, array: pa.Array, said: str, tmp_path: Path) -> None:
    table = pa.table({"group_index": [0], "index": [0], column: array})
    pq.write_table(table, tmp_path / "rows.parquet")
    with pytest.raises(InputError, match=said):
        check_paths([tmp_path / "rows.parquet"], RULES)


def test_a_column_that_is_there_twice_is_named(tmp_path: Path) -> None:
    columns = [pa.array([0]), pa.array([0]), pa.array([1])]
    pq.write_table(pa.table(columns, names=["group_index", "index", "index"]), tmp_path / "rows.parquet")
    with pytest.raises(InputError, match=r"\['index'\]"):
        check_paths([tmp_path / "rows.parquet"], RULES)


def test_what_is_no_file_is_listed(valid_samples: Any, tmp_path: Path) -> None:
    import os

    write_lines(tmp_path / "run.samples.jsonl", [one.to_json() for one in valid_samples()])
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to(tmp_path / "none")
    (tmp_path / "loop").symlink_to(tmp_path)
    result = check_paths([tmp_path], Rules())
    assert {one.path.name for one in result.omissions} == {"pipe", "broken", "loop"}
    assert result.exit_code == 0
    with pytest.raises(InputError, match="pipe: "):
        check_paths([tmp_path / "pipe"], Rules())


def odd_tensors() -> list[Any]:
    import torch

    return [
        torch.ones(2).to_sparse(),
        torch.empty(2, device="meta"),
        torch.empty((), device="meta"),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, requires_grad=True),
        torch.ones((2, 2), dtype=torch.complex64),
        torch.ones(2, dtype=torch.bool),
    ]


@pytest.mark.parametrize("number", range(7))
def test_dumps_with_any_tensor_in_any_field(number: int, valid_samples: Any, tmp_path: Path) -> None:
    samples = valid_samples(groups=1)
    odd = odd_tensors()[number]
    for name in host_sample(samples[0], N):
        for value in (odd, {"images": [odd]}):
            rows = [host_sample(sample, N) for sample in samples]
            rows[1][name] = value
            checked(save_torch(tmp_path / "0.pt", {"rollout_id": 0, "samples": rows}))


def test_media_that_numpy_has_no_type_for_are_not_compared(valid_samples: Any, tmp_path: Path) -> None:
    rows = [host_sample(sample, N) for sample in valid_samples(groups=1)]
    for row in rows:
        row["multimodal_inputs"] = {"pixels": [odd_tensors()[3]]}
    result = check_paths([save_torch(tmp_path / "0.pt", {"rollout_id": 0, "samples": rows})], Rules(group_size=N))
    assert {finding.status.value for finding in result.findings if finding.check == "group_media"} == {"not_compared"}
    assert result.exit_code == 0


@pytest.mark.parametrize("field", ["extra", "text", "output_ids", "reward"])
def test_values_nested_too_deeply_are_named(field: str, tmp_path: Path) -> None:
    path = tmp_path / "deep.samples.jsonl"
    value = b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}"
    path.write_bytes(b'{"group_index":0,"index":0,"' + field.encode() + b'":' + value + b"}\n")
    with pytest.raises(InputError, match=rf"deep\.samples\.jsonl:1: field '{field}'"):
        check_paths([path], RULES)


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    path = tmp_path / "marked.samples.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"group_index":0,"index":0}\r\n{"group_index":0,"index":1}\r\n')
    assert check_paths([path], Rules(group_size=2)).counts["samples"] == 2
