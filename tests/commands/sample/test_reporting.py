"""A sampling has the report that every comparison has: scope, table, page and comment."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path

from parity.commands.sample.reporting import report_of
from parity.commands.sample.store import SamplingStore
from parity.findings import judge
from parity.records.exchanges import Exchange
from parity.records.samples import Sample
from parity.records.sampling import BLOCK, SamplingConfig
from parity.report import comment, text
from parity.report.sampling import SamplingResult

Build = Callable[..., list[Sample]]
Answer = Callable[[list[Sample]], list[Exchange]]


def test_the_report_has_scope_values_and_the_samples_of_each_block(
    valid_samples: Build, valid_exchanges: Answer, tmp_path: Path
) -> None:
    groups = BLOCK + 3
    config = SamplingConfig("per-sample", "native", group_size=4)
    store = SamplingStore(tmp_path, config)
    store.create(
        {"engine_version": "0.5.6", "engine_dtype": "bfloat16", "model": "/models/small", "command": "parity sample"}
    )
    for seed, arm in enumerate(config.arms):
        samples = valid_samples(seed=seed, groups=groups, arm=arm)
        store.append(arm, samples, valid_exchanges(samples))
    counts = {"samples": 8 * groups, "groups": groups, "exchanges": 5 * groups}
    result = SamplingResult(config, (), judge([]), counts, "all are sampled")
    report, evidence = report_of(result, tmp_path)
    scope = report.scope
    assert (scope.engine, scope.engine_version, scope.dtype) == ("embedded", "0.5.6", "bfloat16")
    assert (scope.model, scope.task, scope.groups) == ("/models/small", "arithmetic", groups)
    assert (scope.runs, scope.steps) == (0, 0), "samples at fixed weights are of no run"
    assert "(embedded 0.5.6 (bfloat16), task arithmetic, " in report.headline
    assert not {"engine", "model", "trainer", "task"} & set(
        text.scope_sentence(report).partition("not recorded")[2].split()
    )
    assert report.rows[0].baseline == {"total": 4.0 * groups}
    assert sorted(evidence.packed) == [("sampled-0", 0), ("sampled-0", 1)]
    blocks = [json.loads(gzip.decompress(base64.b64decode(evidence.packed["sampled-0", block]))) for block in range(2)]
    assert [set(block["baseline"][0]["group_index"]) for block in blocks] == [
        set(range(BLOCK)),
        set(range(BLOCK, groups)),
    ]
    assert len(comment.render(report).splitlines()) <= 60
