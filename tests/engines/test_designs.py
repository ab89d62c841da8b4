"""Which designs follow from what an engine was seen to promise, and what is refused, with the reason in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from parity.commands.validation import check_experiment
from parity.engines.designs import check_free_groups, choose_designs
from parity.engines.detection import Determinism, Fact
from parity.errors import UsageError
from parity.records.experiment import ExperimentConfig, plan_pairs
from rollout_patch import Capabilities

YES, NO, OPEN = Fact(True, "4 of 4 equal"), Fact(False, "seen so"), Fact(None, "refused with HTTP 422")

EMBEDDED = Determinism(YES, YES, YES, YES, YES, YES, YES, YES, Capabilities(seeded=True, seed_per_slot=True), (), ())
IGNORED = replace(EMBEDDED, repeats=NO, in_any_batch=NO, seed_per_slot=OPEN, seed_per_item=OPEN)
IGNORED = replace(IGNORED, capabilities=Capabilities())
ONE_SEED = replace(EMBEDDED, seed_per_slot=NO, capabilities=Capabilities(seeded=True, free_clones=False))
NO_LISTS = {"seed_per_item": OPEN}
SGLANG_DETERMINISTIC = replace(
    ONE_SEED,
    free_per_sample=NO,
    free_batched=NO,
    free_native=NO,
    clones=("per-sample", "batched", "native"),
    capabilities=Capabilities(seeded=True, free_clones=True),
)
IN_EMPTY_BATCHES = replace(EMBEDDED, in_any_batch=NO, capabilities=Capabilities())


def asked(*designs: str, baseline: str = "per-sample", experiment: str = "native") -> ExperimentConfig:
    return ExperimentConfig(baseline, experiment, designs=designs)


@pytest.mark.parametrize(
    ("seen", "arms", "designs"),
    [
        (EMBEDDED, ("per-sample", "native"), ("twin", "paired")),
        (EMBEDDED, ("batched", "native"), ("twin", "paired")),
        (IGNORED, ("per-sample", "native"), ("replay", "paired")),
        (IN_EMPTY_BATCHES, ("per-sample", "batched"), ("replay", "paired")),
        (ONE_SEED, ("per-sample", "native"), ("list-twin", "replay", "paired")),
        (ONE_SEED, ("native", "per-sample"), ("list-twin", "replay", "paired")),
        (ONE_SEED, ("per-sample", "batched"), ("twin", "paired")),
        (ONE_SEED, ("batched", "native"), ("replay", "paired")),
        (replace(ONE_SEED, **NO_LISTS), ("per-sample", "native"), ("replay", "paired")),
        (replace(EMBEDDED, **NO_LISTS), ("per-sample", "native"), ("twin", "paired")),
        (replace(EMBEDDED, **NO_LISTS), ("per-sample", "batched"), ("replay", "paired")),
        (SGLANG_DETERMINISTIC, ("per-sample", "batched"), ("twin",)),
    ],
)
def test_what_an_engine_promises_decides_what_is_run(
    seen: Determinism, arms: tuple[str, str], designs: tuple[str, ...]
) -> None:
    assert choose_designs(asked(baseline=arms[0], experiment=arms[1]), seen) == designs


def test_a_twin_that_was_asked_for_is_one_by_lists_where_only_lists_carry_seeds() -> None:
    assert choose_designs(asked("twin"), ONE_SEED) == ("list-twin",)
    assert choose_designs(asked("list-twin", "twin", "probe"), ONE_SEED) == ("list-twin", "probe")
    assert choose_designs(asked("twin", "probe"), EMBEDDED) == ("twin", "probe")
    assert choose_designs(asked("list-twin"), EMBEDDED) == ("list-twin",)


@pytest.mark.parametrize(
    ("seen", "config", "reason"),
    [
        (IGNORED, asked("twin"), r"the engine does not honour sampling_seed \(seen so\): use --design replay"),
        (IGNORED, asked("list-twin"), "the engine does not honour|a list does not carry a seed an item"),
        (IN_EMPTY_BATCHES, asked("twin"), "a seed does not hold beside other work"),
        (replace(EMBEDDED, seeds_differ=NO), asked("twin"), "every seed gives the same response"),
        (
            replace(ONE_SEED, **NO_LISTS),
            asked("twin"),
            r"one seed.*a list does not carry a seed an item \(refused with",
        ),
        (ONE_SEED, asked("twin", baseline="batched"), "lists in place of native would be the other arm"),
        (replace(EMBEDDED, **NO_LISTS), asked("twin", experiment="batched"), "a list does not carry a seed an item"),
        (SGLANG_DETERMINISTIC, asked(), "native cannot be trained with here: .* no advantage in a group of clones"),
        (SGLANG_DETERMINISTIC, asked("probe"), "native cannot be trained with here"),
        (SGLANG_DETERMINISTIC, asked("paired", experiment="batched"), "paired: not to be run here: without seeds a"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_with_the_reason(
    seen: Determinism, config: ExperimentConfig, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        choose_designs(config, seen)


def test_arms_that_a_default_seed_makes_clones_are_not_sampled_and_others_are() -> None:
    with pytest.raises(UsageError, match=r"per-sample.* native"):
        check_free_groups(("per-sample", "native"), SGLANG_DETERMINISTIC)
    for seen in (EMBEDDED, ONE_SEED, IGNORED):
        check_free_groups(("per-sample", "native"), seen)


@pytest.mark.parametrize("arms", [("per-sample", "native"), ("native", "per-sample")])
def test_a_twin_by_lists_says_in_its_runs_that_native_was_not_asked(arms: tuple[str, str]) -> None:
    config = asked(baseline=arms[0], experiment=arms[1])
    first, *others = plan_pairs(config, ("list-twin", "replay", "paired"))
    assert (first.seeded, set(first.names)) == (True, {"list-twin-per-sample-seed0", "list-twin-batched-seed0"})
    assert first.arms[arms.index("native")] == "batched"
    assert all(pair.arms == arms and not pair.seeded for pair in others)
    names = [name for pair in (first, *others) for name in pair.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("arms", [{"experiment": "batched"}, {"baseline": "batched"}])
def test_a_twin_by_lists_needs_native_to_stand_in_for(arms: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"list-twin.*per-sample.*native"):
        check_experiment(asked("list-twin", **arms))
    check_experiment(asked("list-twin"))
