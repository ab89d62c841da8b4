"""Findings of many runs as one list, and experiments on disk, sound and damaged."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.commands.run import assess, merge
from parity.errors import ParityError, UsageError
from parity.findings import Finding, Level, Message, Status, Where
from parity.metrics import rollout_metrics
from parity.records.exchanges import Exchange
from parity.records.experiment import ExperimentConfig
from parity.records.samples import Rollout, Sample
from parity.records.store import create_experiment, run_store

Build = Callable[..., list[Sample]]
Answer = Callable[[Sequence[Sample]], list[Exchange]]


def finding(status: Status, run: str, checked: int, **place: int) -> Finding:
    evidence = {"checked": checked, "failed": int(status is Status.FAIL), "not_compared": 0, "unit": "groups"}
    message = Message("{checked} samples: {missing}", checked=checked, missing="a message")
    return Finding("output_count", Level.CONTRACT, status, message, Where(run, **place), evidence=evidence)


def test_what_passes_in_every_run_is_one_finding_with_the_counts_added() -> None:
    (merged,) = merge([finding(Status.PASS, "a", 3), finding(Status.PASS, "b", 4)])
    assert (merged.status, merged.evidence["checked"], merged.evidence["runs"]) == (Status.PASS, 7, 2)


def test_a_check_that_fails_in_one_run_does_not_pass_for_the_others() -> None:
    failed = finding(Status.FAIL, "b", 4, rollout_id=2, group_index=1)
    assert merge([finding(Status.PASS, "a", 3), failed]) == [failed]


def test_what_one_run_could_not_compare_stays_visible_beside_a_pass() -> None:
    merged = merge([finding(Status.PASS, "a", 3), finding(Status.NOT_COMPARED, "b", 0)])
    assert [item.status for item in merged] == [Status.PASS, Status.NOT_COMPARED]


def test_nothing_merges_to_nothing() -> None:
    assert merge([]) == []


# --- a whole experiment on disk


@pytest.fixture
def experiment(valid_samples: Build, valid_exchanges: Answer, tmp_path: Path) -> Path:
    """A twin of two steps, as the runner leaves it; its rewards are not those of its task."""
    config = ExperimentConfig("per-sample", "native", designs=("twin",), twin_steps=2)
    policy = {"vocab_size": 200, "context_length": 64, "stop_token_ids": [2]}
    arms = {"baseline": "per-sample", "experiment": "native"}
    facts = {**arms, "config": config.to_json(), "designs": ["twin"], "policy": policy, "seeds": [1], "steps": 2}
    create_experiment(tmp_path / "out", facts)
    for arm in arms.values():
        store = run_store(tmp_path / "out", f"{arm}-seed0")
        store.create()
        store.append_event("start", 1.0, step=0)
        samples = [replace(sample, extra={"prompt": "1+2="}) for sample in valid_samples(steps=2, groups=1, arm=arm)]
        for step in range(2):
            own = [sample for sample in samples if sample.rollout_id == step]
            rollout = Rollout.from_samples(own)
            store.write_step(step, rollout, valid_exchanges(own))
            store.append_metrics({"step": step, **rollout_metrics(rollout, 1.0), "train/loss": 0.5})
        store.write_outcome({"status": "completed", "counts": {"samples": len(samples)}})
    return tmp_path / "out"


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    inner = node.items() if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


def changed(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(node) if isinstance(node, dict) else list(node)
    copy[path[0]] = changed(node[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("name", ["experiment.json", "run.json", "metrics.jsonl", "events.jsonl"])
def test_whatever_a_file_of_an_experiment_holds_ends_in_a_report_or_is_named(name: str, experiment: Path) -> None:
    path = next(experiment.rglob(name))
    whole = [json.loads(line) for line in path.read_text().splitlines()] if name.endswith("l") else None
    first = whole[0] if whole else json.loads(path.read_text())
    scraps = (None, 7, -1.5, "x", [], {}, [None], {"x": None})
    for place, scrap in random.Random(3).choices(list(itertools.product(places(first), scraps)), k=10):
        row = changed(first, place, scrap)
        lines = [json.dumps(line) + "\n" for line in ([row, *whole[1:]] if whole else [row])]
        path.write_text("".join(lines))
        try:
            assert assess(experiment)[0].verdict
        except ParityError as error:
            assert isinstance(error, UsageError) or re.search(r"experiment\.json|/out|seed0", str(error)), place
