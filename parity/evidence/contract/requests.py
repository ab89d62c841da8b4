"""What two arms asked for, sample by sample, in whatever form each asked.

An answer alone does not show what it was asked with, and a recording answers whatever is asked with the same prompt.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from parity.evidence.contract.outcomes import SHOWN, Case, Outcome
from parity.findings import Message, Where, listed, short_repr
from parity.records.exchanges import MEDIA_FIELDS, Exchange, prompt_key

_OF_THE_FORM = frozenset({"text", "input_ids", "sampling_params", "rid", *MEDIA_FIELDS})
"""Fields of a request that are the sample's own name, or are compared in another shape."""


Place = tuple[int, int]


def same_requests(baseline: Iterable[Exchange], experiment: Iterable[Exchange], apart: Collection[str] = ()) -> Outcome:
    """Both arms asked for the same, whatever the form: prompts, media, sampling parameters and every other field.

    What a sample asks for is its prompt, its media, its sampling parameters (with n > 1 sample i takes `sampling_seed`
    + i) and every other field of the request but `rid`, and but for parameters that are `apart` on purpose. Exchanges
    answered with status 200 are looked at.
    """
    a, b = _asked_by_group(baseline, apart), _asked_by_group(experiment, apart)
    places = sorted(a.keys() | b.keys())
    wrong = [place for place in places if a.get(place) != b.get(place)]
    cases = tuple(_case(place, a.get(place, ()), b.get(place, ())) for place in wrong[:SHOWN])
    missing = 0 if places else 1
    return Outcome(len(places), len(wrong), cases, missing, Message("no exchanges recorded"))


def _case(place: Place, *sides: Sequence[str]) -> Case:
    asked = [[json.loads(row) for row in side] for side in sides]
    names = _differing_names(*asked)
    step, group = place
    expected, observed = ([row.get(names[0]) for row in side] for side in asked)
    message = Message(
        "the arms asked for different things: {expected} in the baseline, {observed} in the experiment; fields that "
        "differ: {names}",
        expected=short_repr(expected),
        observed=short_repr(observed),
        names=listed(names),
    )
    where = Where(None, step if step >= 0 else None, group if group >= 0 else None, None, names[0])
    return Case(where, expected, observed, message)


def _asked_by_group(exchanges: Iterable[Exchange], apart: Collection[str]) -> dict[Place, list[str]]:
    """What each sample asked for, as JSON and sorted, by step and group (-1 where the exchange names none)."""
    groups: dict[Place, list[str]] = {}
    for exchange in exchanges:
        if exchange.status == 200:
            step, group = (-1 if place is None else place for place in (exchange.rollout_id, exchange.group_index))
            groups.setdefault((step, group), []).extend(map(_canonical, _asked(exchange, apart)))
    return {place: sorted(rows) for place, rows in groups.items()}


def _asked(exchange: Exchange, apart: Collection[str]) -> Iterator[dict[str, Any]]:
    """What each sample of a request asks for, in the order of its answer."""
    shared = {name: value for name, value in exchange.request.items() if name not in _OF_THE_FORM}
    for number in range(len(exchange.prompts)):
        own = {name: _own(exchange, value, number) for name, value in shared.items()}
        params = _own(exchange, exchange.request.get("sampling_params") or {}, number)
        params = {**params} if isinstance(params, dict) else {"sampling_params": params}
        params = {name: value for name, value in params.items() if name != "n" and name not in apart}
        for slot in range(max(exchange.n, 1)):
            seed = params.get("sampling_seed")
            seeded = {"sampling_seed": seed + slot} if isinstance(seed, int) else {}
            yield {"prompt": prompt_key(exchange, number), **own, **params, **seeded}


def _own(exchange: Exchange, value: Any, number: int) -> Any:
    """One prompt's entry of a field that holds one for each prompt of a batch."""
    each = exchange.is_batch and isinstance(value, list) and len(value) == len(exchange.prompts)
    return value[number] if each else value


def _canonical(row: Mapping[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


def _differing_names(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields whose values, over all samples of a group, are not the same; "requests" where only their number is."""
    names = sorted({name for row in (*a, *b) for name in row})
    values = [{name: sorted(_canonical({"": row.get(name)}) for row in side) for name in names} for side in (a, b)]
    if len(a) != len(b):
        return ["requests"]
    return [name for name in names if values[0][name] != values[1][name]] or ["requests"]
