"""What two arms asked for is compared in whatever form each asked; every other request is found at its place."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from parity.contract_checks import check_requests
from parity.findings import Level, Severity, Status
from parity.records.exchanges import Exchange
from parity.records.samples import Sample
from rollout_patch import ARMS

Build = Callable[..., list[Sample]]
Record = Callable[[Sequence[Sample]], list[Exchange]]


@pytest.fixture
def asked(valid_samples: Build, valid_exchanges: Record) -> Callable[..., list[Exchange]]:
    """What each arm asks for the same samples, with a change to the request of step 1, group 2."""

    def ask(arm: str, **changes: Any) -> list[Exchange]:
        exchanges = copy.deepcopy(valid_exchanges(valid_samples(steps=3, arm=arm)))
        for exchange in exchanges:
            if (exchange.rollout_id, exchange.group_index) == (1, 2):
                for name, value in changes.items():
                    part = exchange.request if name in exchange.request else exchange.request["sampling_params"]
                    part[name] = value
        return exchanges

    return ask


@pytest.mark.parametrize("arms", list(itertools.product(ARMS, ARMS)))
def test_every_arm_asks_for_the_same_in_its_own_form(
    arms: tuple[str, str], asked: Callable[..., list[Exchange]]
) -> None:
    (finding,) = check_requests(*map(asked, arms))
    assert finding.status is Status.PASS
    assert finding.evidence["checked"] == 12
    assert (finding.check, finding.level) == ("arms_same_requests", Level.CONTRACT)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", 0.7), ("top_p", 0.9), ("max_new_tokens", 3), ("return_logprob", False), ("sampling_seed", 5)],
)
def test_a_request_for_something_else_is_located_by_step_group_and_field(
    arm: str, field: str, value: Any, asked: Callable[..., list[Exchange]]
) -> None:
    (finding,) = check_requests(asked("per-sample"), asked(arm, **{field: value}))
    assert finding.status is Status.FAIL
    assert finding.where.to_json() == {"rollout_id": 1, "group_index": 2, "field": field}
    assert (finding.evidence["checked"], finding.evidence["failed"]) == (12, 1)


def test_another_prompt_or_number_of_samples_is_another_request(asked: Callable[..., list[Exchange]]) -> None:
    (prompt,) = check_requests(asked("native"), asked("native", input_ids=[1, 2, 3]))
    (number,) = check_requests(asked("native"), asked("native", n=3))
    (lost,) = check_requests(asked("native"), asked("native")[1:])
    assert [finding.where.field for finding in (prompt, number, lost)] == ["prompt", "requests", "requests"]
    assert (lost.where.rollout_id, lost.where.group_index) == (0, 0)


def test_the_seed_of_a_native_request_counts_up_with_the_slots() -> None:
    def exchange(request: dict[str, Any], seed: int) -> Exchange:
        return Exchange({"input_ids": [1], "sampling_params": {"sampling_seed": seed, **request}}, 200, None)

    single = [exchange({}, 7), exchange({}, 8)]
    (equal,) = check_requests(single, [exchange({"n": 2}, 7)])
    (off,) = check_requests(single, [exchange({"n": 2}, 8)])
    assert (equal.status, off.status, off.where.field) == (Status.PASS, Status.FAIL, "sampling_seed")


def test_no_exchanges_are_no_evidence_of_the_same_requests() -> None:
    (finding,) = check_requests([], [])
    assert (finding.status, finding.severity) == (Status.NOT_COMPARED, Severity.ERROR)


@pytest.mark.parametrize(
    ("image_data", "same"),
    [("A", True), (["A"], True), ([["A"]], True), (["B"], False), (["A", "B"], False), ([], False)],
)
def test_an_image_is_the_same_however_it_is_nested(image_data: Any, same: bool) -> None:
    request = {"input_ids": [1, 2], "sampling_params": {}}
    (finding,) = check_requests(
        [Exchange({**request, "image_data": "A"}, 200, None)],
        [Exchange({**request, "image_data": image_data}, 200, None)],
    )
    assert (finding.status is Status.PASS) == same


def test_a_batch_has_its_images_prompt_by_prompt() -> None:
    def single(image: str) -> Exchange:
        return Exchange({"input_ids": [1], "sampling_params": {}, "image_data": [image]}, 200, None)

    def batch(*images: Any) -> Exchange:
        return Exchange({"input_ids": [[1], [1]], "sampling_params": {}, "image_data": list(images)}, 200, None)

    (flat,) = check_requests([single("A"), single("B")], [batch("B", "A")])
    (nested,) = check_requests([single("A"), single("B")], [batch(["A"], ["B"])])
    (other,) = check_requests([single("A"), single("B")], [batch("A", "A")])
    assert [finding.status for finding in (flat, nested, other)] == [Status.PASS, Status.PASS, Status.FAIL]


def test_a_prompt_of_a_batch_beyond_its_images_has_none() -> None:
    def batch(*images: Any) -> Exchange:
        return Exchange({"input_ids": [[1], [2]], "sampling_params": {}, "image_data": list(images)}, 200, None)

    (short,) = check_requests([batch("A", None)], [batch("A")])
    assert short.status is Status.PASS


def test_a_message_shows_the_beginning_of_long_values() -> None:
    def exchange(token: int) -> Exchange:
        return Exchange({"input_ids": [token] * 1000, "sampling_params": {"n": 1}}, 200, None, group_index=0)

    (finding,) = check_requests([exchange(7)], [exchange(8)])
    assert len(finding.message) < 300
    assert "([7, 7" in finding.message and "([8, 8" in finding.message and "..." in finding.message
    (short,) = check_requests(
        [Exchange({"input_ids": [1], "stream": True}, 200, None)], [Exchange({"input_ids": [1]}, 200, None)]
    )
    assert "[True]" in short.message and "[None]" in short.message
