"""Prompts from files that hosts train on, and files that hold none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parity.commands.sample.prompts import Prompt, read_prompts
from parity.errors import InputError

ROWS: list[dict[str, Any]] = [{"prompt": "1+1=", "label": "2"}, {"prompt": "2+2=", "label": "4"}]
PROMPTS = [Prompt("1+1=", None, {"label": "2"}), Prompt("2+2=", None, {"label": "4"})]


def lines(rows: list[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_lines_plain_and_compressed_and_parquet_are_the_same_prompts(tmp_path: Path) -> None:
    plain, compressed, table = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz", tmp_path / "a.parquet"
    plain.write_bytes(lines(ROWS))
    compressed.write_bytes(gzip.compress(lines(ROWS)))
    pq.write_table(pa.Table.from_pylist(ROWS), table)
    assert read_prompts(plain) == read_prompts(compressed) == read_prompts(table) == PROMPTS


def test_token_ids_and_a_field_of_another_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines([{"input_ids": [3, 4], "question": "why"}]))
    assert read_prompts(path) == [Prompt(None, (3, 4), {"question": "why"})]
    assert read_prompts(path, "question") == [Prompt("why", None, {"input_ids": [3, 4]})]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no prompt"),
        (lines([{"messages": "x"}]), r"a.jsonl:1: no prompt under prompt or input_ids or text.*messages"),
        (lines([ROWS[0], {"prompt": ""}]), "a.jsonl:2"),
        (lines([{"prompt": [{"role": "user", "content": "x"}]}]), "chat template"),
        (lines([{"prompt": [1, True]}]), "neither"),
        (lines([{"prompt": [1, -2]}]), "neither"),
        (lines([{"prompt": None}]), "neither"),
        (b'{"prompt": "x"', "not JSON"),
        (b"[1]\n", "object"),
        (b"PAR1 and no more", "Parquet"),
    ],
)
def test_what_is_no_prompt_is_refused_with_its_place(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        read_prompts(path)
    with pytest.raises(InputError, match="nowhere"):
        read_prompts(tmp_path / "nowhere")
