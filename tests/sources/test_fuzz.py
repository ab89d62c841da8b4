"""Whatever bytes a reader is given, it reads them or says in one sentence why not; ``make fuzz`` tries many more."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, example, given, seed, settings
from hypothesis import strategies as st

from parity.engines.answers import damage_of
from parity.errors import MASK, ParityError, shown
from parity.findings import Message
from parity.records.exchanges import Exchange
from parity.records.experiment import ExperimentConfig
from parity.sources.registry import open_source, read_runs

EXAMPLES = int(os.environ.get("PARITY_FUZZ", "12"))
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == 12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([2**63, -(2**64), 1e308]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    [
        "group_index",
        "index",
        "output_ids",
        "logprobs",
        "reward",
        "request",
        "status",
        "response",
        "step",
        "data",
        "extra",
        "meta_info",
        "input_ids",
        "sampling_params",
        "train/loss",
        "rollout_id",
        "tokens",
        "weight_versions",
        "log_history",
    ]
)
ROWS = st.dictionaries(NAMES, VALUES, max_size=8)
SEEDS = [
    b'{"group_index": 0, "index": 0, "output_ids": [1, 2], "logprobs": [-0.5, -0.25]}\n',
    b'{"request": {"input_ids": [1]}, "status": 200, "response": {"text": "a"}}\n',
    b"step 1: {'train/loss': 1.0, 'train/grad_norm': np.float64(0.5)}\n",
    b"step,train/loss\n1,0.5\n2,0.25\n",
    b"PAR1\x15\x04PAR1",
    b"\x80\x02}q\x00.",
    b"PK\x03\x04",
    b"\x1f\x8b\x08\x00",
]


def mutated(parts: tuple[bytes, int, bytes]) -> bytes:
    content, at, inserted = parts
    at %= len(content) + 1
    return content[:at] + inserted + content[at + len(inserted) // 2 :]


CONTENTS = st.binary(max_size=200) | st.tuples(st.sampled_from(SEEDS), st.integers(0, 300), st.binary(max_size=12)).map(
    mutated
)


def read_all(path: Path) -> None:
    source = open_source(path, 4)
    for read in (source.samples, source.exchanges, source.runs):
        if read is not None:
            for part in read():
                assert part is not None


@pytest.mark.parametrize("name", ["a.jsonl", "a.pt", "a.parquet", "events.out.tfevents.1", "a.csv", "a.log", "a.zip"])
@seed(1)
@fuzzed
@given(content=CONTENTS)
@example(content=b'{"a":' * 2_000)
@example(content=b"[" * 100_000)
@example(content=b'{"group_index": 0, "index": 0, "extra": "' + b"a" * 200_000 + b'"}')
@example(content=b"step," + b"a" * 200_000 + b"\n1,2\n")
def test_no_file_makes_a_reader_fail_otherwise(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    readers: tuple[Callable[[], object], ...] = (lambda: read_all(path), lambda: read_runs(str(path)))
    for read in readers:
        try:
            read()
        except ParityError as error:
            assert "\x1b" not in str(error)


@seed(2)
@fuzzed
@given(rows=st.lists(ROWS, min_size=1, max_size=4))
def test_no_json_lines_make_a_reader_fail_otherwise(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    readers: tuple[Callable[[], object], ...] = (lambda: read_all(path), lambda: read_runs(str(path)))
    for read in readers:
        with suppress(ParityError):
            read()


@seed(3)
@fuzzed
@given(payload=ROWS, answer=VALUES | ROWS | st.lists(ROWS, max_size=3))
def test_no_answer_makes_the_decoder_fail_otherwise(payload: dict[str, Any], answer: Any) -> None:
    try:
        assert isinstance(damage_of(Exchange(payload, 200, answer)), str)
        exchange = Exchange.from_json({"request": payload, "status": 200, "response": answer}, "here")
        assert exchange.outputs is not None
    except ParityError:
        return


@seed(4)
@fuzzed
@given(row=VALUES | st.dictionaries(st.sampled_from(sorted(ExperimentConfig("", "").to_json())), VALUES, max_size=5))
def test_no_configuration_makes_its_reader_fail_otherwise(row: Any) -> None:
    try:
        ExperimentConfig.from_json(row)
    except ParityError as error:
        assert str(error)


@seed(5)
@fuzzed
@given(text=st.text(), secret=st.text("abcdefghij0123456789", min_size=8, max_size=20))
def test_no_text_that_is_shown_steers_a_screen_or_keeps_a_secret(text: str, secret: str) -> None:
    url = f"http://me:{secret}@host:1/x?api_key={secret}"
    for said in (shown(f"{text} {url}"), str(Message("{value} and {url}", value=text, url=url))):
        assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in said)
        assert said.isprintable() or not {"\u2028", "\u202e"} & set(said)
        assert MASK in said
        assert secret not in said.replace(shown(text), "") or secret in text
    orjson.dumps(shown(text))
