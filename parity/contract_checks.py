"""L0, the contract: exact rules over samples, exchanges, requests, curves and both arms.

Pure: rollouts and exchanges in, findings out. One check gives one passing finding with `{"checked": N}` in its
evidence, or a failing finding for each of the first few breaches (each with the total), and one more that says *not
compared* for what is missing. What makes training wrong is an error; what merely surprises is a warning, which never
fails a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from parity.evidence.contract import (
    accounting,
    arms,
    clones,
    curves,
    finish,
    grouping,
    media,
    mismatch,
    outputs,
    requests,
    scores,
    streams,
    tokens,
    wire,
)
from parity.evidence.contract.answers import samples_of
from parity.evidence.contract.facts import Facts, Groups, facts_of, groups_of, without
from parity.evidence.contract.inference import RULE_OF_CHECK, infer
from parity.evidence.contract.outcomes import Case, Check, Outcome, Tally, findings_of
from parity.evidence.contract.rules import AdvantageFormula, Rules
from parity.findings import Finding, Message, Severity
from parity.metrics import RunCurves, rollout_metrics
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout

__all__ = [
    "CHECKS",
    "GAP_CHECKS",
    "AdvantageFormula",
    "Check",
    "Facts",
    "Part",
    "Rules",
    "check_accounting",
    "check_arms",
    "check_arms_of_parts",
    "check_batches",
    "check_curves",
    "check_exchanges",
    "check_facts",
    "check_measured",
    "check_metrics",
    "check_parts",
    "check_recording",
    "check_requests",
    "check_run_curves",
    "check_samples",
    "facts_of",
    "part_of",
    "samples_of",
    "summarise",
]

SampleRule = Callable[[Facts, Groups, Rules], Outcome]
ArmsRule = Callable[[arms.Side, arms.Side], Outcome]


def _first_sentence(function: Callable[..., object]) -> str:
    return (function.__doc__ or "").split("\n", 1)[0].rstrip(".")


def _check(function: Callable[..., object], prefix: str = "", warning: bool = False) -> Check:
    name = prefix + function.__name__
    return Check(name, _first_sentence(function), Severity.WARNING if warning else Severity.ERROR)


_GROUP_RULES: tuple[SampleRule, ...] = (
    grouping.output_count,
    grouping.slot_index,
    clones.groups_once,
    clones.text_clones,
)
_SAMPLE_ERRORS: tuple[SampleRule, ...] = (
    grouping.group_prompt,
    grouping.group_media,
    grouping.group_params,
    grouping.group_arm,
    grouping.weight_version,
    grouping.seed_distinct,
    tokens.response_length,
    tokens.rollout_log_probs_length,
    tokens.token_ids,
    tokens.logprob_values,
    tokens.loss_mask_length,
    tokens.loss_mask_values,
    tokens.prompt_tokens,
    tokens.token_arrays,
    tokens.encoded_media,
    media.media_placeholders,
    media.generated_placeholders,
    finish.finish_reason,
    finish.finish_length,
    finish.finish_stop,
    finish.status,
    finish.context,
    clones.clones,
    clones.clone_prefixes,
    clones.clones_elsewhere,
    scores.reward_missing,
    scores.reward_recomputed,
    scores.advantage_recomputed,
)
_SAMPLE_WARNINGS: tuple[SampleRule, ...] = (
    grouping.row_order,
    grouping.seed_reuse,
    tokens.logprob_tail,
    tokens.logprob_low,
    tokens.cached_tokens,
)
_SAMPLE_RULES: tuple[tuple[Check, str, SampleRule], ...] = (
    *((_check(rule), "groups", rule) for rule in _GROUP_RULES),
    *((_check(rule), "samples", rule) for rule in _SAMPLE_ERRORS),
    (_check(mismatch.trainer_engine_gap), "rollouts", mismatch.trainer_engine_gap),
    *((_check(rule, warning=True), "samples", rule) for rule in _SAMPLE_WARNINGS),
)

_STATUS = Check("exchange_status", "Every request was answered with status 200", Severity.WARNING)
_IDS = Check("exchange_unique_ids", "Every output has an id of its own, over all answers")
_VIEWS = _check(streams.views_grow, "exchange_")
_EXCHANGE_RULES: tuple[tuple[Check, wire.ExchangeRule], ...] = tuple(
    (_check(rule, "exchange_"), rule)
    for rule in (
        wire.response_shape,
        wire.output_count,
        wire.output_order,
        wire.usage_counts,
        wire.one_weight_version,
        wire.request_honoured,
        wire.request_lists,
    )
)
_OUTPUT_RULES: tuple[tuple[Check, outputs.OutputRule], ...] = (
    *(
        (_check(rule, "exchange_"), rule)
        for rule in (
            outputs.logprobs_returned,
            outputs.top_logprobs,
            outputs.rollout_log_probs_length,
            outputs.logprob_values,
            outputs.finish_reason,
            outputs.finish_length,
            outputs.finish_stop,
            outputs.abort_shape,
            outputs.version_spans,
            outputs.prompt_logprobs,
        )
    ),
    *(
        (_check(rule, "exchange_", warning=True), rule)
        for rule in (outputs.empty_output, outputs.cached_tokens, outputs.logprob_tail)
    ),
)

_ACCOUNTED = _check(accounting.requests_accounted)
_PARAMS = _check(accounting.params_sent)
_RECEIVED = _check(accounting.samples_received)
_TEXTS = _check(accounting.texts_received)
_MASKS = _check(accounting.mask_complete)
_ANSWERED = _check(accounting.groups_answered)

_ARMS_RULES: tuple[tuple[Check, str, ArmsRule], ...] = tuple(
    (_check(rule, "arms_"), unit, rule)
    for unit, rule in (
        ("groups", arms.same_groups),
        ("groups", arms.same_prompts),
        ("groups", arms.same_media),
        ("groups", arms.same_params),
        ("groups", arms.output_count),
        ("finish reasons", arms.finish_reasons),
        ("fields", arms.fields_present),
    )
)

_REQUESTS = _check(requests.same_requests, "arms_")
_METRICS = _check(curves.metrics_recomputed)
_CURVE_RULES: tuple[tuple[Check, str, Callable[[Sequence[RunCurves]], Outcome]], ...] = (
    (_check(curves.regular_steps, "curve_"), "curves", curves.regular_steps),
    (_check(curves.steps_once, "curve_", warning=True), "curves", curves.steps_once),
    (_check(curves.finite_values, "curve_"), "curves", curves.finite_values),
    (_check(curves.train_rollout_gap, "curve_"), "runs", curves.train_rollout_gap),
    (_check(curves.climbing_gap, "curve_"), "curves", curves.climbing_gap),
)
_ARMS_STEPS = _check(curves.arms_same_steps, "curve_")

CHECKS: tuple[Check, ...] = (
    *(check for check, _, _ in _SAMPLE_RULES),
    _STATUS,
    _IDS,
    _VIEWS,
    *(check for check, _ in _EXCHANGE_RULES),
    *(check for check, _ in _OUTPUT_RULES),
    _ACCOUNTED,
    _PARAMS,
    _RECEIVED,
    _TEXTS,
    _MASKS,
    _ANSWERED,
    *(check for check, _, _ in _ARMS_RULES),
    _REQUESTS,
    _METRICS,
    *(check for check, _, _ in _CURVE_RULES),
    _ARMS_STEPS,
)
"""Every check of the contract: name, rule and severity."""


def check_samples(rollout: Rollout, rules: Rules) -> list[Finding]:
    """Checks every sample and group of a rollout, or of several one after the other."""
    return check_batches([rollout], rules)


def check_batches(batches: Iterable[Rollout], rules: Rules) -> list[Finding]:
    """As `check_samples`, over parts of a stream: token columns of one part at a time, groups across parts.

    Memory is that of one part, and some 300 bytes a sample.
    """
    return check_facts([facts_of(batch, rules) for batch in batches], rules)


def check_facts(parts: Sequence[Facts], rules: Rules) -> list[Finding]:
    """As `check_batches`, of samples that were read already by `facts_of` under the same rules."""
    facts = _joined(parts, rules)
    return _sample_findings(facts, groups_of(facts), rules)


def _joined(parts: Sequence[Facts], rules: Rules) -> Facts:
    return Facts.concatenate(parts) if parts else facts_of(Rollout.from_samples([]), rules)


def _sample_findings(facts: Facts, groups: Groups, rules: Rules) -> list[Finding]:
    """Findings of every rule over samples, by the rules given and what the samples themselves show."""
    inferred = infer(facts, groups, rules)
    findings: list[Finding] = []
    for check, unit, rule in _SAMPLE_RULES:
        outcome, name = rule(facts, groups, inferred.rules), RULE_OF_CHECK.get(check.name, "")
        if name in inferred.accepted:
            outcome = replace(outcome, inferred=inferred.accepted[name])
        elif name in inferred.refused and not outcome.checked:
            outcome = replace(outcome, missing=inferred.refused[name])
        findings += findings_of(check, outcome, unit)
    return findings


def check_exchanges(exchanges: Iterable[Exchange], rules: Rules) -> list[Finding]:
    """Checks every exchange, one at a time; only ids and counts are kept."""
    tally, seen = Tally(), set[str]()
    for number, exchange in enumerate(exchanges):
        case = exchange.extra.get("case")
        name = f"exchange {number}" + (f" ({case})" if case else "")
        if (
            "sampling_params" not in exchange.request
            and exchange.status == 200
            and not exchange.request.keys() & {"text", "input_ids"}
        ):
            continue  # a control request, such as an abort
        tally.add(_STATUS.name, _status(exchange, name))
        if exchange.status == 200:
            tally.add(_VIEWS.name, streams.views_grow(exchange, name))
            _check_answer(streams.settled(exchange), name, rules, tally, seen)
    missing = Message("the exchanges lack what the rule needs")
    return [
        finding
        for check, unit in _WIRE_UNITS
        for finding in findings_of(check, tally.outcome(check.name, missing), unit)
    ]


_WIRE_UNITS: Sequence[tuple[Check, str]] = (
    (_STATUS, "requests"),
    (_IDS, "answers"),
    (_VIEWS, "streams"),
    *((check, "answers") for check, _ in _EXCHANGE_RULES),
    *((check, "outputs") for check, _ in _OUTPUT_RULES),
)


def _status(exchange: Exchange, name: str) -> list[Case]:
    if exchange.status == 200:
        return []
    answer = str(exchange.response)[:120]
    template = "status {status} on attempt {attempt}: {answer}"
    message = Message(template, status=exchange.status, attempt=exchange.attempt, answer=answer)
    return [wire.exchange_case(exchange, name, "status", 200, exchange.status, message)]


def _check_answer(exchange: Exchange, name: str, rules: Rules, tally: Tally, seen: set[str]) -> None:
    tally.add(_IDS.name, wire.unique_ids(exchange, name, seen))
    for check, exchange_rule in _EXCHANGE_RULES:
        tally.add(check.name, exchange_rule(exchange, name, rules))
    for output in wire.outputs_of(exchange, name):
        for check, output_rule in _OUTPUT_RULES:
            tally.add(check.name, output_rule(output, rules))


def check_recording(
    batches: Iterable[Rollout], exchanges: Iterable[Exchange], rules: Rules, chunk: accounting.Chunk = None
) -> list[Finding]:
    """All of `check_batches`, `check_exchanges` and `check_accounting`, with each stream read once.

    Memory is that of one part, one exchange, and some 600 bytes a sample.
    """
    accounts = accounting.Accounts()
    of_exchanges = check_exchanges(accounting.booked(exchanges, accounts), rules)
    parts = [part_of(batch, rules, accounts) for batch in batches]
    return _recording_findings(parts, of_exchanges, accounts, rules, chunk)


@dataclass(frozen=True, slots=True)
class Part:
    """What the contract keeps of some samples once they are read: some 600 bytes a sample, whatever their length."""

    facts: Facts
    receipts: accounting.Receipts


def part_of(rollout: Rollout, rules: Rules, accounts: accounting.Accounts | None = None) -> Part:
    """Reads some samples, for `check_parts` and `check_arms_of_parts`.

    Args:
        rollout: The samples.
        rules: What they were asked to be.
        accounts: The booked exchanges, which a sample that is a chain of several outputs is held to; without them each
            sample counts as one output.
    """
    return Part(facts_of(rollout, rules), accounting.receipts_of(rollout, accounts or accounting.Accounts()))


def check_parts(
    parts: Sequence[Part], exchanges: Iterable[Exchange], rules: Rules, chunk: accounting.Chunk = None
) -> list[Finding]:
    """As `check_recording`, of samples that were read already by `part_of` under the same rules."""
    accounts = accounting.Accounts()
    of_exchanges = check_exchanges(accounting.booked(exchanges, accounts), rules)
    return _recording_findings(parts, of_exchanges, accounts, rules, chunk)


def _recording_findings(
    parts: Sequence[Part],
    of_exchanges: Sequence[Finding],
    accounts: accounting.Accounts,
    rules: Rules,
    chunk: accounting.Chunk,
) -> list[Finding]:
    parts = parts or [part_of(Rollout.from_samples([]), rules)]
    facts = Facts.concatenate([part.facts for part in parts])
    receipts = accounting.Receipts.concatenate([part.receipts for part in parts])
    groups = groups_of(facts)
    return [
        *_sample_findings(facts, groups, rules),
        *of_exchanges,
        *_account_findings(facts, groups, receipts, accounts, chunk),
    ]


def check_accounting(rollout: Rollout, exchanges: Iterable[Exchange], chunk: int | None = None) -> list[Finding]:
    """Checks that requests and samples account for each other.

    Args:
        rollout: All samples of the rollouts that the exchanges were sent for.
        exchanges: Every attempt, failed ones too, with `rollout_id`, `group_index` and `arm`.
        chunk: Samples a request at most, where one group is asked for in several requests.
    """
    accounts = accounting.Accounts()
    for _ in accounting.booked(exchanges, accounts):
        pass
    facts = facts_of(rollout, Rules())
    return _account_findings(facts, groups_of(facts), accounting.receipts_of(rollout, accounts), accounts, chunk)


def _account_findings(
    facts: Facts, groups: Groups, receipts: accounting.Receipts, accounts: accounting.Accounts, chunk: accounting.Chunk
) -> list[Finding]:
    matching = accounting.match(facts, groups, receipts, accounts)
    outcomes = (
        (_ACCOUNTED, "groups", accounting.requests_accounted(facts, groups, accounts, matching, chunk)),
        (_PARAMS, "groups", accounting.params_sent(facts, groups, accounts)),
        (_RECEIVED, "groups", accounting.samples_received(facts, groups, accounts, matching)),
        (_TEXTS, "samples", accounting.texts_received(facts, groups, receipts, accounts, matching)),
        (_MASKS, "samples", accounting.mask_complete(facts, groups, matching)),
        (_ANSWERED, "groups", accounting.groups_answered(facts, groups, accounts)),
    )
    return [finding for check, unit, outcome in outcomes for finding in findings_of(check, outcome, unit)]


def check_arms(baseline: Rollout, experiment: Rollout, apart: Collection[str] = ()) -> list[Finding]:
    """Checks that both arms were asked for the same and record the same fields; what they sampled may differ.

    `apart` names the sampling parameters in which the arms differ on purpose.
    """
    return _arms_findings([facts_of(rollout, Rules()) for rollout in (baseline, experiment)], apart)


def check_arms_of_parts(
    baseline: Sequence[Part], experiment: Sequence[Part], apart: Collection[str] = ()
) -> list[Finding]:
    """As `check_arms`, of samples that were read already by `part_of`."""
    return _arms_findings([_joined([part.facts for part in parts], Rules()) for parts in (baseline, experiment)], apart)


def _arms_findings(arms_facts: Sequence[Facts], apart: Collection[str]) -> list[Finding]:
    baseline, experiment = ((without(facts, apart), groups_of(facts)) for facts in arms_facts)
    return [
        finding for check, unit, rule in _ARMS_RULES for finding in findings_of(check, rule(baseline, experiment), unit)
    ]


def check_requests(
    baseline: Iterable[Exchange], experiment: Iterable[Exchange], apart: Collection[str] = ()
) -> list[Finding]:
    """Checks that both arms asked for the same, group by group, but for what they set `apart`, whatever the form."""
    return findings_of(_REQUESTS, requests.same_requests(baseline, experiment, apart), "groups")


def check_metrics(rollouts: Mapping[int, Rollout], records: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """Checks that recorded metrics are those of the samples.

    Args:
        rollouts: The samples of each step, by step.
        records: Lines of ``metrics.jsonl``, each with its `step`; metrics of time, and those that samples do not hold,
            are left out.
    """
    return check_measured({step: rollout_metrics(rollout, 1.0) for step, rollout in rollouts.items()}, records)


def check_measured(measured: Mapping[int, Mapping[str, float]], records: Iterable[Mapping[str, Any]]) -> list[Finding]:
    """As `check_metrics`, given by step what `rollout_metrics` measures of its samples."""
    return findings_of(_METRICS, curves.metrics_recomputed(measured, records), "metrics")


def check_curves(baseline: Sequence[RunCurves], experiment: Sequence[RunCurves]) -> list[Finding]:
    """Checks the curves of both arms' runs: regular steps, each once, finite, and the same steps in both arms."""
    of_runs = check_run_curves([*baseline, *experiment])
    return [*of_runs, *findings_of(_ARMS_STEPS, curves.arms_same_steps(baseline, experiment), "metrics")]


def check_run_curves(runs: Sequence[RunCurves]) -> list[Finding]:
    """Checks the curves of runs of any arm: regular steps, each once, finite, and the gap of trainer and engine."""
    return [finding for check, unit, rule in _CURVE_RULES for finding in findings_of(check, rule(runs), unit)]


GAP_CHECKS = frozenset({"curve_train_rollout_gap", "curve_climbing_gap"})
"""The checks of curves that are about the gap of trainer and engine."""


def summarise(findings: Iterable[Finding]) -> dict[str, dict[str, int]]:
    """Per check: how many units it checked, how many fail, how many could not be compared."""
    counts: dict[str, dict[str, int]] = {}
    for finding in findings:
        names = ("checked", "failed", "not_compared")
        counts[finding.check] = {name: int(finding.evidence.get(name, 0)) for name in names}
    return counts
