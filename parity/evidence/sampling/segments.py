"""Differences of arms by segment of prompts (L1), so that what hurts only hard prompts or long answers shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from parity.evidence.metric_findings import metric_finding
from parity.evidence.sampling.arms import ArmRollouts
from parity.evidence.sampling.sequential import ENOUGH, SignFlip, adjusted_log_e, detectable
from parity.evidence.values import Floats
from parity.findings import Finding, Level, Message, Status, listed, quantity
from parity.records.margins import METRICS, SAMPLING, Unit
from parity.records.samples import Rollout

SEGMENTS = "sampling_segment"

COMPARED = ("reward", "response_length", "negative_log_likelihood", "truncated")

FIRST_GROUPS = 64
"""Groups that say where thirds of a number begin, so that the segment of a group does not depend on later ones."""

FEWEST_GROUPS = 16
"""Groups of a segment that is compared."""

MOST_DATA_SETS = 12

DATA_SET_FIELDS = ("data_source", "dataset", "data_set", "source")
"""Fields of a prompt's row, or of its ``metadata``, that name its data set."""

Labels = npt.NDArray[np.object_]

_finding = partial(metric_finding, Level.SAMPLING, SEGMENTS)


def segment_findings(
    baseline: Rollout, experiment: Rollout, margins: Mapping[str, float] | None = None
) -> list[Finding]:
    """Do the arms differ in a segment of the prompts?

    Segments are the data set, the third that a prompt's mean reward, mean response length and own length lie in, and
    whether it has images. The means are those of both arms together: exchanging the arms of a prompt moves it to no
    other segment, so that a difference in a segment has either sign alike likely if the arms sample alike, as in the
    whole (`SignFlip`). One family of all segments and metrics, corrected by closed testing: the chance that any segment
    is said to differ is at most 5 % if none does, whenever sampling stops.

    One finding a way to segment, with the estimates of all its segments. It fails where a difference is shown in one
    and its mean lies beyond the margin.

    Args:
        baseline: The baseline's samples, the same number in every group.
        experiment: The experiment's, of the same prompts under the same (rollout_id, group_index).
        margins: The largest difference that does not matter, by metric; those of `SAMPLING` where not given.
    """
    arms = ArmRollouts.of(baseline, experiment)
    allowed = {**SAMPLING, **(margins or {})}
    tables = {name: values for name in COMPARED if (values := arms.values(name)) is not None}
    means = {name: (first.means, second.means) for name, (first, second) in tables.items()}
    ways = {name: labels for name, labels in _segments(arms, means).items() if labels is not None}
    rows = {
        (way, str(segment), metric): _measured(*means[metric], labels == segment, metric, allowed[metric])
        for way, labels in ways.items()
        for segment in dict.fromkeys(labels.tolist())
        for metric in means
        if (labels == segment).sum() >= FEWEST_GROUPS
    }
    adjusted = adjusted_log_e({name: row["log_e"] for name, row in rows.items()})
    for name, row in rows.items():
        row["log_e_corrected"] = adjusted[name]
        row["seen_from"] = detectable(len(rows), row["units"]) * row.pop("deviation")
        row["differs"] = adjusted[name] >= ENOUGH and abs(row["estimate"]) > row["margin"]
    return [
        _of_way(way, {(segment, metric): row for (of, segment, metric), row in rows.items() if of == way})
        for way in _WAYS
    ]


_WAYS = {
    "data set": Message("data set"),
    "difficulty": Message("difficulty"),
    "answer length": Message("answer length"),
    "prompt length": Message("prompt length"),
    "images": Message("images"),
}


def _segments(arms: ArmRollouts, means: Mapping[str, tuple[Floats, Floats]]) -> dict[str, Labels | None]:
    """The segment of each group, (G,), by way to segment; None where the groups do not say."""
    pooled = {name: (first + second) / 2 for name, (first, second) in means.items()}
    firsts = np.arange(len(arms.groups)) * arms.size
    extras = [arms.baseline.extra(int(row)) for row in firsts]
    images = arms.baseline.table.column("media_sha256").to_pylist()
    shown = np.array(["with images" if images[row] else "without images" for row in firsts], dtype=object)
    return {
        "data set": _data_sets(extras),
        "difficulty": _thirds(pooled.get("reward"), ("hard", "middle", "easy")),
        "answer length": _thirds(pooled.get("response_length"), ("short", "middle", "long")),
        "prompt length": _thirds(_prompt_lengths(arms.baseline, firsts, extras), ("short", "middle", "long")),
        "images": shown if len(set(shown)) > 1 else None,
    }


def _thirds(values: Floats | None, names: tuple[str, str, str]) -> Labels | None:
    """The third that each value lies in, by the first groups; equal values are in one third."""
    if values is None:
        return None
    low, high = np.quantile(values[:FIRST_GROUPS], [1 / 3, 2 / 3])
    labels = np.where(values <= low, names[0], np.where(values > high, names[2], names[1])).astype(object)
    return labels if len(set(labels)) > 1 else None


def _prompt_lengths(
    rollout: Rollout, firsts: npt.NDArray[np.int64], extras: Sequence[Mapping[str, Any]]
) -> Floats | None:
    """The length of each group's prompt, in tokens where its ids are known, else of its text."""
    ids = rollout.ragged("prompt_ids")
    if ids.valid.all():
        return np.asarray(ids.lengths[firsts], dtype=np.float64)
    texts = [extra.get("prompt") for extra in extras]
    if not all(isinstance(text, str) for text in texts):
        return None
    return np.array([len(str(text)) for text in texts], dtype=np.float64)


def _data_sets(extras: Sequence[Mapping[str, Any]]) -> Labels | None:
    """The data set of each group; all but the most frequent are one."""
    found = [_data_set(extra) for extra in extras]
    known, counts = np.unique([name for name in found if name is not None], return_counts=True)
    if len(known) < 2:
        return None
    frequent = set(known[np.argsort(-counts, kind="stable")][:MOST_DATA_SETS].tolist())
    return np.array([name if name in frequent else "other" for name in found], dtype=object)


def _data_set(extra: Mapping[str, Any]) -> str | None:
    inner = extra.get("metadata")
    for row in (extra, inner if isinstance(inner, Mapping) else {}):
        for name in DATA_SET_FIELDS:
            if isinstance(row.get(name), str):
                return str(row[name])
    return None


def _measured(
    baseline: Floats, experiment: Floats, rows: npt.NDArray[np.bool_], metric: str, margin: float
) -> dict[str, Any]:
    """One metric's difference in one segment, in the metric's unit."""
    differences = (experiment - baseline)[rows]
    mean = float(baseline[rows].mean())
    return {
        "baseline": mean,
        "estimate": float(differences.mean()),
        "margin": margin * abs(mean) if METRICS[metric].unit is Unit.SHARE else margin,
        "log_e": float(SignFlip().update(differences).log_e),
        "deviation": float(differences.std(ddof=1)),
        "units": int(rows.sum()),
    }


_METHOD = Message("sign-flip e-process by segment, closed testing over all of them")


def _of_way(way: str, rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Finding:
    """What was seen of one way to segment: passes where no segment differs, and says what would have been seen."""
    if not rows:
        message = Message(
            "{way}: the prompts do not say, are all alike, or are fewer than {fewest} in each segment",
            way=_WAYS[way],
            fewest=FEWEST_GROUPS,
        )
        return _finding(way, Status.NOT_COMPARED, message, {})
    shown = [_difference(*name, row) for name, row in rows.items() if row["differs"]]
    if shown:
        message = Message("by {way}: {differences}", way=_WAYS[way], differences=listed(shown[:3], "; "))
    else:
        nearest = max(rows, key=lambda name: rows[name]["log_e_corrected"])
        message = Message(
            "by {way}: no difference beyond its margin is shown in {rows}; the clearest: {difference}, where "
            "{size:.2g} or more would have been seen 4 times in 5",
            way=_WAYS[way],
            rows=quantity(len(rows), "comparisons"),
            difference=_difference(*nearest, rows[nearest]),
            size=rows[nearest]["seen_from"],
        )
    table = {f"{metric}, {segment}": row for (segment, metric), row in rows.items()}
    largest = max(row["log_e_corrected"] for row in rows.values())
    evidence = {"segments": table, "log_e_corrected": largest, "unit": "prompt group", "method": _METHOD}
    return _finding(way, Status.FAIL if shown else Status.PASS, message, evidence)


def _difference(segment: str, metric: str, row: Mapping[str, Any]) -> Message:
    return Message(
        "{metric} differs by {estimate:+.4g} where it is {segment} ({groups}, margin ±{margin:.4g}, corrected e-value "
        "{e_value:.3g})",
        metric=metric,
        estimate=row["estimate"],
        segment=segment,
        groups=quantity(row["units"], "prompt groups"),
        margin=row["margin"],
        e_value=float(np.exp(min(row["log_e_corrected"], 50))),
    )
