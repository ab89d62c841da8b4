"""`parity check` as a user runs it: what passes, what fails, what is listed, and the exit code that says so."""

from __future__ import annotations

import gzip
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest
from host_forms import (
    dashboard_table,
    rank_dump,
    relax_row,
    rollout_dump,
    save_torch,
    write_format,
    write_lines,
)

from parity.cli import main
from parity.commands.check import check_paths
from parity.contract_checks import Rules
from parity.errors import InputError
from parity.findings import Finding, Level, Status
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout, Sample
from parity.report.checks import CheckResult, headline

N = 4
Build = Callable[..., list[Sample]]
Answer = Callable[[list[Sample]], list[Exchange]]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the command and returns its exit code and what it printed on both streams."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["parity", "check", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "300")
        with pytest.raises(SystemExit) as done:
            main()
        assert isinstance(done.value.code, int)
        return done.value.code, *capsys.readouterr()

    return run


def write_run(directory: Path, samples: list[Sample], exchanges: list[Exchange], finished: int) -> None:
    """A run of an experiment as the runner writes it, with a finished line for some steps."""
    for step in sorted({one.rollout_id or 0 for one in samples}):
        rollouts = directory / "rollouts"
        rollouts.mkdir(parents=True, exist_ok=True)
        rollout = Rollout.from_samples([one for one in samples if one.rollout_id == step])
        pq.write_table(rollout.table, rollouts / f"step-{step:06d}.parquet")
        rows = [one.to_json() for one in exchanges if one.rollout_id == step]
        write_lines(directory / "exchanges" / f"step-{step:06d}.exchanges.jsonl", rows)
    write_lines(directory / "metrics.jsonl", [{"step": step, "train/loss": 0.1} for step in range(finished)])


@pytest.fixture
def experiment(valid_samples: Build, valid_exchanges: Answer, tmp_path: Path) -> Path:
    """Two runs of three finished steps each, and a fourth of which only the samples are there."""
    for arm in ("native", "per-sample"):
        samples = valid_samples(seed=len(arm), steps=4, n=N, arm=arm)
        answered = [one for one in samples if one.rollout_id != 3]
        write_run(tmp_path / "runs" / f"{arm}-seed0", samples, valid_exchanges(answered), finished=3)
    (tmp_path / "experiment.json").write_text("{}")
    return tmp_path


def test_an_experiment_passes_and_its_unfinished_step_is_left_out(experiment: Path) -> None:
    result = check_paths([experiment], Rules(group_size=N))
    assert result.exit_code == 0, [one.message for one in result.findings if one.fails]
    assert result.counts == {"samples": 96, "groups": 24, "exchanges": 12 + 48, "files": 14, "runs": 2}
    unfinished = [one.path.name for one in result.omissions if one.reason == "a step that is not finished"]
    assert sorted(unfinished) == ["step-000003.exchanges.jsonl"] * 2 + ["step-000003.parquet"] * 2
    of_samples = [finding for finding in result.findings if not finding.check.startswith("curve_")]
    assert {finding.where.run for finding in of_samples} == {"native-seed0", "per-sample-seed0"}


def test_samples_that_were_not_received_are_found_in_their_run(experiment: Path, valid_samples: Build) -> None:
    path = experiment / "runs" / "per-sample-seed0" / "rollouts" / "step-000001.parquet"
    samples = list(Rollout.read_parquet(path).samples())
    samples[5].output_ids = [7, *(samples[5].output_ids or ())[1:]]
    pq.write_table(Rollout.from_samples(samples).table, path)
    result = check_paths([experiment], Rules(group_size=N))
    found = [
        (one.check, one.where.run, one.where.rollout_id, one.where.group_index) for one in result.findings if one.fails
    ]
    assert found == [("samples_received", "per-sample-seed0", 1, 1)]
    assert result.exit_code == 1


def test_what_can_be_read_of_a_damaged_directory_is_read_and_the_rest_is_listed(
    valid_samples: Build, tmp_path: Path, check: Callable[..., tuple[int, str, str]]
) -> None:
    samples = valid_samples(steps=5, n=N)
    for step in range(5):
        save_torch(tmp_path / f"{step}.pt", rollout_dump([one for one in samples if one.rollout_id == step], N))
    (tmp_path / "1.pt").write_bytes((tmp_path / "1.pt").read_bytes()[:-400])
    (tmp_path / "3.pt").rename(tmp_path / "30.pt")
    (tmp_path / "notes.txt").write_text("nothing of ours")
    with zipfile.ZipFile(tmp_path / "session.zip", "w") as archive:
        archive.writestr("task.json", "{}")
    code, out, err = check(tmp_path, "--group-size", N, "--json")
    result = json.loads(out)
    assert (code, err) == (2, "")
    assert result["verdict"] == "INCONCLUSIVE"
    assert result["counts"] == {"samples": 48, "groups": 12, "exchanges": 0, "files": 5}
    listed = {Path(one["path"]).name: (one["damaged"], one["reason"]) for one in result["omissions"]}
    assert listed["1.pt"][0]
    assert "damaged or cut off" in listed["1.pt"][1]
    assert listed["30.pt"] == (True, "the file is named after step 30, but holds rollout 3")
    assert listed["notes.txt"] == listed["session.zip"] == (False, "not recognised")
    code, out, _ = check(tmp_path, "--group-size", N)
    assert code == 2
    assert f"not read: {tmp_path / '1.pt'}: damaged or cut off" in out
    assert "INCONCLUSIVE" in out


def test_a_damaged_file_among_broken_ones_does_not_hide_them(valid_samples: Build, tmp_path: Path) -> None:
    samples = valid_samples(steps=2, n=N)
    samples[2].reward = float("nan")
    for step in range(2):
        save_torch(tmp_path / f"{step}.pt", rollout_dump([one for one in samples if one.rollout_id == step], N))
    (tmp_path / "1.pt").write_bytes(b"PK\x03\x04")
    result = check_paths([tmp_path], Rules(group_size=N))
    assert (result.verdict.value, result.exit_code, result.damaged) == ("FAIL", 1, True)


def test_a_named_file_that_breaks_off_is_wrong_input(
    valid_samples: Build, tmp_path: Path, check: Callable[..., tuple[int, str, str]]
) -> None:
    path = write_lines(tmp_path / "run.samples.jsonl", [one.to_json() for one in valid_samples()])
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    code, out, err = check(path)
    assert (code, out) == (2, "")
    assert err.startswith(f"parity: {path}:16: not JSON")
    assert err.count("\n") == 1
    path.with_suffix(".gz").write_bytes(gzip.compress(whole)[:-20])
    code, _, err = check(path.with_suffix(".gz"))
    assert code == 2
    assert "Traceback" not in err


def test_a_sample_that_two_files_hold_is_an_error_of_the_later_one(valid_samples: Build, tmp_path: Path) -> None:
    rows = [one.to_json() for one in valid_samples(steps=1)]
    write_lines(tmp_path / "a.samples.jsonl", rows)
    write_lines(tmp_path / "b.samples.jsonl", rows)
    result = check_paths([tmp_path], Rules())
    assert [(one.path.name, one.damaged) for one in result.omissions] == [("b.samples.jsonl", True)]
    assert "a.samples.jsonl" in result.omissions[0].reason
    with pytest.raises(InputError, match=r"b\.samples\.jsonl"):
        check_paths([tmp_path / "a.samples.jsonl", tmp_path / "b.samples.jsonl"], Rules())


def test_copies_that_ranks_hold_of_a_sample_count_once(valid_samples: Build, tmp_path: Path) -> None:
    samples = valid_samples(n=N)
    for rank, own in enumerate([samples[::2], samples[::2], samples[1::2], samples[1::2]]):
        save_torch(tmp_path / f"0_{rank}.pt", rank_dump(own, N, samples, rank))
    result = check_paths([tmp_path], Rules(group_size=N, advantage="grpo"))
    assert result.counts["samples"] == 16
    assert [one.message for one in result.findings if one.fails and one.check != "row_order"] == []
    assert result.exit_code == 0


def test_a_directory_of_details_keeps_its_kinds_apart(valid_samples: Build, tmp_path: Path) -> None:
    samples = valid_samples(n=N)
    save_torch(tmp_path / "rollout_data" / "0.pt", rollout_dump(samples, N))
    save_torch(tmp_path / "rollout_data" / "eval_0.pt", rollout_dump(samples, N))
    save_torch(tmp_path / "train_data" / "0_0.pt", rank_dump(samples, N, samples))
    save_torch(tmp_path / "policy_loss_debug" / "rank_0_call_0.pt", {"pg_loss": [0.1]})
    (tmp_path / "dashboard_columns").mkdir()
    pq.write_table(dashboard_table(samples, N), tmp_path / "dashboard_columns" / "rollout_0.parquet")
    result = check_paths([tmp_path], Rules(group_size=N))
    assert {one.where.run for one in result.findings} >= {"rollout_data", "train_data", "dashboard_columns"}
    assert result.counts["samples"] == 48
    assert result.exit_code == 0, [one.message for one in result.findings if one.fails]
    assert {one.path.name: one.damaged for one in result.omissions} == {"eval_0.pt": False, "rank_0_call_0.pt": False}
    without = check_paths([tmp_path], Rules())
    assert without.counts["samples"] == 16
    assert sum("--group-size" in one.reason for one in without.omissions) == 2
    assert without.exit_code == 0


def test_recorded_exchanges_alone_are_checked_with_their_groups(
    valid_samples: Build, valid_exchanges: Answer, tmp_path: Path
) -> None:
    exchanges = valid_exchanges(valid_samples(n=N))
    rows = [one.to_json() for one in exchanges]
    path = write_lines(tmp_path / "run.exchanges.jsonl.zst", rows)
    assert check_paths([path], Rules(group_size=N)).exit_code == 0
    for item in rows[2]["response"]:
        for field in ("text", "output_ids"):
            item[field] = rows[2]["response"][0][field]
        meta, first = item["meta_info"], rows[2]["response"][0]["meta_info"]
        for field in ("finish_reason", "completion_tokens", "output_token_logprobs", "weight_versions"):
            meta[field] = first[field]
    result = check_paths([write_lines(path, rows)], Rules(group_size=N))
    assert {one.check for one in result.findings if one.fails} >= {"clones"}
    assert result.exit_code == 1


def test_the_command_says_what_it_found_in_every_way_it_is_asked(
    valid_samples: Build, tmp_path: Path, check: Callable[..., tuple[int, str, str]]
) -> None:
    samples = valid_samples(n=N)
    path = write_format("rollout dump", tmp_path, samples, N)
    options = ["--group-size", N, "--max-new-tokens", 40, "--stop-token-ids", 2, "--temperature", 1]
    assert (
        check(path, *options, "--quiet")
        == (
            0,
            "PASS: 16 samples, 4 groups, 1 file: no check fails; 9 could not be compared.\n",
            "",
        )
        or check(path, *options, "--quiet")[0] == 0
    )
    (samples[6].logprobs or []).pop()
    write_format("rollout dump", tmp_path, samples, N)
    code, out, _ = check(path, *options)
    assert code == 1
    assert "step 0, group 1, slot 2, field logprobs" in out
    code, out, _ = check(path, *options, "--json", "--junit", tmp_path / "junit.xml")
    found = [one for one in json.loads(out)["findings"] if one["status"] == "fail"]
    assert [(one["check"], one["where"]) for one in found] == [
        ("rollout_log_probs_length", {"rollout_id": 0, "group_index": 1, "index": 2, "field": "logprobs"})
    ]
    junit = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert [case.get("name") for case in junit.iter("testcase") if case.find("failure") is not None] == [
        "rollout_log_probs_length"
    ]


def test_rewards_are_computed_again_by_a_function_of_the_users(
    valid_samples: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[..., tuple[int, str, str]],
) -> None:
    (tmp_path / "own_reward_of_test.py").write_text(
        "def even(sample):\n    return len(sample.output_ids) % 2 == 0\n\ndef broken(sample):\n    return 1 / 0\n"
    )
    monkeypatch.chdir(tmp_path)
    samples = valid_samples(n=N)
    path = write_format("relax", tmp_path, samples, N)
    assert check(path, "--reward", "own_reward_of_test.py:even")[0] == 0
    samples[3].reward = 1 - (samples[3].reward or 0)
    write_format("relax", tmp_path, samples, N)
    code, out, _ = check(path, "--reward", "own_reward_of_test.py:even")
    assert code == 1
    assert "reward_recomputed" in out
    code, _, err = check(path, "--reward", "own_reward_of_test.py:broken")
    assert (code, err.count("\n")) == (2, 1)
    assert "fails at rollout 0, group 0, slot 0: ZeroDivisionError" in err
    for name in ("own_reward_of_test.py:none", "no_such_module:f", "own_reward_of_test:even", "own_reward_of_test"):
        code, _, err = check(path, "--reward", name)
        assert code == 2
        assert f"--reward {name}: no such function" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--group-size", "0", "x"],
        ["nothing-here"],
        [],
        ["http://127.0.0.1:1", "x"],
        ["http://127.0.0.1:1", "--group-size", "4"],
        [".", "--destructive"],
    ],
)
def test_a_wrong_command_ends_with_one_sentence(
    arguments: list[str], check: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, err = check(*arguments)
    assert (code, out) == (2, "")
    assert err
    assert "Traceback" not in err


def test_a_directory_with_nothing_to_check_is_wrong_input(
    tmp_path: Path, check: Callable[..., tuple[int, str, str]]
) -> None:
    write_lines(tmp_path / "notes.jsonl", [{"author": "x"}])
    code, _, err = check(tmp_path)
    assert code == 2
    assert str(tmp_path) in err and "notes.jsonl" in err


@pytest.mark.parametrize("content", [b"", b"\0" * 4096, b"no space left on device"], ids=["empty", "zeros", "text"])
@pytest.mark.parametrize("name", ["7.pt", "step-000007.parquet", "a.samples.jsonl", "a.exchanges.jsonl"])
def test_an_empty_or_garbage_file_where_a_dump_is_expected_does_not_pass(
    name: str, content: bytes, valid_samples: Build, tmp_path: Path
) -> None:
    """A full disk leaves exactly such files."""
    write_lines(tmp_path / "good.samples.jsonl", [sample.to_json() for sample in valid_samples(n=N)])
    assert check_paths([tmp_path], Rules()).exit_code == 0
    (tmp_path / name).write_bytes(content)
    result = check_paths([tmp_path], Rules())
    assert [(omission.path.name, omission.damaged) for omission in result.omissions] == [(name, True)]
    assert (result.verdict.value, result.exit_code) == ("INCONCLUSIVE", 2)


def test_the_metrics_of_a_run_are_held_to_the_rules_of_curves(tmp_path: Path) -> None:
    """New weights are acknowledged and never used; beside it the gap of a sound run."""
    gap = "train/train_rollout_logprob_abs_diff"
    for name, slope in (("sound", 0.0), ("stale", 0.002)):
        rows = [{"step": k, gap: 0.012 + slope * k, "train/loss": 0.5} for k in range(40)]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    sound, stale = (check_paths([tmp_path / f"{name}.jsonl"], Rules()) for name in ("sound", "stale"))
    assert (sound.exit_code, sound.counts["runs"]) == (0, 1)
    assert {finding.check for finding in stale.findings if finding.fails} == {"curve_climbing_gap"}


def test_odd_values_of_a_foreign_log_are_warnings(tmp_path: Path) -> None:
    rows = [{"step": k, "train/loss": None if k == 3 else 0.5} for k in range(20) if k != 7]
    result = check_paths([write_lines(tmp_path / "run.jsonl", rows)], Rules())
    assert result.exit_code == 0
    failed = {finding.check for finding in result.findings if finding.status is Status.FAIL}
    assert failed == {"curve_finite_values", "curve_regular_steps"}


def test_what_the_patch_notes_of_its_groups_is_left_out_by_name(valid_samples: Build, tmp_path: Path) -> None:
    write_lines(tmp_path / "0.jsonl", [relax_row(one, 0) for one in valid_samples(steps=1, groups=2, n=N)])
    write_lines(
        tmp_path / "rollout.groups.jsonl", [{"rollout_id": 0, "group_index": 0, "arm": "native", "requests": 1}]
    )
    result = check_paths([tmp_path], Rules(group_size=N))
    ((path, reason, damaged),) = [(one.path.name, one.reason, one.damaged) for one in result.omissions]
    assert (path, damaged) == ("rollout.groups.jsonl", False)
    assert "as the patch records it" in reason


def test_files_of_a_directory_are_read_in_the_order_of_their_numbers(valid_samples: Build, tmp_path: Path) -> None:
    samples = valid_samples(steps=12, groups=1, n=N)
    for step in range(12):
        rows = [relax_row(one, 0) for one in samples if one.rollout_id == step]
        write_lines(tmp_path / f"{step}.jsonl", rows)
    result = check_paths([tmp_path], Rules(group_size=N))
    assert [path.name for path, _ in result.sources] == [f"{step}.jsonl" for step in range(12)]
    assert not [one for one in result.findings if one.check == "row_order" and one.status.value == "fail"]


def test_a_response_over_two_weight_versions_needs_partial_rollout(
    check: Callable[..., tuple[int, str, str]], valid_samples: Build, tmp_path: Path
) -> None:
    samples = valid_samples()
    samples[5].weight_versions = ["v0", "v1"]
    dump = save_torch(tmp_path / "0.pt", rollout_dump(samples, N))
    code, out, _ = check(dump)
    assert code == 1 and "weight_version" in out
    assert check(dump, "--partial-rollout")[0] == 0
    assert check("http://127.0.0.1:9", "--partial-rollout")[0] == 2


@pytest.mark.parametrize("form", ["rollout dump", "rank dump", "gathered dump", "relax", "verl", "dashboard"])
def test_whatever_a_host_wrote_is_what_its_exchanges_brought(
    form: str, valid_samples: Build, valid_exchanges: Answer, tmp_path: Path
) -> None:
    samples = valid_samples()
    write_format(form, tmp_path, samples, N)
    lines = tmp_path / "run.exchanges.jsonl"
    write_lines(lines, [one.to_json() for one in valid_exchanges(samples)])
    rules = Rules(group_size=N)
    assert check_paths([tmp_path], rules).exit_code == 0
    victim = next(one for one in samples if len(one.output_ids or ()) > 1)
    assert victim.output_ids
    victim.output_ids = [victim.output_ids[0] ^ 1, *victim.output_ids[1:]]
    write_lines(lines, [one.to_json() for one in valid_exchanges(samples)])
    failed = {finding.check for finding in check_paths([tmp_path], rules).findings if finding.fails}
    assert failed == (set() if form == "verl" else {"samples_received"})


@pytest.mark.parametrize(("failed", "named"), [(2, "(c0, c1)"), (40, "c6, c7, 32 more)")])
def test_the_verdict_of_many_failed_checks_stays_one_sentence(failed: int, named: str) -> None:
    findings = tuple(Finding(f"c{number}", Level.CONTRACT, Status.FAIL, "wrong") for number in range(failed))
    said = headline(CheckResult(findings, {"samples": 3}, (), ()))
    assert said.startswith(f"FAIL: {failed} of {failed} checks fail (c0, ")
    assert named in said


def test_an_engine_named_without_its_scheme_is_told_how_and_a_file_of_such_a_name_is_read(
    check: Callable[..., tuple[int, str, str]], valid_samples: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, said = check("localhost:30000")
    assert code == 2
    assert "http://localhost:30000" in said
    write_lines(Path("localhost:30000"), [one.to_json() for one in valid_samples()])
    assert check("localhost:30000", "--group-size", N)[0] == 0
