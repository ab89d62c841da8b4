"""The same samples in every format: what it keeps is read back unchanged, sound files pass, planted faults fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from host_forms import COLUMNS, write_format

from parity.commands.check import check_paths
from parity.contract_checks import Rules
from parity.errors import UsageError
from parity.findings import Verdict
from parity.records.samples import Rollout, Sample
from parity.sources.registry import open_source

N = 4
RULES = Rules(group_size=N, max_new_tokens=40, stop_token_ids=frozenset({2}), temperature=1.0, advantage="grpo")
CHECK_OF_FIELD = {
    "logprobs": "rollout_log_probs_length",
    "loss_mask": "loss_mask_length",
    "output_ids": "response_length",
}

Build = Callable[..., list[Sample]]
every_format = pytest.mark.parametrize("name", sorted(COLUMNS))


def read(path: Path, group_size: int | None = N) -> Rollout:
    source = open_source(path, group_size)
    assert source.samples is not None
    return Rollout.concatenate(list(source.samples()))


@every_format
def test_what_a_format_keeps_is_read_back_unchanged(name: str, valid_samples: Build, tmp_path: Path) -> None:
    samples = valid_samples(seed=1, groups=5, n=N)
    rollout, wanted = read(write_format(name, tmp_path, samples, N)), Rollout.from_samples(samples)
    for column in {"group_index", "index"} | (COLUMNS[name] - {"extra"}):
        assert rollout.table.column(column).to_pylist() == wanted.table.column(column).to_pylist(), column
    assert set(rollout.integers("rollout_id")) == {0}


@every_format
def test_sound_samples_pass(name: str, valid_samples: Build, tmp_path: Path) -> None:
    result = check_paths([write_format(name, tmp_path, valid_samples(groups=6, n=N), N)], RULES)
    assert result.verdict is Verdict.PASS, [one for one in result.findings if one.fails]
    assert result.counts == {"samples": 24, "groups": 6, "exchanges": 0, "files": 1}


@every_format
def test_a_lost_sample_is_found(name: str, valid_samples: Build, tmp_path: Path) -> None:
    samples = valid_samples(groups=6, n=N)
    del samples[9]
    findings = check_paths([write_format(name, tmp_path, samples, N)], RULES).findings
    failed = [one for one in findings if one.fails and one.check == "output_count"]
    assert [(one.where.group_index, one.observed) for one in failed] == [(2, 3)]


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name in sorted(COLUMNS) for field in CHECK_OF_FIELD if field in COLUMNS[name]]
)
def test_a_lost_token_is_found(name: str, field: str, valid_samples: Build, tmp_path: Path) -> None:
    samples = valid_samples(groups=6, n=N)
    getattr(samples[9], field).pop()
    findings = check_paths([write_format(name, tmp_path, samples, N)], RULES).findings
    failed = {one.check: (one.where.group_index, one.where.index) for one in findings if one.fails}
    if field == "output_ids" and {"prompt_ids", "output_ids"} <= COLUMNS[name] and not name.startswith("samples"):
        # one list holds prompt and response, so that a lost token moves the border between them
        assert failed["group_prompt"][0] == 2
    else:
        assert failed[CHECK_OF_FIELD[field]] == (2, 1)


@pytest.mark.parametrize("name", sorted(name for name, columns in COLUMNS.items() if "output_ids" in columns))
def test_clones_are_found(name: str, valid_samples: Build, tmp_path: Path) -> None:
    samples = valid_samples(groups=6, n=N)
    for one in samples[8:12]:
        one.output_ids, one.logprobs, one.loss_mask = [5] * 40, [-5.3] * 40, [1] * 40
        one.response_length, one.finish_reason, one.status = 40, "length", "truncated"
    findings = check_paths([write_format(name, tmp_path, samples, N)], RULES).findings
    assert {one.where.group_index for one in findings if one.fails and one.check == "clones"} == {2}


@every_format
def test_a_file_is_recognised_whatever_its_name(name: str, valid_samples: Build, tmp_path: Path) -> None:
    path = write_format(name, tmp_path, valid_samples(groups=2, n=N), N)
    assert len(read(path.rename(tmp_path / "anything.bin"))) == 8


@pytest.mark.parametrize("name", ["rank dump", "gathered dump", "dashboard"])
def test_groups_that_are_not_named_need_the_group_size(name: str, valid_samples: Build, tmp_path: Path) -> None:
    path = write_format(name, tmp_path, valid_samples(groups=2, n=N), N)
    with pytest.raises(UsageError, match="--group-size"):
        read(path, None)
