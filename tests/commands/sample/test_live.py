"""The command on the embedded engine: sound, and behind a proxy that lies about requests with n > 1."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import lies
import pytest
from small_experiment import Here
from toy_engine import toy_engine

from parity.commands.sample.running import Watcher, sample_arms
from parity.engines import EngineProcess
from parity.findings import Verdict
from parity.records.sampling import SamplingConfig
from parity.report.sampling import SamplingResult
from parity.trainer.tasks import get_task
from parity.trainer.warm_start import warm_start

WIDE = ("reward=0.25", "response_length=0.3", "negative_log_likelihood=0.4", "truncated=0.25", "aborted=0.25")
MARGINS = tuple(word for margin in WIDE for word in ("--margin", margin))


@pytest.fixture(scope="module")
def engine(policy_engine: EngineProcess, policy_cache: Path) -> str:
    """With the weights of the warm start, whatever runs it served before."""
    policy = warm_start(get_task("arithmetic"), policy_cache)

    async def restore() -> None:
        async with policy_engine.client() as client:
            await client.update_weights(policy, "default")

    asyncio.run(restore())
    return policy_engine.url


def failing(result: SamplingResult) -> set[str]:
    return {finding.check for finding in result.findings if finding.fails}


@pytest.mark.slow
def test_the_embedded_engine_is_at_parity_and_the_report_says_so(parity_here: Here, tmp_path: Path) -> None:
    size = ("--baseline", "batched", "--experiment", "native", "--group-size", "4", "--quiet", "--json")
    done = parity_here("sample", *size, *MARGINS, "--out", tmp_path / "out")
    assert done.returncode == 0, done.errors
    result = json.loads(done.printed)
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
        (result,) = sample_arms(config, tmp_path / "out", command="", watcher=watcher, cache=tmp_path)
    assert result.judgement.verdict is Verdict.DIFFERENT
    assert failing(result) & checks
    assert result.counts["groups"] <= 256


THREE = """
[arms.stock]

[arms.cooler]
temperature = 0.5

[arms.other-engine]
way = "native"
own_engine = true
"""


@pytest.mark.slow
def test_three_arms_are_each_compared_with_the_baseline(parity_here: Here, tmp_path: Path) -> None:
    (tmp_path / "arms.toml").write_text(THREE)
    out = tmp_path / "out"
    done = parity_here("sample", "--arms", tmp_path / "arms.toml", "--max-groups", 96, "--json", "--out", out)
    assert done.returncode == 1, done
    result = json.loads(done.printed)
    assert (result["verdict"], result["baseline"]) == ("DIFFERENT", "stock")
    cooler, other = result["comparisons"]
    assert (cooler["experiment"], cooler["verdict"]) == ("cooler", "DIFFERENT")
    failing = {(one["check"], one["where"]["field"]) for one in cooler["findings"] if one["status"] == "fail"}
    assert ("sampling_marginal", "negative_log_likelihood") in failing
    assert "arms_same_params" not in {check for check, _ in failing}  # it is what the arm sets
    assert (other["experiment"], other["verdict"]) == ("other-engine", "INCONCLUSIVE")
    found = {one["check"]: one["status"] for one in other["findings"]}
    assert (found["weights_equal"], found["sampling_mismatch"]) == ("pass", "pass")
    served = {
        arm: {
            json.loads(line)["engine_id"]
            for line in (out / "runs" / f"{arm}-seed0" / "groups.samples.jsonl").read_text().splitlines()
        }
        for arm in ("stock", "cooler", "other-engine")
    }
    assert served == {"stock": {"stock-0"}, "cooler": {"stock-0"}, "other-engine": {"other-engine-0"}}
    resumed = parity_here("sample", "--out", out, "--resume", "--quiet")
    assert (resumed.returncode, resumed.printed.strip()) == (1, "DIFFERENT")
