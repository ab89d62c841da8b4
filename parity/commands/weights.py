"""Whether the engines of two arms hold the same weights, as far as they say."""

from __future__ import annotations

from parity.engines.several import Weights
from parity.findings import Finding, Level, Message, Status, Where


def weights_finding(baseline: Weights, other: Weights, one_checkpoint: bool) -> Finding:
    """What two engines say of their weights.

    Args:
        baseline: Of the baseline's engine.
        other: Of the other arm's.
        one_checkpoint: Whether both were started here from one checkpoint, or given it.
    """
    versions = {"baseline": str(baseline.version), "version": str(other.version), "engine": other.engine}
    if apart := baseline.parted(other):
        message = Message("{engine} holds other weights than the baseline: {apart}", engine=other.engine, apart=apart)
        status = Status.FAIL
    elif baseline.compared(other):
        message = Message(
            "{engine} holds the weights of the baseline: {count} digests are equal",
            engine=other.engine,
            count=len(baseline.digests.keys() & other.digests.keys()),
        )
        status = Status.PASS
    elif one_checkpoint:
        message = Message(
            "{engine} was given the baseline's checkpoint; no digest shows what it made of it", engine=other.engine
        )
        status = Status.PASS
    elif baseline.version != other.version:
        message = Message(
            "the weights of {engine} are labelled {version}, the baseline's {baseline}: are they the same?", **versions
        )
        status = Status.INCONCLUSIVE
    else:
        message = Message(
            "no digests show that {engine} holds the weights of the baseline, though both are labelled {version}",
            engine=other.engine,
            version=str(other.version),
        )
        status = Status.NOT_COMPARED
    return Finding("weights_equal", Level.CONTRACT, status, message, Where(field="weight_version"))
