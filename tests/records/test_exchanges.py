from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.errors import InputError
from parity.records.exchanges import read_exchanges
from parity.records.json_lines import repeated_name

GOLDEN = Path(__file__).parents[1] / "data" / "sglang-0.5.23-cpu.exchanges.jsonl"


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
        ([], "list"),
        ({"request": {}, "status": 200}, r"\['response'\]"),
        ({"request": [], "status": 200, "response": {}}, "'request'.*list"),
        ({"request": {}, "status": "200", "response": {}}, "'status'.*str"),
        ({"request": {}, "status": True, "response": {}}, "'status'.*bool"),
        ({"request": {}, "status": 200, "response": {}, "attempt": 1.5}, "'attempt'.*float"),
    ],
)
def test_a_line_that_is_no_exchange_is_named(row: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.exchanges.jsonl"
    path.write_bytes(orjson.dumps({"request": {}, "status": 200, "response": None}) + b"\n" + orjson.dumps(row) + b"\n")
    with pytest.raises(InputError, match=message) as caught:
        list(read_exchanges(path))
    assert f"{path}:2" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b'{"request": {}, "status": 200, "response": {"text": "a", "text": "b"}}', "text"),
        (b'{"request": {}, "status": 200, "status" : 500, "response": {}}', "status"),
        (
            b'{"request": {"sampling_params": {"n": 8, "stop": ["{\\"n\\": "], "n": 1}}, "status": 200, "response": 0}',
            "n",
        ),
        (b'{"request": {}, "status": 200, "response": [{"a": 1}, {"\\u0061": 1, "b": {"b": 1}, "a": 2}]}', "a"),
    ],
)
def test_a_name_that_stands_twice_in_one_object_is_refused(line: bytes, name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.exchanges.jsonl"
    path.write_bytes(b'{"request": {}, "status": 200, "response": {}}\n' + line + b"\n")
    with pytest.raises(InputError, match=rf"exchanges\.jsonl:2: .*'{name}'"):
        list(read_exchanges(path))


def _first_repeated(content: str) -> str | None:
    """As Python's own parser sees it, which meets objects from the inside out: whether there is any, then."""
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in items]
        found.extend(name for name in names if names.count(name) > 1)

    json.loads(content, object_pairs_hook=pairs)
    return found[0] if found else None


TEXT = st.text('ab"\\{}[]:, \né\ud800', max_size=4)
VALUES = st.recursive(
    TEXT | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(TEXT, inner), max_size=3).map(tuple),
    max_leaves=12,
)


def _written(value: Any, gap: str) -> str:
    """JSON in which an object is a tuple of pairs, so that it may say a name twice."""
    if isinstance(value, tuple):
        pairs = (f"{json.dumps(name)}{gap}:{gap}{_written(item, gap)}" for name, item in value)
        return f"{{{gap}{f'{gap},'.join(pairs)}{gap}}}"
    if isinstance(value, list):
        return f"[{','.join(_written(item, gap) for item in value)}]"
    return json.dumps(value, ensure_ascii="\ud800" in str(value))


@settings(derandomize=True, max_examples=200, deadline=None)
@given(VALUES, st.sampled_from(["", " ", "\n\t"]))
def test_repeated_names_are_those_that_pythons_own_parser_meets(value: Any, gap: str) -> None:
    content = _written(value, gap)
    found, wanted = repeated_name(content.encode()), _first_repeated(content)
    assert (found is None) == (wanted is None), content


def test_a_line_that_is_no_json_and_a_missing_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.exchanges.jsonl"
    path.write_bytes(b"{\n")
    with pytest.raises(InputError, match=r"a\.exchanges\.jsonl:1: "):
        list(read_exchanges(path))
    with pytest.raises(InputError, match=re.escape(str(tmp_path / "none"))):
        list(read_exchanges(tmp_path / "none"))
