"""Both arms against an engine of a known law: sound, lying, cut off, and asked again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lies
import pytest
from toy_engine import ToyEngine, toy_engine

from parity.commands.check import check_sources
from parity.commands.sample.reporting import report_of
from parity.commands.sample.running import Watcher, sample_arms
from parity.commands.sample.store import SamplingStore
from parity.commands.validation import check_sampling
from parity.errors import EngineError, InputError, UsageError
from parity.findings import Finding, Level, Status, Verdict
from parity.records.samples import Rollout
from parity.records.sampling import SamplingConfig
from parity.report.sampling import SamplingResult
from parity.report.write import write_report

MARGINS = {"reward": 0.15, "response_length": 0.2, "negative_log_likelihood": 0.2, "truncated": 0.1}


def config_of(engine: ToyEngine, prompts: Path, **changes: Any) -> SamplingConfig:
    asked: dict[str, Any] = {
        "baseline": "batched",
        "experiment": "native",
        "engine": engine.url,
        "prompts": str(prompts),
        "max_new_tokens": 12,
        "group_size": 4,
        "reward": "toy_engine:reward",
        "margins": MARGINS,
        "max_groups": 512,
    }
    return SamplingConfig(**{**asked, **changes})


def sampled(config: SamplingConfig, out: Path, resume: bool = False, blocks: list[int] | None = None) -> SamplingResult:
    seen = blocks if blocks is not None else []
    watcher = Watcher(lambda step: seen.append(step.done), lambda _: None)
    (result,) = sample_arms(config, out, command="parity sample", watcher=watcher, cache=out, resume=resume)
    return result


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "train.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"prompt {number}", "label": number}) + "\n" for number in range(40)))
    return path


def failing(result: SamplingResult) -> set[tuple[str, str | None]]:
    return {(finding.check, finding.where.field) for finding in result.findings if finding.fails}


def found(result: SamplingResult, check: str) -> list[Finding]:
    return [finding for finding in result.findings if finding.check == check]


def test_a_sound_engine_is_at_parity_and_only_asked_to_generate(prompts: Path, tmp_path: Path) -> None:
    with toy_engine() as engine:
        result = sampled(config_of(engine, prompts), tmp_path)
    assert result.judgement.verdict is Verdict.PARITY, [one.message for one in result.findings if one.fails]
    assert result.counts["groups"] < 512
    assert result.counts == {
        "groups": result.counts["groups"],
        "samples": 8 * result.counts["groups"],
        "exchanges": 2 * result.counts["groups"],
    }
    assert {status.status for status in found(result, "sampling_logprobs")} == {Status.PASS}
    assert {one.status for one in found(result, "sampling_shape")} == {Status.PASS}
    assert not engine.paths - {"/server_info", "/get_server_info"}, "a deployment is asked, and nothing else"
    report, evidence = report_of(result, tmp_path)
    assert (report.scope.engine_version, report.scope.dtype) == ("toy", "not stated")
    assert report.scope.margins["reward"] == MARGINS["reward"]
    assert report.provenance.config["margins"] == MARGINS
    files = write_report(report, tmp_path / "report", evidence)
    assert {"report.json", "junit.xml", "report.html", "comment.md", "report.md"} <= {path.name for path in files}
    # What is on disk is sound by the contract, and read by those who read such files.
    assert check_sources([str(tmp_path)], reward="toy_engine:reward").verdict.value == "PASS"


def test_which_arm_goes_first_is_drawn_for_each_prompt_and_logged(prompts: Path, tmp_path: Path) -> None:
    with toy_engine() as engine:
        config = config_of(engine, prompts, fixed=32)
        sampled(config, tmp_path)
    store = SamplingStore(tmp_path, config)
    samples = list(store.rollout("native").samples())
    drawn = [sample.extra["assignment"] for sample in samples[:: config.group_size]]
    assert {one["arm"] for one in drawn} == {"native"}
    first = ["native" if one["trained"] else "batched" for one in drawn]
    assert 6 <= first.count("native") <= 26
    sent = {(row.arm, row.group_index): row.sent_at for arm in config.arms for row in store.exchanges(arm)}
    for group, arm in enumerate(first):
        other = "batched" if arm == "native" else "native"
        assert sent[arm, group] < sent[other, group]
    asked = [sample.extra["prompt"] for sample in samples[:: config.group_size]]
    assert sorted({sample.extra["label"] for sample in samples}) == sorted(int(text.split()[1]) for text in asked)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ({"lie": lies.one_cloned_pair}, "sampling_independence"),
        ({"lie": lies.log_probs_of_the_next_token}, "sampling_logprobs"),
        ({"ask": lies.sooner_end}, "sampling_marginal"),
    ],
)
def test_a_lying_engine_is_found_out_under_the_right_name(
    fault: dict[str, Any], check: str, prompts: Path, tmp_path: Path
) -> None:
    with toy_engine(**fault) as engine:
        result = sampled(config_of(engine, prompts, max_groups=128), tmp_path)
    assert result.judgement.verdict is Verdict.DIFFERENT
    assert check in {name for name, _ in failing(result)}


def test_clones_are_no_shift(prompts: Path, tmp_path: Path) -> None:
    with toy_engine(lie=lies.cloned_half) as engine:
        result = sampled(config_of(engine, prompts, fixed=64), tmp_path)
    assert ("sampling_independence", "output_ids") in failing(result)
    assert not {name for name in failing(result) if name[0] in ("sampling_marginal", "sampling_slot")}


def test_a_set_size_is_looked_at_once_by_the_same_evidence(prompts: Path, tmp_path: Path) -> None:
    with toy_engine() as engine:
        result = sampled(config_of(engine, prompts, fixed=40), tmp_path)
        assert result.counts["groups"] == 40
        assert {finding.evidence["units"] for finding in found(result, "sampling_marginal")} == {40}
        assert result.judgement.verdict is Verdict.INCONCLUSIVE, "independence needs 256 groups to pass"


def test_one_bad_answer_is_a_difference_and_stops_at_once(prompts: Path, tmp_path: Path) -> None:
    def lose_one(payload: dict[str, Any], outputs: list[dict[str, Any]]) -> None:
        if lies.is_native(payload):
            outputs.pop()

    with toy_engine(lie=lose_one) as engine:
        result = sampled(config_of(engine, prompts), tmp_path)
    assert result.judgement.verdict is Verdict.DIFFERENT
    assert "response_refused" in {check for check, _ in failing(result)}
    assert result.stopped in {finding.message for finding in result.findings if finding.check == "response_refused"}
    assert result.counts["samples"] == 0
    assert result.counts["exchanges"] > 0


def test_a_finish_reason_that_lies_is_a_broken_contract(prompts: Path, tmp_path: Path) -> None:
    def claim_a_stop(payload: dict[str, Any], outputs: list[dict[str, Any]]) -> None:
        for output in outputs if lies.is_native(payload) else ():
            output["meta_info"]["finish_reason"] = {"type": "length", "length": 12}

    with toy_engine(lie=claim_a_stop) as engine:
        result = sampled(config_of(engine, prompts), tmp_path)
    assert result.judgement.verdict is Verdict.DIFFERENT
    assert result.counts["groups"] == 32
    failed = [finding for finding in result.findings if finding.fails and finding.level is Level.CONTRACT]
    assert {finding.where.run for finding in failed} == {"native"}


class CutOff(Exception):
    """Stands for a death."""


def test_a_sampling_that_was_cut_off_goes_on_as_if_nothing_had_happened(prompts: Path, tmp_path: Path) -> None:
    def die(step: Any) -> None:
        if step.done == 64:
            raise CutOff

    out = tmp_path / "out"
    with toy_engine() as engine:
        config = config_of(engine, prompts, max_groups=96, margins={"reward": 0.001})
        with pytest.raises(CutOff):
            sample_arms(config, out, command="", watcher=Watcher(die, lambda _: None), cache=out)
        store = SamplingStore(out, config)
        lines = (out / "runs" / "native-seed0" / "groups.samples.jsonl").read_bytes().splitlines(keepends=True)
        before = store_rows(store, 64)
        # Of the third block one arm has a group and a part of a line, which nobody has looked at.
        more = b"".join(lines[:4]).replace(b'"group_index": 0', b'"group_index": 64')
        with (out / "runs" / "native-seed0" / "groups.samples.jsonl").open("ab") as file:
            file.write(more + lines[4][:40])
        asked, blocks = engine.asked, []
        result = sampled(config, out, resume=True, blocks=blocks)
        assert blocks == [96]
        promises = 23  # requests that ask what the engine promises
        assert engine.asked - asked == promises + 2 * 32 + 2 * 64 + 2 * 64, (
            "32 groups in two arms, and 64 of each to score again"
        )
    assert result.counts["groups"] == 96
    assert store_rows(store, 64) == before
    rollout = store.rollout("native")
    assert rollout.integers("group_index").tolist() == [group for group in range(96) for _ in range(4)]


def store_rows(store: SamplingStore, groups: int) -> list[Any]:
    rows = [row for arm in store.config.arms for row in store.rollout(arm).table.to_pylist()]
    return [row for row in rows if row["group_index"] < groups]


def test_evidence_goes_on_where_it_was_and_more_groups_may_follow(prompts: Path, tmp_path: Path) -> None:
    with toy_engine() as engine:
        config = config_of(engine, prompts, max_groups=64, margins={"reward": 0.001})
        first = sampled(config, tmp_path)
        again = sampled(config, tmp_path, resume=True)
        assert [one.to_json() for one in again.findings] == [one.to_json() for one in first.findings]
        assert again.judgement.verdict is Verdict.INCONCLUSIVE
        with pytest.raises(UsageError, match="--resume"):
            sampled(config, tmp_path)


def test_a_reward_out_of_its_range_is_refused_with_its_place(prompts: Path, tmp_path: Path) -> None:
    with toy_engine() as engine, pytest.raises(InputError, match=r"group \d+, slot \d+: reward 1 .* 0.5"):
        sampled(config_of(engine, prompts, reward_range=(0.0, 0.5)), tmp_path)


def test_without_a_reward_it_is_not_compared(prompts: Path, tmp_path: Path) -> None:
    with toy_engine() as engine:
        result = sampled(config_of(engine, prompts, reward=None, max_groups=32), tmp_path)
    (reward,) = [one for one in found(result, "sampling_marginal") if one.where.field == "reward"]
    assert reward.status is Status.NOT_COMPARED


def test_an_engine_that_refuses_a_group_is_an_error_that_names_it(prompts: Path, tmp_path: Path) -> None:
    def break_off(payload: dict[str, Any]) -> None:
        if "text" in payload:
            del payload["sampling_params"]

    with toy_engine(ask=break_off) as engine, pytest.raises(EngineError, match="group 0"):
        sampled(config_of(engine, prompts, fixed=2), tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"experiment": "batched"}, "two different"),
        ({"temperature": 0.0}, "greedy"),
        ({"max_new_tokens": None}, "--max-new-tokens"),
        ({"fixed": 1}, "--fixed"),
        ({"margins": {"beauty": 1.0}}, "beauty"),
        ({"margins": {"reward": 0.0}}, "above 0"),
        ({"reward_range": (1.0, 1.0)}, "range"),
        ({"engine": "http://127.0.0.1:1", "model_path": "here"}, "--model-path"),
        ({"engine": "abacus"}, "abacus"),
        ({"task": "digits"}, "digits shows images"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_runs(change: dict[str, Any], said: str) -> None:
    asked: dict[str, Any] = {"baseline": "batched", "experiment": "native", "prompts": "p", "max_new_tokens": 4}
    with pytest.raises(UsageError, match=said):
        check_sampling(SamplingConfig(**{**asked, **change}))


def test_an_empty_rollout_says_that_nothing_was_sampled() -> None:
    from parity.commands.sample.judging import fixed_findings

    config = SamplingConfig("batched", "native")
    empty = Rollout.from_samples([])
    assert [one.status for one in fixed_findings(config, (empty, empty), 64)] == [Status.INCONCLUSIVE]
