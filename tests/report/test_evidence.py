"""What a page holds of an experiment's samples: what is on disk, those that matter first, and where arms part."""

from __future__ import annotations

import base64
import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parity.errors import InputError
from parity.findings import Finding, Level, Status, Where, judge
from parity.records.samples import Rollout, Sample
from parity.records.store import run_store
from parity.report.document import Report, build_report
from parity.report.html import PageEvidence, evidence, gather
from parity.report.html.tokens import token_texts
from parity.report.runs import RunRecord

ARMS = {"baseline": "per-sample", "experiment": "native"}


def sample(step: int, slot: int = 0, **fields: Any) -> Sample:
    standard = {"output_ids": [5, 6, 7], "logprobs": [-0.1, -0.2, -0.3], "text": "a b c", "reward": 1.0}
    return Sample(0, slot, rollout_id=step, **{**standard, **fields})


def write(directory: Path, run: str, *steps: list[Sample]) -> None:
    store = run_store(directory, run)
    store.create()
    for step, samples in enumerate(steps):
        store.write_step(step, Rollout.from_samples(samples), [])
        store.append_metrics({"step": step})


def report_of(directory: Path, design: str, runs: dict[str, str], *findings: Finding) -> Report:
    records = [
        RunRecord(name, arm, 0, design, run_store(directory, name).metrics(), {}, []) for name, arm in runs.items()
    ]
    return build_report(ARMS, records, findings, judge(findings))


def unpack(packed: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(packed)))
    return content


def twin(directory: Path, baseline: list[Sample], experiment: list[Sample]) -> dict[str, Any]:
    write(directory, "per-sample-seed0", baseline)
    write(directory, "native-seed0", experiment)
    report = report_of(directory, "twin", {"per-sample-seed0": "per-sample", "native-seed0": "native"})
    return unpack(gather(report, directory).packed["twin-0", 0])


def test_samples_are_those_of_the_file_and_row_that_are_named(tmp_path: Path) -> None:
    shown = twin(tmp_path, [sample(0, 0), sample(0, 1, text=None)], [sample(0, 0), sample(0, 1, reward=math.nan)])
    (baseline,), (experiment,) = shown["baseline"], shown["experiment"]
    assert (baseline["file"], baseline["row"]) == ("runs/per-sample-seed0/rollouts/step-000000.parquet", [0, 1])
    assert (baseline["text"], baseline["output_ids"][0]) == (["a b c", None], [5, 6, 7])
    assert baseline["logprobs"][1] == [-100, -200, -300]
    assert experiment["reward"] == [1.0, "NaN"]


def test_a_column_that_is_equal_in_both_arms_is_written_once(tmp_path: Path) -> None:
    shown = twin(tmp_path, [sample(0)], [sample(0, reward=0.5)])
    assert shown["experiment"] == [{"file": "runs/native-seed0/rollouts/step-000000.parquet", "reward": [0.5]}]


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({}, None),
        ({"output_ids": [5, 9, 7]}, 1),
        ({"logprobs": [-0.1, -0.2, math.nextafter(-0.3, 0)]}, 2),
        ({"output_ids": [5, 6], "logprobs": [-0.1, -0.2]}, 2),
        ({"output_ids": None, "logprobs": None}, 0),
        ({"reward": 0.0}, None),
    ],
)
def test_where_the_arms_of_a_twin_part_is_found_to_the_last_bit(
    changed: dict[str, Any], place: int | None, tmp_path: Path
) -> None:
    shown = twin(tmp_path, [sample(0)], [sample(0, **changed)])
    assert shown["differs"] == ({} if place is None else {"0/0": place})


def test_arms_that_sample_freely_are_expected_to_part(tmp_path: Path) -> None:
    write(tmp_path, "per-sample-seed0", [sample(0)])
    write(tmp_path, "native-seed0", [sample(0, output_ids=[1, 2, 3])])
    report = report_of(tmp_path, "paired", {"per-sample-seed0": "per-sample", "native-seed0": "native"})
    assert unpack(gather(report, tmp_path).packed["paired-0", 0])["differs"] == {}


def test_the_arms_of_a_mixed_run_come_from_its_own_samples_and_those_compared(tmp_path: Path) -> None:
    write(tmp_path, "probe-seed0", [sample(0, 0, arm="native", text="n"), sample(0, 1, arm="per-sample", text="p")])
    write(tmp_path, "probe-seed0/compared", [sample(0, 0, arm="per-sample", text="compared")])
    report = report_of(tmp_path, "probe", {"probe-seed0": "probe"})
    shown = unpack(gather(report, tmp_path).packed["probe-0", 0])
    texts = {arm: [text for part in shown[arm] for text in part["text"]] for arm in ARMS}
    assert texts == {"baseline": ["p", "compared"], "experiment": ["n"]}
    assert [part["row"] for part in shown["baseline"]] == [[1], [0]]


def test_what_is_not_finite_stays_so_and_a_mask_of_ones_is_left_out(tmp_path: Path) -> None:
    shown = twin(
        tmp_path,
        [sample(0, logprobs=[math.nan, -math.inf, -1.0], loss_mask=[1, 1, 1])],
        [sample(0, loss_mask=[1, 0, 1])],
    )
    assert shown["baseline"][0]["logprobs"] == [["NaN", "-Infinity", -1000]]
    assert shown["baseline"][0]["loss_mask"] == [None]
    assert shown["experiment"][0]["loss_mask"] == [[1, 0, 1]]


def test_steps_that_matter_come_first_and_the_limit_holds(tmp_path: Path) -> None:
    steps = [[sample(step)] for step in range(16)]
    for run in ("per-sample-seed0", "native-seed0"):
        write(tmp_path, run, *steps)
    failing = Finding("x", Level.REPLAY, Status.FAIL, "differs", Where("native-seed0", 11))
    report = report_of(tmp_path, "twin", {"per-sample-seed0": "per-sample", "native-seed0": "native"}, failing)
    whole = gather(report, tmp_path)
    assert [step for _, step in whole.packed] == [11, 0, 15, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 7]
    size = max(map(len, whole.packed.values()))
    held = gather(report, tmp_path, limit=4 * size)
    assert list(held.packed) == list(whole.packed)[: len(held.packed)]
    assert len(held.packed) >= 4
    assert sum(map(len, held.packed.values())) <= 4 * size
    assert held.pairs[0].steps == 16


def test_long_responses_are_cut_until_a_step_fits_and_the_whole_length_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "STEP_LIMIT", 3_000)
    ids = [number * 7_919 % 100_003 for number in range(3_000)]
    long = sample(0, output_ids=ids, logprobs=[-number / 997 for number in ids], text="word " * 3_000)
    shown = twin(tmp_path, [long], [replace(long)])
    (baseline,) = shown["baseline"]
    assert shown["cut"] == 256
    assert (baseline["tokens"], len(baseline["output_ids"][0]), len(baseline["logprobs"][0])) == ([3_000], 256, 256)
    assert (baseline["characters"], len(baseline["text"][0])) == ([15_000], 1_024)


def test_prompts_are_text_or_the_conversation_that_they_are(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "hi"}]
    prompts = ({"prompt": "one"}, {"prompt": "one"}, {"prompt": talk}, {})
    shown = twin(tmp_path, [sample(0, slot, extra=extra) for slot, extra in enumerate(prompts)], [sample(0)])
    assert shown["baseline"][0]["prompt"] == ["one", 0, '[{"role":"user","content":"hi"}]', None]


def test_an_extra_that_is_no_json_is_named_with_its_file(tmp_path: Path) -> None:
    write(tmp_path, "native-seed0", [sample(0)])
    store = run_store(tmp_path, "native-seed0")
    table = store.rollout(0).table
    damaged = table.set_column(table.schema.get_field_index("extra"), "extra", pa.array(["{"]))
    pq.write_table(damaged, store.rollout_path(0))
    with pytest.raises(InputError, match=r"step-000000\.parquet: column 'extra' .*'\{'"):
        gather(report_of(tmp_path, "twin", {"native-seed0": "native"}), tmp_path)


@pytest.mark.parametrize(
    ("tokenizer", "texts"),
    [
        ({"model": {"vocab": {"a": 0, "b": 2}}, "added_tokens": [{"id": 1, "content": "<eos>"}]}, ["a", "<eos>", "b"]),
        ({"model": {"vocab": {"a": 1}}}, [None, "a"]),
        ({"model": {"vocab": {"a": -1, "b": 10**9, "c": True, "d": "1"}}, "added_tokens": [None, {}]}, []),
        ({"model": [], "added_tokens": 3}, []),
    ],
)
def test_token_texts_are_those_of_the_tokenizer_beside_the_weights(
    tokenizer: dict[str, Any], texts: list[str | None], tmp_path: Path
) -> None:
    assert token_texts(tmp_path) == []
    weights = run_store(tmp_path, "native-seed0").checkpoint_path(3)
    weights.mkdir(parents=True)
    (weights / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert token_texts(tmp_path) == texts


def test_without_a_directory_there_is_nothing_to_show() -> None:
    assert (PageEvidence().pairs, dict(PageEvidence().packed), dict(PageEvidence().events)) == ((), {}, {})
