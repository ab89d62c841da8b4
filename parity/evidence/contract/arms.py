"""Both arms together: were they asked for the same, and what came back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.evidence.contract.columns import NULL
from parity.evidence.contract.facts import Facts, Groups, known_objects
from parity.evidence.contract.finish import unfinished
from parity.evidence.contract.grouping import prompt_named
from parity.evidence.contract.outcomes import SHOWN, Case, Outcome
from parity.findings import Message, Where, quantity

Side = tuple[Facts, Groups]
Key = tuple[int, int]


def same_groups(baseline: Side, experiment: Side) -> Outcome:
    """Both arms were asked for the same groups of the same rollouts."""
    left, right = _keys(baseline), _keys(experiment)
    one_sided = sorted(left.keys() ^ right.keys())
    cases = []
    for key in one_sided[:SHOWN]:
        has = "baseline" if key in left else "experiment"
        message = Message("the {lacks} has no such group", lacks=Message("experiment" if key in left else "baseline"))
        cases.append(Case(_where(key, "group_index"), "both arms", has, message))
    return Outcome(len(left.keys() | right.keys()), len(one_sided), tuple(cases))


def same_prompts(baseline: Side, experiment: Side) -> Outcome:
    """Each group has the same prompt in both arms."""
    return _group_by_group(
        baseline,
        experiment,
        "prompt_ids",
        lambda side, row: int(side.prompt_hash[row]) if side.prompt_length[row] != NULL else None,
        prompt_named,
        Message("the experiment's group has another prompt than the baseline's"),
    )


def same_media(baseline: Side, experiment: Side) -> Outcome:
    """Each group has the same media in both arms."""
    return _group_by_group(
        baseline,
        experiment,
        "media_sha256",
        lambda side, row: side.media[row],
        lambda side, row: list(side.media[row]),
        Message("the experiment's group has other media than the baseline's"),
    )


def same_params(baseline: Side, experiment: Side) -> Outcome:
    """Each group was drawn with the same temperature, top_p, top_k and cap in both arms."""

    def params(side: Facts, row: int) -> dict[str, float] | None:
        floats = {"temperature": float(side.temperature[row]), "top_p": float(side.top_p[row])}
        whole = {"top_k": int(side.top_k[row]), "max_new_tokens": int(side.max_new_tokens[row])}
        known = {name: value for name, value in {**floats, **whole}.items() if value == value and value != NULL}
        return known or None

    message = Message("the experiment's group has other sampling parameters than the baseline's")
    return _group_by_group(baseline, experiment, "temperature", params, params, message)


def output_count(baseline: Side, experiment: Side) -> Outcome:
    """Each group has as many samples in both arms."""
    left, right = _keys(baseline), _keys(experiment)
    shared = sorted(left.keys() & right.keys())
    sizes = [(int(baseline[1].sizes[left[key]]), int(experiment[1].sizes[right[key]])) for key in shared]
    wrong = [(key, size) for key, size in zip(shared, sizes, strict=True) if size[0] != size[1]]
    template = "{samples} in the baseline, {other} in the experiment"
    cases = [
        Case(_where(key, "index"), a, b, Message(template, samples=quantity(a, "samples"), other=b))
        for key, (a, b) in wrong[:SHOWN]
    ]
    evidence = {"baseline": len(baseline[0]), "experiment": len(experiment[0])}
    return Outcome(len(shared), len(wrong), tuple(cases), evidence=evidence)


def finish_reasons(baseline: Side, experiment: Side) -> Outcome:
    """Neither arm alone has aborted samples or samples without a finish reason."""
    left, right = (_shares(side[0].finish_reason) for side in (baseline, experiment))
    if left.keys() | right.keys() <= {"none"}:
        return Outcome(0, skipped=1, missing=Message("no finish reason recorded"))
    names = sorted(left.keys() | right.keys())
    wrong = [
        name for name in names if (name == "none" or name == "abort") and bool(left.get(name)) != bool(right.get(name))
    ]
    cases = tuple(
        Case(
            Where(field="finish_reason"),
            left.get(name, 0),
            right.get(name, 0),
            Message(
                "finish reason {reason}: {samples} in the baseline, {other} in the experiment",
                reason=name,
                samples=quantity(left.get(name, 0), "samples"),
                other=right.get(name, 0),
            ),
        )
        for name in wrong[:SHOWN]
    )
    return Outcome(len(names), len(wrong), cases, evidence={"baseline": left, "experiment": right})


def fields_present(baseline: Side, experiment: Side) -> Outcome:
    """What one arm records of every sample, the other records too."""
    if not len(baseline[0]) or not len(experiment[0]):
        return Outcome(0, skipped=1, missing=Message("an arm has no samples"))
    presence = {name: (_share(baseline[0], has), _share(experiment[0], has)) for name, has in _PRESENT.items()}
    wrong = [name for name, (a, b) in presence.items() if (a == 1.0) != (b == 1.0)]
    cases = tuple(
        Case(
            Where(field=name),
            presence[name][0],
            presence[name][1],
            Message(
                "{name} is on {share:.1%} of the baseline's samples, {other:.1%} of the experiment's",
                name=name,
                share=presence[name][0],
                other=presence[name][1],
            ),
        )
        for name in wrong[:SHOWN]
    )
    return Outcome(len(presence), len(wrong), cases)


_PRESENT: dict[str, Callable[[Facts], npt.NDArray[np.bool_]]] = {
    "output_ids": lambda side: side.output_length != NULL,
    "logprobs": lambda side: side.logprobs_length != NULL,
    "loss_mask": lambda side: side.mask_length != NULL,
    "response_length": lambda side: side.response_length != NULL,
    "finish_reason": lambda side: known_objects(side.finish_reason),
    "status": lambda side: known_objects(side.status),
    "reward": lambda side: side.has_reward | unfinished(side),
    "advantage": lambda side: side.has_advantage | unfinished(side),
    "weight_versions": lambda side: known_objects(side.weight_versions),
}


def _share(side: Facts, has: Callable[[Facts], npt.NDArray[np.bool_]]) -> float:
    return float(has(side).mean())


def _shares(reasons: npt.NDArray[np.object_]) -> dict[str, int]:
    given = [str(reason).lower() for reason in reasons]
    return {name: given.count(name) for name in sorted(set(given))}


def _keys(side: Side) -> dict[Key, int]:
    facts, groups = side
    first = groups.first
    pairs = zip(facts.rollout_id[first].tolist(), facts.group_index[first].tolist(), strict=True)
    return {key: group for group, key in enumerate(pairs)}


def _where(key: Key, field: str) -> Where:
    return Where(None, None if key[0] == NULL else key[0], key[1], None, field)


def _group_by_group(
    baseline: Side,
    experiment: Side,
    field: str,
    value: Callable[[Facts, int], Any],
    shown: Callable[[Facts, int], Any],
    message: Message,
) -> Outcome:
    left, right = _keys(baseline), _keys(experiment)
    shared = sorted(left.keys() & right.keys())
    checked, wrong, cases = 0, 0, []
    for key in shared:
        rows = int(baseline[1].first[left[key]]), int(experiment[1].first[right[key]])
        a, b = value(baseline[0], rows[0]), value(experiment[0], rows[1])
        if a is None or b is None:
            continue
        checked += 1
        if a != b:
            wrong += 1
            values = shown(baseline[0], rows[0]), shown(experiment[0], rows[1])
            cases.append(Case(_where(key, field), *values, message))
    missing = Message("no {field} recorded in both arms", field=field)
    return Outcome(checked, wrong, tuple(cases[:SHOWN]), len(shared) - checked, missing)
