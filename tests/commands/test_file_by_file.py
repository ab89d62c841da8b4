"""Files read side by side give what reading them one after the other gives, whatever is wrong with them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from host_forms import write_lines
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import parity.commands.check as check
from parity.commands.check import check_paths, reward_function
from parity.commands.file_by_file import FileRead, read_file
from parity.contract_checks import Rules
from parity.errors import InputError, UsageError
from parity.records.samples import Sample

N = 4
FAULTS = ("", "", "", "lost", "logprobs", "copied", "cut", "damaged", "empty", "step", "clone")


def written(folder: Path, samples: Sequence[Sample], faults: Sequence[str]) -> Path:
    """A file a step of the samples, each with a fault or none."""
    earlier: dict[str, Any] = {}
    for step, fault in enumerate(faults):
        rows = [replace(sample, rollout_id=step).to_json() for sample in samples[step * 2 * N : (step + 1) * 2 * N]]
        if fault == "lost":
            del rows[1]
        elif fault == "logprobs":
            rows[2]["logprobs"] = rows[2]["logprobs"][1:]
        elif fault == "copied" and earlier:
            rows[3] = earlier
        elif fault == "step":
            rows = [{name: value for name, value in row.items() if name != "rollout_id"} for row in rows]
        elif fault == "clone":
            rows[1] |= {name: rows[0][name] for name in ("output_ids", "logprobs", "text") if name in rows[0]}
        earlier = earlier or rows[0]
        path = write_lines(folder / f"{step}.samples.jsonl", rows)
        content = path.read_bytes()
        if fault == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif fault == "damaged":
            path.write_bytes(content.replace(b'"index"', b'"slot"', 3))
        elif fault == "empty":
            path.write_bytes(b"")
    return folder


def outcome(paths: Sequence[Path], rules: Rules, **options: Any) -> Any:
    """All that a check says, or the error that it ends with."""
    try:
        return check_paths(paths, rules, **options).to_json()
    except (InputError, UsageError) as error:
        return type(error), str(error)


def in_this_process(paths: Sequence[Path], rules: Rules) -> Iterator[FileRead]:
    """As a process would, with what goes to it and comes back sent through pickle."""
    for path in paths:
        read: FileRead = pickle.loads(pickle.dumps(read_file(*pickle.loads(pickle.dumps((path, rules))))))
        yield read


@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=st.lists(st.sampled_from(FAULTS), min_size=2, max_size=6), seed=st.integers(0, 99))
def test_side_by_side_is_one_after_the_other(tmp_path_factory, valid_samples, faults, seed):
    folder = tmp_path_factory.mktemp("dumps")
    written(folder, valid_samples(seed=seed, groups=2 * len(faults), n=N), faults)
    rules = Rules(group_size=N, advantage="grpo")
    serial = outcome([folder], rules, processes=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "reader", lambda *_: in_this_process)
        assert outcome([folder], rules) == serial


def test_faults_of_one_file_do_not_pass_for_faults_of_another(tmp_path, valid_samples):
    written(tmp_path, valid_samples(groups=6, n=N), ["", "logprobs", ""])
    failing = [one for one in check_paths([tmp_path], Rules(), processes=2).findings if one.fails]
    assert {one.where.rollout_id for one in failing} == {1}


def test_ranks_of_a_train_dump_that_hold_the_same_samples_count_once(tmp_path, valid_samples):
    """Copies of another rank are left out, which only the file after the first can show."""
    written(tmp_path, valid_samples(groups=4, n=N), ["", ""])
    lines = (tmp_path / "0.samples.jsonl").read_text().splitlines()
    rows = [json.loads(line) | {"extra": {"rank": 1}} for line in lines]
    write_lines(tmp_path / "2.samples.jsonl", rows)
    serial, parallel = (outcome([tmp_path], Rules(), processes=number) for number in (1, 2))
    assert parallel == serial
    assert parallel["counts"]["samples"] == 4 * N


@pytest.mark.slow
def test_processes_of_their_own_and_a_reward_of_the_users(tmp_path, valid_samples):
    written(tmp_path, valid_samples(groups=8, n=N), ["", "lost", "cut", "logprobs"])
    module = tmp_path / "task.py"
    module.write_text("def reward(sample):\n    return float(len(sample.output_ids) % 2)\n")
    rules = Rules(reward=reward_function(f"{module}:reward"))
    files = sorted(tmp_path.glob("*.jsonl"))
    assert outcome(files, rules, processes=2) == outcome(files, rules, processes=1)
    assert outcome([tmp_path], rules, processes=2) == outcome([tmp_path], rules, processes=1)


def test_a_reward_that_fails_in_a_process_names_its_sample(tmp_path, valid_samples):
    written(tmp_path, valid_samples(groups=4, n=N), ["", ""])
    module = tmp_path / "task.py"
    module.write_text("def reward(sample):\n    raise KeyError('answer')\n")
    with pytest.raises(UsageError, match=r"rollout 0, group 0, slot 0.*answer"):
        check_paths([tmp_path], Rules(reward=reward_function(f"{module}:reward")), processes=2)
