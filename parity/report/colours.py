"""The colours of verdicts and statuses on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from parity.findings import Status, Verdict

COLOURS: Mapping[Verdict, str] = {
    Verdict.PARITY: "green",
    Verdict.CURVES_AGREE: "green",
    Verdict.PASS: "green",
    Verdict.DIFFERENT: "red",
    Verdict.FAIL: "red",
    Verdict.INCONCLUSIVE: "yellow",
}
STATUS_COLOURS: Mapping[Status, str] = {
    Status.FAIL: "red",
    Status.INCONCLUSIVE: "yellow",
    Status.NOT_COMPARED: "dim",
    Status.PASS: "",
}
