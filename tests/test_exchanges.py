from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from parity.errors import InputError
from parity.exchanges import read_exchanges

GOLDEN = Path(__file__).parent / "data" / "sglang-0.5.23-cpu.exchanges.jsonl"


def test_recorded_exchanges_survive_reading_and_writing() -> None:
    lines = GOLDEN.read_bytes().splitlines()
    exchanges = list(read_exchanges(GOLDEN))
    assert [exchange.to_json() for exchange in exchanges] == [orjson.loads(line) for line in lines]


def test_what_recorded_requests_ask_for() -> None:
    asked = {e.extra["case"]: (len(e.prompts), e.is_batch, e.n, len(e.outputs)) for e in read_exchanges(GOLDEN)}
    assert asked["single"] == (1, False, 1, 1)
    assert asked["native-n8"] == (1, False, 8, 8)
    assert asked["native-text-prompt"] == (1, False, 4, 4)
    assert asked["batched-8"] == (8, True, 1, 8)
    assert asked["batched-2x-native-3"] == (2, True, 3, 6)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "object, not list"),
        ({"request": {}, "status": 200}, r"\['response'\] missing"),
        ({"request": [], "status": 200, "response": {}}, "field 'request' is list"),
        ({"request": {}, "status": "200", "response": {}}, "field 'status' is str"),
        ({"request": {}, "status": True, "response": {}}, "field 'status' is bool"),
        ({"request": {}, "status": 200, "response": {}, "attempt": 1.5}, "field 'attempt' is float"),
    ],
)
def test_a_line_that_is_no_exchange_is_named(row: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.exchanges.jsonl"
    path.write_bytes(orjson.dumps({"request": {}, "status": 200, "response": None}) + b"\n" + orjson.dumps(row) + b"\n")
    with pytest.raises(InputError, match=message) as caught:
        list(read_exchanges(path))
    assert f"{path}:2" in str(caught.value)


def test_a_line_that_is_no_json_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.exchanges.jsonl"
    path.write_bytes(b"{\n")
    with pytest.raises(InputError, match=r"a\.exchanges\.jsonl:1: not JSON"):
        list(read_exchanges(path))
    with pytest.raises(InputError, match="No such file"):
        list(read_exchanges(tmp_path / "none"))
