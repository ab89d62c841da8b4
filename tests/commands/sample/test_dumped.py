"""`parity sample --from A --from B`: recordings of frozen weights, matched by prompt and compared."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from small_experiment import command

from parity.commands.sample.dumped import names_of_arms
from parity.records.samples import Sample

Build = Callable[..., list[Sample]]


def write(path: Path, samples: list[Sample]) -> Path:
    path.mkdir(parents=True)
    lines = "".join(json.dumps(sample.to_json()) + "\n" for sample in samples)
    (path / "rollout.samples.jsonl").write_text(lines)
    return path


def of_prompts(build: Build, seed: int, groups: int = 48, harmed: bool = False) -> list[Sample]:
    """Groups of the same prompts at any seed, with rewards that every second prompt loses where it is harmed."""
    prompts = {sample.group_index: sample.prompt_ids for sample in build(0, groups=groups)}
    samples = build(seed, groups=groups)
    rng = random.Random(seed)
    for sample in samples:
        sample.prompt_ids = prompts[sample.group_index]
        sample.prompt_tokens = sample.cached_tokens = sample.arm = sample.advantage = None
        sample.reward = float(rng.random() < 0.6)
        if harmed and sample.group_index % 2:
            sample.reward = 0.0
    return samples


def compared(tmp_path: Path, baseline: list[Sample], experiment: list[Sample], *options: str) -> dict:
    before, after = write(tmp_path / "before", baseline), write(tmp_path / "after", experiment)
    out = ("--out", tmp_path / "out", "--json", "--quiet")
    done = command("sample", "--from", before, "--from", after, *out, *options, cache=tmp_path)
    assert done.returncode in (0, 1, 3), done.errors
    return json.loads(done.printed)


def test_harm_is_found_and_prompts_without_partner_are_counted(valid_samples: Build, tmp_path: Path) -> None:
    shorter = [one for one in of_prompts(valid_samples, 2, harmed=True) if one.group_index < 40]
    result = compared(tmp_path, of_prompts(valid_samples, 1), shorter)
    assert (result["verdict"], result["counts"]["groups"]) == ("DIFFERENT", 40)
    failing = {(one["check"], one["where"]["field"]) for one in result["findings"] if one["status"] == "fail"}
    assert ("sampling_marginal", "reward") in failing
    left = [one for one in result["findings"] if one["check"] == "sampling_matched" and one["status"] == "not_compared"]
    assert [one["evidence"]["left_out"] for one in left] == [8]
    assert (tmp_path / "out" / "report" / "report.html").exists()


def test_arms_alike_do_not_differ(valid_samples: Build, tmp_path: Path) -> None:
    result = compared(tmp_path, of_prompts(valid_samples, 1), of_prompts(valid_samples, 2))
    assert not [one["check"] for one in result["findings"] if one["status"] == "fail"]
    assert result["verdict"] == "INCONCLUSIVE"  # 48 groups are few


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--from is given 1 times"),
        (("--from", "{there}", "--engine", "embedded"), "leave out --engine"),
        (("--from", "{there}", "--reward-range", "0", "0.5"), "outside 0 to 0.5"),
        (("--from", "{empty}"), "no samples"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    valid_samples: Build, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    there = write(tmp_path / "there", of_prompts(valid_samples, 1, groups=4))
    (tmp_path / "empty").mkdir()
    given = [option.format(there=there, empty=tmp_path / "empty") for option in options]
    done = command("sample", "--from", there, *given, "--out", tmp_path / "out", cache=tmp_path)
    assert done.returncode == 2 and said in done.errors
    assert not (tmp_path / "out").exists()


def test_recordings_are_called_by_what_their_paths_differ_in() -> None:
    assert names_of_arms((Path("/a/before/dump"), Path("/a/after/dump"))) == ("before", "after")
    assert names_of_arms((Path("/a/x"), Path("/a/x"))) == ("baseline", "experiment")
