"""The command on the embedded engine: sound, and behind a proxy that lies about requests with n > 1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lies
import pytest
from small_experiment import Parity
from toy_engine import toy_engine

from parity.commands.sample.running import Watcher, sample_arms
from parity.engines import open_engine
from parity.findings import Verdict
from parity.records.sampling import SamplingConfig
from parity.report.sampling import SamplingResult
from parity.trainer.tasks import get_task
from parity.trainer.warm_start import warm_start

WIDE = ("reward=0.25", "response_length=0.3", "negative_log_likelihood=0.4", "truncated=0.25", "aborted=0.25")
MARGINS = tuple(word for margin in WIDE for word in ("--margin", margin))


@pytest.fixture(scope="module")
def engine(policy_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    policy = warm_start(get_task("arithmetic"), policy_cache)
    with open_engine("embedded", policy, tmp_path_factory.mktemp("engine")) as running:
        yield running.url


def failing(result: SamplingResult) -> set[str]:
    return {finding.check for finding in result.findings if finding.fails}


@pytest.mark.slow
def test_the_embedded_engine_is_at_parity_and_the_report_says_so(parity: Parity, tmp_path: Path) -> None:
    size = ("--baseline", "batched", "--experiment", "native", "--group-size", "4", "--quiet", "--json")
    process = parity("sample", *size, *MARGINS, "--out", tmp_path / "out")
    printed, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    result = json.loads(printed)
    assert result["verdict"] == "PARITY"
    scored = [one for one in result["findings"] if one["check"] == "sampling_logprobs"]
    assert [one["status"] for one in scored] == ["pass"] * 3
    assert json.loads((tmp_path / "out" / "report" / "report.json").read_bytes()) == result
    assert "PARITY" in (tmp_path / "out" / "report" / "report.md").read_text()
    assert (tmp_path / "out" / "report" / "junit.xml").exists()


@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        ({"lie": lies.one_cloned_pair}, {"clones", "sampling_independence"}),
        ({"lie": lies.log_probs_of_the_next_token}, {"sampling_logprobs"}),
        ({"ask": lies.other_temperature}, {"sampling_logprobs", "sampling_marginal"}),
    ],
    ids=["clones", "log-probs off by one", "another temperature"],
)
def test_a_proxy_that_lies_is_found_out(fault: dict[str, Any], checks: set[str], engine: str, tmp_path: Path) -> None:
    with toy_engine(upstream=engine, **fault) as proxy:
        config = SamplingConfig("batched", "native", engine=proxy.url, group_size=4, max_groups=512)
        watcher = Watcher(lambda _: None, lambda _: None)
        result = sample_arms(config, tmp_path / "out", command="", watcher=watcher, cache=tmp_path)
    assert result.judgement.verdict is Verdict.DIFFERENT
    assert failing(result) & checks
    assert result.counts["groups"] <= 256
