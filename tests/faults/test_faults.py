"""Every fault is caught by the check named for it and by no other; what only looks like a fault is not."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from parity.commands.selftest import try_control, try_fault
from parity.contract_checks import CHECKS, check_samples
from parity.faults import CONTROLS, FAULTS, PLANTS, Control, Fault, table_rows
from parity.faults.clean import (
    CAP,
    RULES,
    STOP,
    clean_prompts,
    clean_rollout,
    clean_samples,
    log_probs_at,
    reward_of,
)
from parity.faults.scenes import Scene
from parity.findings import Finding, Level, Status
from parity.records.samples import Sample


@pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))
def test_a_fault_is_caught_by_its_check_alone(fault: Fault) -> None:
    trial = try_fault(fault)
    assert trial.caught, f"{fault.check} does not fail in {fault.units} {fault.kind.unit}"
    assert trial.unexpected == ()
    assert trial.after is not None and trial.after <= fault.units
    assert trial.message


@pytest.mark.parametrize("control", CONTROLS, ids=[control.name for control in CONTROLS])
def test_a_control_passes_every_check(control: Control) -> None:
    assert try_control(control).alarms == {}


def test_names_are_unique_and_every_check_of_the_contract_has_a_fault() -> None:
    assert max(Counter(control.name for control in CONTROLS).values()) == 1
    assert len(FAULTS) >= 210 and len(CONTROLS) >= 40
    assert len(FAULTS) == len(list(table_rows("faults.csv")))
    assert {check.name for check in CHECKS} <= {fault.check for fault in FAULTS.values()}
    assert {fault.level for fault in FAULTS.values()} == set(Level)


def failing(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in reversed(findings) if finding.status is Status.FAIL}


def caught(fault: Fault, seed: int = 5) -> tuple[Mapping[str, Finding], set[Place]]:
    """What fails, and the places of the samples that are not as they were."""
    scene = fault.kind.build(np.random.default_rng(seed), fault.units)
    before = copy.deepcopy(samples_at(scene))
    fault.plant(scene)
    after = samples_at(scene)
    changed = {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)}
    return failing(fault.kind.judge(scene)), changed


Place = tuple[int | None, int, int]


def samples_at(scene: Any) -> dict[Place, list[Sample]]:
    """The samples of a scene that has any, by their place."""
    found: dict[Place, list[Sample]] = {}
    for sample in getattr(scene, "samples", ()):
        found.setdefault((sample.rollout_id, sample.group_index, sample.index), []).append(sample)
    return found


CONTRACT = [fault for fault in FAULTS.values() if fault.level is Level.CONTRACT and fault.units < 10]


@pytest.mark.parametrize("fault", CONTRACT, ids=[fault.name for fault in CONTRACT])
def test_place_and_values_are_named_and_no_companion_is_declared_that_never_comes(fault: Fault) -> None:
    seen, changed = caught(fault)
    finding = seen[fault.check]
    assert finding.where.field is not None
    if changed and finding.where.group_index is not None:
        assert any(
            finding.where.group_index == group and finding.where.index in (None, slot) for _, group, slot in changed
        ), "at what was changed"
    assert finding.expected != finding.observed
    implied = fault.check.removeprefix("exchange_")
    idle = [p for p in fault.companions if p != implied and not any(fnmatchcase(name, p) for name in seen)]
    assert idle == []


def test_a_length_fault_names_its_three_numbers() -> None:
    samples = clean_samples(clean_rollout(np.random.default_rng(0), clean_prompts(np.random.default_rng(0), 1)))
    scene = Scene(samples)
    longest = max(samples, key=lambda sample: len(sample.output_ids or ()))
    longest.logprobs = [*(longest.logprobs or ()), -1.0, -1.0]
    fault = FAULTS["three-lengths"]
    finding = failing(fault.kind.judge(scene))["rollout_log_probs_length"]
    tokens = len(longest.output_ids or ())
    assert (finding.expected, finding.observed) == (tokens, tokens + 2)
    assert (finding.where.group_index, finding.where.index) == (0, longest.index)


# --- the sound data, by truths of its own


def test_the_policy_is_a_distribution_whose_end_is_one_in_twenty() -> None:
    for temperature in (0.5, 1.0, 2.0):
        assert np.exp(log_probs_at(temperature)).sum() == pytest.approx(1.0)
    assert np.exp(log_probs_at(1.0)[0]) == pytest.approx(0.05)


def test_lengths_are_geometric_up_to_the_cap() -> None:
    rng = np.random.default_rng(1)
    rollout = clean_rollout(rng, clean_prompts(rng, 2000))
    lengths = rollout.numbers("response_length")[0]
    assert (lengths == 1).mean() == pytest.approx(0.05, abs=0.006)
    assert (lengths == CAP).mean() == pytest.approx(0.95 ** (CAP - 1), abs=0.01)
    # the mean of minus the log-prob is the entropy of the policy
    table = log_probs_at(1.0)
    assert -rollout.ragged("logprobs").values.mean() == pytest.approx(-(np.exp(table) * table).sum(), abs=0.02)


def test_one_seed_gives_one_rollout_and_another_gives_another() -> None:
    def draw(seed: int) -> list[Sample]:
        rng = np.random.default_rng(seed)
        return list(clean_rollout(rng, clean_prompts(rng, 2)).samples())

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


def test_neighbouring_prompts_differ_in_length_and_rewards_follow_from_prompt_and_length() -> None:
    prompts = clean_prompts(np.random.default_rng(2), 500, media=True)
    assert all(len(a) != len(b) for a, b in pairwise(prompts))
    assert all(prompt[0] == 199 and 199 not in prompt[1:] for prompt in prompts)
    odd = Sample(0, 0, prompt_ids=[3, 4], output_ids=[5, 6, STOP])
    assert reward_of(odd) == 1.0
    assert reward_of(replace(odd, output_ids=[5, STOP])) == 0.0


@pytest.mark.parametrize("size", [1, 2, 8])
def test_sound_rollouts_of_any_group_size_pass(size: int) -> None:
    rng = np.random.default_rng(size)
    rollout = clean_rollout(rng, clean_prompts(rng, 12, media=True), steps=3, size=size)
    assert failing(check_samples(rollout, replace(RULES, group_size=size))) == {}


def test_every_operation_is_of_a_row_and_every_row_of_the_tables_is_whole() -> None:
    rows = [row for name in ("faults.csv", "controls.csv") for row in table_rows(name)]
    assert set(PLANTS) == {row["operation"] or row["name"] for row in rows}
    optional = {"operation", "also", "in_run"}
    assert [row["name"] for row in rows if None in row or not all(v for k, v in row.items() if k not in optional)] == []
