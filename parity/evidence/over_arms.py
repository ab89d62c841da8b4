"""Several arms against one baseline: what each comparison found, held to error rates over all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from parity.evidence.multiplicity import holm
from parity.evidence.sampling.sequential import ENOUGH
from parity.evidence.values import ALPHA
from parity.findings import Finding, Level, Message, Status

EVIDENCE = "trajectory_evidence"
"""The check that sums up those of `DIFFERENCE`."""
DIFFERENCE = "trajectory_difference"


def over_arms(findings: Mapping[str, Sequence[Finding]]) -> dict[str, list[Finding]]:
    """The findings of each arm's comparison with the baseline, with false statements in any arm held to 5 %.

    What an exact check found stays. A test that may be watched needs an e-value of 20 for each arm, 20 k for k of them,
    on a difference as on parity (a union bound). Tests of a set size are corrected by Holm (1979): differences over all
    arms and metrics, parity over arms by the largest p of each, as an arm is alike only if it is so in every metric. A
    statement that does not hold any more is inconclusive. One arm needs no correction.
    """
    arms = len(findings)
    if arms < 2:
        return {arm: list(of_arm) for arm, of_arm in findings.items()}
    every = {(arm, place): finding for arm, of_arm in findings.items() for place, finding in enumerate(of_arm)}
    training = {key: finding for key, finding in every.items() if finding.level is Level.TRAINING}
    differ = holm({key: p for key, finding in training.items() if (p := _p(finding, "p_difference", "p")) is not None})
    alike = {
        arm: max(values)
        for arm, of_arm in findings.items()
        if (values := [p for finding in of_arm if (p := _p(finding, "p_equivalence")) is not None])
    }
    factor = {arm: p / alike[arm] if alike[arm] > 0 else arms for arm, p in holm(alike).items()}
    needed = ENOUGH + float(np.log(arms))

    def corrected(arm: str, place: int, finding: Finding) -> Finding:
        difference = finding.evidence.get("log_e_corrected")
        parity = finding.evidence.get("log_e_parity")
        lacks_e = (
            difference is not None and float(difference) < needed
            if finding.status is Status.FAIL
            else finding.status is Status.PASS and parity is not None and ENOUGH <= float(parity) < needed
        )
        if lacks_e:
            return _open(
                finding, Message("with {arms} arms an e-value of {needed} decides", arms=arms, needed=20 * arms)
            )
        p = differ.get((arm, place)) if finding.status is Status.FAIL else None
        if finding.status is Status.PASS and (own := _p(finding, "p_equivalence")) is not None:
            p = min(own * factor[arm], 1.0)
        if p is not None and p >= ALPHA:
            return _open(finding, Message("p = {p:.2g} after Holm's correction over {arms} arms", p=p, arms=arms))
        return finding

    return {
        arm: _summed([corrected(arm, place, finding) for place, finding in enumerate(of_arm)])
        for arm, of_arm in findings.items()
    }


def _p(finding: Finding, *names: str) -> float | None:
    """The p-value of a test, by the first of its names that is there."""
    found = next((finding.evidence[name] for name in names if finding.evidence.get(name) is not None), None)
    return None if found is None else float(found)


def _open(finding: Finding, reason: Message) -> Finding:
    message = Message("{finding}; {reason}", finding=finding.message, reason=reason)
    return replace(finding, status=Status.INCONCLUSIVE, message=message)


def _summed(findings: list[Finding]) -> list[Finding]:
    """With what is said of all metrics of a mixed run brought in line with each of them."""
    statuses = {finding.status for finding in findings if finding.check == DIFFERENCE}
    holds = {
        Status.FAIL: Status.FAIL in statuses,
        Status.PASS: statuses <= {Status.PASS, Status.NOT_COMPARED},
    }
    return [
        replace(finding, status=Status.INCONCLUSIVE)
        if finding.check == EVIDENCE and not holds.get(finding.status, True)
        else finding
        for finding in findings
    ]
