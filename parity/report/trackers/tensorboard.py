"""TensorBoard: a folder of event files for each run, and one for the comparison, under the hosts' tags."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from parity.report.document import Report
from parity.report.trackers import content

SUFFIX = ".parity"
"""What ends the names of the event files that this module writes, and replaces when it writes a run again."""


def publish(report: Report, directory: Path, to: Path) -> Iterator[str]:
    """Writes ``<to>/<experiment>/<run>`` and ``<to>/<experiment>/comparison``; values keep 32 bits, as always there."""
    folder = to / content.label(directory)
    try:
        for run in content.tracked_runs(report):
            points = (
                (step, {"tag": metric, "simple_value": value})
                for metric, curve in run.curves.items()
                for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
            )
            _write(folder / content.safe_name(run.name), points)
        _write(folder / "comparison", _comparison(report, directory))
    except OSError as error:
        yield f"TensorBoard: not written: {error}"
    else:
        yield f"TensorBoard: tensorboard --logdir {folder}"


def _write(folder: Path, values: Iterator[tuple[int, Mapping[str, Any]]]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
        earlier.unlink()
    writer = EventFileWriter(str(folder), filename_suffix=SUFFIX)
    now = time.time()
    for step, value in values:
        writer.add_event(Event(wall_time=now, step=step, summary=Summary(value=[Summary.Value(**value)])))
    writer.close()


def _comparison(report: Report, directory: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.util.tensor_util import make_tensor_proto

    markdown = (directory / "report.md").read_text()
    for tag, said in (("verdict", content.words(report)), ("report", markdown)):
        metadata = create_summary_metadata(display_name=tag, description="")
        yield 0, {"tag": tag, "tensor": make_tensor_proto([said.encode()]), "metadata": metadata}
    for name, value in content.numbers(report).items():
        yield 0, {"tag": f"comparison/{name}", "simple_value": value}
    for path in sorted(directory.glob("*.png")):
        picture = path.read_bytes()
        width, height = struct.unpack(">II", picture[16:24])
        image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=picture)
        yield 0, {"tag": path.stem, "image": image}
