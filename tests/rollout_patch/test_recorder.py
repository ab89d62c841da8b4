"""What is recorded reads back as exchanges and samples, however a request ended."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parity.contract_checks import check_accounting, check_exchanges, check_requests, check_samples
from parity.evidence.contract.rules import Rules
from parity.findings import Status
from parity.records.exchanges import Exchange, read_exchanges
from parity.records.samples import SAMPLE_FIELDS, Rollout, Sample
from rollout_patch import ARMS, RequestFailed, generate_group, json_lines, sample_rows

MakeGroup = Callable[..., list[SimpleNamespace]]


@pytest.mark.parametrize("arm", ARMS)
async def test_exchanges_read_back_as_they_were(
    arm: str, engine: Any, adapter: Any, make_group: MakeGroup, tmp_path: Path
) -> None:
    path = tmp_path / "run.exchanges.jsonl"
    record = json_lines(path, {"rollout_id": 3, "group_index": 5})
    engine.script = [RequestFailed(502, "bad gateway")]
    report = await generate_group(
        arm, make_group(3), adapter=adapter, post=engine.post, recorder=record, retries=1, retry_wait=0
    )
    exchanges = list(read_exchanges(path))
    assert len(exchanges) == report.requests
    assert sorted(map(str, (exchange.request for exchange in exchanges))) == sorted(map(str, engine.sent))
    assert {(exchange.rollout_id, exchange.group_index, exchange.arm) for exchange in exchanges} == {(3, 5, arm)}
    failed = [exchange for exchange in exchanges if exchange.status != 200]
    assert [(exchange.status, exchange.response, exchange.attempt) for exchange in failed] == [(502, "bad gateway", 1)]
    assert sum(exchange.attempt == 2 for exchange in exchanges) == 1
    assert all(exchange.sent_at <= exchange.received_at for exchange in exchanges)
    received = [item["meta_info"]["id"] for one in exchanges if one.status == 200 for item in one.outputs]
    assert sorted(received) == sorted(output.id for output in report.outputs)


@pytest.mark.parametrize(
    ("error", "words"),
    [(RequestFailed(None, "cut"), "cut"), (OSError("reset"), "OSError: reset"), (KeyError("x"), "KeyError")],
)
async def test_a_request_without_an_answer_is_recorded_with_status_0(
    error: BaseException, words: str, engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    rows: list[dict[str, Any]] = []
    engine.script = [error]
    with pytest.raises((RequestFailed, KeyError)):
        await generate_group("native", make_group(3), adapter=adapter, post=engine.post, recorder=rows.append)
    assert [row["status"] for row in rows] == [0]
    assert words in rows[0]["response"]


async def test_a_cancelled_request_is_recorded_too(engine: Any, adapter: Any, make_group: MakeGroup) -> None:
    rows: list[dict[str, Any]] = []
    task = asyncio.create_task(
        generate_group("native", make_group(3), adapter=adapter, post=engine.post, recorder=rows.append)
    )
    while not engine.in_flight:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(row["status"], row["response"].split(":")[0]) for row in rows] == [(0, "CancelledError")]


@pytest.mark.parametrize("arm", ARMS)
async def test_media_go_over_the_wire_and_not_into_the_recording(
    arm: str, engine: Any, adapter: Any, make_group: MakeGroup
) -> None:
    rows: list[dict[str, Any]] = []
    group = make_group(3, media={"image_data": ["picture", "other"]})
    await generate_group(arm, group, adapter=adapter, post=engine.post, recorder=rows.append)
    assert all("picture" in repr(body["image_data"]) for body in engine.sent)
    assert "picture" not in repr(rows)
    # What was asked is the same to a check, in the recording and as it was sent.
    sent = [Exchange(body, 200, None) for body in engine.sent]
    (finding,) = check_requests(sent, [Exchange.from_json(row, "") for row in rows])
    assert finding.status is Status.PASS
    sent[0].request["image_data"] = ["other", "picture"]
    (finding,) = check_requests(sent, [Exchange.from_json(row, "") for row in rows])
    assert finding.status is Status.FAIL


async def test_samples_read_back_as_columns(engine: Any, adapter: Any, make_group: MakeGroup, tmp_path: Path) -> None:
    params = {"temperature": 0.7, "max_new_tokens": 9, "top_k": 20}
    group = make_group(3, sampling_params=params, media={"image_data": ["picture"]})
    report = await generate_group("native", group, adapter=adapter, post=engine.post)
    path = tmp_path / "run.samples.jsonl"
    for row in sample_rows(report, rollout_id=2, group_index=1):
        json_lines(path)(row)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(set(row) <= set(SAMPLE_FIELDS) for row in rows)
    rollout = Rollout.from_samples(Sample(**row) for row in rows)
    assert rollout.integers("index").tolist() == [0, 1, 2]
    assert rollout.ragged("output_ids").values.tolist() == [1, 7, 2, 7, 3, 7]
    assert rollout.ragged("logprobs").lengths.tolist() == [2, 2, 2]
    assert set(rollout.strings("status")) == {"completed"}
    assert [rows[0][name] for name in ("temperature", "max_new_tokens", "top_k", "arm")] == [0.7, 9, 20, "native"]
    assert [len(one) for one in rows[0]["media_sha256"]] == [64]
    assert "sampling_seed" not in rows[0]


@pytest.mark.parametrize("arm", ARMS)
async def test_what_is_recorded_keeps_the_contract_and_a_lost_exchange_breaks_it(
    arm: str, engine: Any, adapter: Any, make_group: MakeGroup, tmp_path: Path
) -> None:
    path = tmp_path / "run.exchanges.jsonl"
    rows: list[dict[str, Any]] = []
    engine.numbers = itertools.count(100)
    for group_index in range(3):
        record = json_lines(path, {"rollout_id": 0, "group_index": group_index})
        params = {"temperature": 1.0, "max_new_tokens": 8, "stop_token_ids": [7]}
        group = make_group(4, input_ids=[1, 2, 3 + group_index], sampling_params=params)
        report = await generate_group(arm, group, adapter=adapter, post=engine.post, recorder=record)
        rows += sample_rows(report, rollout_id=0, group_index=group_index)
    rollout = Rollout.from_samples(Sample(**row) for row in rows)
    rules = Rules(group_size=4, max_new_tokens=8, stop_token_ids=frozenset({7}))

    def failing(exchanges: list[Exchange]) -> set[str]:
        findings = [
            *check_exchanges(exchanges, rules),
            *check_samples(rollout, rules),
            *check_accounting(rollout, exchanges),
        ]
        assert any(finding.status is Status.PASS for finding in findings)
        return {finding.check for finding in findings if finding.fails}

    exchanges = list(read_exchanges(path))
    assert failing(exchanges) == set()
    assert failing(exchanges[1:]) != set()
