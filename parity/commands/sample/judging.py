"""From both arms' samples and exchanges to findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parity.contract_checks import Rules, check_arms, check_recording
from parity.findings import Finding, Level, Message, Status, Where, listed, quantity
from parity.records.arms import set_apart
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout
from parity.records.sampling import SamplingConfig
from parity.stats import Evidence, sampling_findings


@dataclass(frozen=True, slots=True)
class Recorded:
    """Both arms' samples and exchanges, baseline first."""

    rollouts: tuple[Rollout, Rollout]
    exchanges: tuple[Sequence[Exchange], Sequence[Exchange]] = field(repr=False)


def contract_findings(config: SamplingConfig, rules: Rules, recorded: Recorded) -> list[Finding]:
    """The contract of each arm and of both together; every finding names its arm."""
    findings = []
    for arm, rollout, exchanges in zip(config.arms, recorded.rollouts, recorded.exchanges, strict=True):
        chunk = {arm: config.arm(arm).chunk}
        of_arm = [*check_recording([rollout], exchanges, rules, chunk), _arm_used_finding(arm, rollout)]
        findings += [finding.in_run(arm) for finding in of_arm]
    arms = check_arms(*recorded.rollouts, set_apart(config, config.arms))
    return findings + [finding.in_run(config.experiment) for finding in arms]


def _arm_used_finding(arm: str, rollout: Rollout) -> Finding:
    """Whether every sample was made by its arm; a sample that fell back to another arm is no evidence of it."""
    used = rollout.strings("arm")
    other = int(np.sum(used != arm))
    evidence = {"checked": len(used), "failed": other}
    if not len(used):
        none = Message("no sample was drawn")
        return Finding("arm_used", Level.CONTRACT, Status.NOT_COMPARED, none, evidence=evidence)
    samples = quantity(len(used), "samples")
    message = Message("{samples} came by the arm that was asked for", samples=samples)
    if other:
        ways = sorted({str(way) for way in used} - {arm})
        message = Message(
            "{other} of {samples} fell back to {arms}, so {arm} is not what was sampled",
            other=other,
            samples=samples,
            arms=listed(ways),
            arm=arm,
        )
    status = Status.INCONCLUSIVE if other else Status.PASS
    return Finding("arm_used", Level.CONTRACT, status, message, Where(field="arm"), arm, evidence=evidence)


def fixed_findings(config: SamplingConfig, rollouts: tuple[Rollout, Rollout], max_new_tokens: int) -> list[Finding]:
    """The findings of a design with a set number of groups: the evidence of watching, looked at once."""
    if not len(rollouts[0]):
        return Evidence.start(config.margins, config.reward_range).findings()
    rng = np.random.default_rng([config.seed, 1])
    return sampling_findings(*rollouts, config.margins, rng, config.reward_range, max_new_tokens)


def decided_in_all(findings: Mapping[str, Sequence[Finding]]) -> Message | None:
    """Why no further group is needed in any arm; None while one is. Where one arm differs, the others go on."""
    ends = [decided(of_arm) for of_arm in findings.values()]
    known = [end for end in ends if end is not None]
    return listed(dict.fromkeys(known), "; ") if len(known) == len(ends) else None


def decided(findings: Sequence[Finding]) -> Message | None:
    """Why no further group is needed; None while one is."""
    failing = [finding for finding in findings if finding.fails]
    if failing:
        names = dict.fromkeys(f"{finding.check} {finding.where.field or ''}".strip() for finding in failing)
        return Message("a difference is shown ({checks})", checks=listed(list(names)[:3]))
    if any(finding.status is Status.INCONCLUSIVE for finding in findings):
        return None
    return Message("parity is shown in everything that is compared")
