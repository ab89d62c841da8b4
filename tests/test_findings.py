from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.findings import (
    Finding,
    Level,
    Message,
    Severity,
    Status,
    Verdict,
    Where,
    judge,
    listed,
    quantity,
    status_of_level,
)

PASS, FAIL, INCONCLUSIVE, NOT_COMPARED = Status.PASS, Status.FAIL, Status.INCONCLUSIVE, Status.NOT_COMPARED


def finding(level: Level, status: Status, severity: Severity = Severity.ERROR) -> Finding:
    return Finding("a_check", level, status, "a message", severity=severity)


CONTRACT, SAMPLING, REPLAY, TRAINING, COST = Level


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ({CONTRACT: PASS, REPLAY: PASS}, Verdict.PARITY),
        ({CONTRACT: PASS, SAMPLING: PASS}, Verdict.PARITY),
        # curves can only falsify: too few runs to say does not take parity away, and curves alone do not give it
        ({CONTRACT: PASS, REPLAY: PASS, TRAINING: INCONCLUSIVE}, Verdict.PARITY),
        ({CONTRACT: PASS, TRAINING: PASS}, Verdict.INCONCLUSIVE),
        ({CONTRACT: PASS, REPLAY: PASS, TRAINING: FAIL}, Verdict.DIFFERENT),
        ({CONTRACT: FAIL, REPLAY: PASS, TRAINING: PASS}, Verdict.DIFFERENT),
        ({CONTRACT: PASS, REPLAY: FAIL}, Verdict.DIFFERENT),
        ({CONTRACT: PASS, SAMPLING: INCONCLUSIVE, REPLAY: PASS}, Verdict.INCONCLUSIVE),
        ({REPLAY: PASS}, Verdict.INCONCLUSIVE),
        ({CONTRACT: NOT_COMPARED, REPLAY: PASS}, Verdict.INCONCLUSIVE),
        # being slower is no difference in what is learnt
        ({CONTRACT: PASS, REPLAY: PASS, COST: FAIL}, Verdict.PARITY),
        ({}, Verdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_rests_on_the_lower_rungs(statuses: dict[Level, Status], verdict: Verdict) -> None:
    assert judge([finding(level, status) for level, status in statuses.items()]).verdict is verdict


def test_a_warning_is_no_failure() -> None:
    warned = [finding(CONTRACT, FAIL, Severity.WARNING), finding(CONTRACT, PASS), finding(REPLAY, PASS)]
    assert judge(warned).verdict is Verdict.PARITY


def test_what_was_not_compared_counts_only_when_nothing_else_was() -> None:
    assert status_of_level([finding(CONTRACT, NOT_COMPARED)], CONTRACT) is NOT_COMPARED
    assert status_of_level([finding(CONTRACT, NOT_COMPARED), finding(CONTRACT, PASS)], CONTRACT) is PASS


@settings(derandomize=True)
@given(st.lists(st.tuples(st.sampled_from(Level), st.sampled_from(Status))))
def test_one_more_failure_never_improves_a_verdict(made: list[tuple[Level, Status]]) -> None:
    findings = [finding(level, status) for level, status in made]
    assert judge([*findings, finding(CONTRACT, FAIL)]).verdict is Verdict.DIFFERENT


def test_a_finding_keeps_its_place_and_numbers_as_json() -> None:
    where = Where(run="native-seed0", rollout_id=0, group_index=3, index=1, field="logprobs")
    row = Finding("alignment", CONTRACT, FAIL, "3 of 4", where, expected=4, observed=3).to_json()
    assert row["where"] == {
        "run": "native-seed0",
        "rollout_id": 0,
        "group_index": 3,
        "index": 1,
        "field": "logprobs",
    }
    assert (row["level"], row["status"], row["expected"], row["observed"]) == ("contract", "fail", 4, 3)
    assert str(where) == "run native-seed0, step 0, group 3, slot 1, field logprobs"


def test_a_message_is_its_english_text_and_says_the_same_by_a_catalogue() -> None:
    message = Message("{failed} of {groups} differ{{}}", failed=2, groups=quantity(8, "groups"))
    chinese = {
        "{failed} of {groups} differ{{}}": "{groups}中有 {failed} 个不同",
        "{number:,} groups": "{number:,} 个组",
    }
    assert message == "2 of 8 groups differ{}"
    assert message.translated(lambda template: chinese[template]) == "8 个组中有 2 个不同"
    assert copy.deepcopy(message).values == pickle.loads(pickle.dumps(message)).values == message.values


def test_several_messages_are_listed_as_one() -> None:
    several = listed([quantity(1, "runs"), "a {brace}"], "; ")
    assert several == "1 run; a {brace}"
    assert several.translated(lambda text: text.replace("runs", "次").replace("; ", " / ")) == "1 次 / a {brace}"
