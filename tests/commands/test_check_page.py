"""What a check requires, what it tells GitHub, and the page of any dump."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from host_forms import write_lines

from parity.cli import cli
from parity.errors import UsageError
from parity.records.samples import Sample

Build = Callable[..., list[Sample]]


def check(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, ["check", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def statuses(*arguments: object) -> dict[str, str]:
    findings = json.loads(check(*arguments, "--json").stdout)["findings"]
    return {finding["check"]: finding["status"] for finding in findings}


@pytest.fixture
def dump(valid_samples: Build, tmp_path: Path) -> Path:
    write_lines(tmp_path / "dump" / "run.samples.jsonl", [one.to_json() for one in valid_samples(steps=3)])
    return tmp_path / "dump"


def test_a_required_check_that_could_not_be_compared_fails_and_one_that_passes_does_not(dump: Path) -> None:
    free = statuses(dump)
    assert (free["response_length"], free["reward_recomputed"]) == ("pass", "not_compared")
    assert check(dump).exit_code == 0
    assert check(dump, "--require", "response_length", "slot_index").exit_code == 0
    failed = check(dump, "--require", "response_length", "reward_recomputed")
    assert failed.exit_code == 1
    assert statuses(dump, "--require", "reward_recomputed")["reward_recomputed"] == "fail"
    assert statuses(dump, "--require", "reward_recomputed")["response_length"] == "pass"


def test_all_requires_every_check_that_is_made(dump: Path) -> None:
    free, required = statuses(dump), statuses(dump, "--require", "all")
    assert {name for name, status in free.items() if status == "not_compared"} == {
        name for name, status in required.items() if status == "fail"
    }


def test_a_check_that_nothing_can_be_held_to_fails_if_it_is_required(dump: Path) -> None:
    assert "exchange_output_count" not in statuses(dump)
    assert statuses(dump, "--require", "exchange_output_count")["exchange_output_count"] == "fail"


def test_an_unknown_check_is_refused_with_the_nearest(dump: Path) -> None:
    with pytest.raises(UsageError, match=r"did you mean output_count\?"):
        check(dump, "--require", "output_cont")


def test_a_pass_says_on_how_many_checks_it_rests_and_what_was_not_checked(dump: Path) -> None:
    free = statuses(dump)
    compared = sum(status != "not_compared" for status in free.values())
    last = " ".join(check(dump).stdout.split())
    assert f"PASS on {compared} of {len(free)} checks" in last
    assert "not checked: " in last


def steps_of(page: Path) -> dict[str, Any]:
    """The samples that a page holds, by pair and step."""
    packed = re.findall(r'id="samples-([^"]+)">([^<]+)<', page.read_text())
    return {name: json.loads(gzip.decompress(base64.b64decode(content))) for name, content in packed}


def test_a_page_has_every_step_and_each_sample_with_its_file_and_row(dump: Path, valid_samples: Build) -> None:
    page = dump.parent / "page.html"
    check(dump, "--html", page)
    steps = steps_of(page)
    assert sorted(steps) == ["dump-0-0", "dump-0-1", "dump-0-2"]
    samples = valid_samples(steps=3)
    for step, shown in enumerate(steps[f"dump-0-{step}"] for step in range(3)):
        (part,) = shown["baseline"]
        assert shown["experiment"] == []
        assert part["output_ids"] == [one.output_ids for one in samples if one.rollout_id == step]
        assert [samples[row].output_ids for row in part["row"]] == part["output_ids"]


def test_two_dumps_stand_side_by_side_with_the_first_token_that_differs(
    dump: Path, valid_samples: Build, tmp_path: Path
) -> None:
    changed = valid_samples(steps=3)
    changed[5].output_ids = [7, *(changed[5].output_ids or ())[1:]]
    write_lines(tmp_path / "other" / "run.samples.jsonl", [one.to_json() for one in changed])
    page = tmp_path / "two.html"
    check(dump, tmp_path / "other", "--html", page)
    steps = steps_of(page)
    assert {name: step["differs"] for name, step in steps.items()} == {
        "dump-0-0": {f"{changed[5].group_index}/{changed[5].index}": 0},
        "dump-0-1": {},
        "dump-0-2": {},
    }


def test_in_github_actions_a_check_has_annotations_and_a_summary(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    failed = check(dump, "--require", "reward_recomputed")
    kinds = [line.split(" ")[0] for line in failed.stderr.splitlines() if line.startswith("::")]
    assert kinds == ["::error", "::error"]
    summary = (tmp_path / "summary.md").read_text()
    assert "FAIL" in summary
    assert "reward" in summary
    assert len(summary.splitlines()) <= 60
