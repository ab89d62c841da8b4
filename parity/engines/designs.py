"""Which designs an engine allows: those asked for, or what it was seen to promise, or a refusal with the reason."""

from __future__ import annotations

from collections.abc import Sequence

from parity.engines.detection import Determinism
from parity.errors import UsageError
from parity.records.arms import differ_beyond_requests, set_apart
from parity.records.experiment import LIST_TWIN, ExperimentConfig, twin_by_lists

LIST_TWIN_REACH = (
    "this twin asks for lists with a seed an item in place of native: it shows the path of a group's request and "
    "answer, and nothing of native's own sampling"
)


def choose_designs(config: ExperimentConfig, seen: Determinism) -> tuple[str, ...]:
    """The designs to run: those asked for, or what the engine was seen to promise.

    A twin is one by lists where only lists can carry a seed a sample. Then a replay is run by default too, as nothing
    else puts equal responses through native's path.

    Raises:
        UsageError: An arm cannot be trained with, or a design that was asked for cannot be run on this engine.
    """
    arms = tuple(config.arm(name).way for name in config.arms)
    no_twin, by_lists = _twin(arms, seen)
    if not no_twin and by_lists and config.specs:
        no_twin, by_lists = _why("seed_per_slot", seen), False
    if not no_twin and set_apart(config, config.arms):
        no_twin, by_lists = "the arms set other sampling parameters", False
    no_replay = differ_beyond_requests(config)
    no_free = _no_free_groups(arms, seen)
    if no_free and "native" in arms and not seen.capabilities.seed_per_slot:
        raise UsageError(f"native cannot be trained with here: {no_free}; {_WITHOUT_CLONES}")
    twin = LIST_TWIN if by_lists else "twin"
    if not config.designs:
        if no_twin and no_free:
            raise UsageError(f"no design can be run here: {no_free}; and no twin, as {no_twin}")
        if no_free:
            return (twin,)
        if no_twin:
            return ("probe", "paired") if no_replay else ("replay", "paired")
        return (twin, "replay", "paired") if by_lists else (twin, "paired")
    designs = tuple(dict.fromkeys(twin if design == "twin" else design for design in config.designs))
    if no_twin and "twin" in config.designs:
        instead = "probe" if no_replay else "replay"
        raise UsageError(f"a twin needs an engine with reproducible samples; here {no_twin}: use --design {instead}")
    if LIST_TWIN in designs and (reason := _no_lists(twin_by_lists(arms), seen)):
        raise UsageError(f"a twin by lists needs lists with a seed an item; here {reason}")
    if no_free and (free := [design for design in designs if design not in ("twin", LIST_TWIN)]):
        raise UsageError(f"{', '.join(free)}: not to be run here: {no_free}; {_WITHOUT_CLONES}")
    return designs


def check_free_groups(arms: Sequence[str], seen: Determinism) -> None:
    """Refuses arms whose groups without seeds hold one response.

    Raises:
        UsageError: An arm's do, with the reason.
    """
    if reason := _no_free_groups(arms, seen):
        raise UsageError(f"there is nothing to compare here: {reason}; {_WITHOUT_CLONES} of `parity run`")


_WITHOUT_CLONES = "use an engine without deterministic inference, or compare per-sample with batched by --design twin"


def _twin(arms: Sequence[str], seen: Determinism) -> tuple[str, bool]:
    """Why there is no twin, empty where there is one; and whether native's part is taken by lists."""
    if reason := _no_seeds(seen):
        return reason, False
    by_lists = "native" in arms and not seen.capabilities.seed_per_slot
    if by_lists and "batched" in arms:
        return f"{_why('seed_per_slot', seen)}, and lists in place of native would be the other arm", False
    asked = twin_by_lists(arms) if by_lists else arms
    reason = _no_lists(asked, seen)
    if reason and by_lists:
        reason = f"{_why('seed_per_slot', seen)}, and {reason}"
    return reason, by_lists


def _no_seeds(seen: Determinism) -> str:
    facts = {name: getattr(seen, name) for name in ("repeats", "in_any_batch", "seeds_differ", "alike")}
    broken = [name for name, fact in facts.items() if fact is not None and not fact.holds]
    return _why(broken[0], seen) if broken else ""


def _no_lists(arms: Sequence[str], seen: Determinism) -> str:
    return "" if "batched" not in arms or seen.seed_per_item.holds else _why("seed_per_item", seen)


_NOT_SO = {
    "repeats": "the engine does not honour sampling_seed",
    "in_any_batch": "a seed does not hold beside other work",
    "seeds_differ": "every seed gives the same response",
    "seed_per_slot": "the engine gives all n samples of a native request one seed, so a seeded group is n clones",
    "seed_per_item": "a list does not carry a seed an item",
    "alike": "the engines answer a seed differently",
}


def _why(name: str, seen: Determinism) -> str:
    return f"{_NOT_SO[name]} ({getattr(seen, name).seen})"


def _no_free_groups(arms: Sequence[str], seen: Determinism) -> str:
    """Why groups without seeds are of no use; empty where they are."""
    cloning = [arm for arm in arms if arm in seen.clones]
    if not cloning:
        return ""
    return (
        f"without seeds a {' and a '.join(cloning)} group is one response n times, by a seed that the engine takes "
        "where none is given, and GRPO has no advantage in a group of clones"
    )
