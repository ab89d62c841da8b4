"""A report's files."""

from __future__ import annotations

from pathlib import Path

from parity.reports import data, junit, markdown, plots
from parity.reports.document import Report
from parity.store import write_atomically


def write_report(report: Report, directory: Path) -> list[Path]:
    """Writes report.md, report.json, junit.xml and the PNGs; the same report gives the same bytes.

    Pictures come first and report.md last, so that a report that is there is whole.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw(report)
    contents = {picture.file_name: picture.content for picture in pictures}
    contents["report.json"] = data.render(report)
    contents["junit.xml"] = junit.render(report)
    contents["report.md"] = markdown.render(report, pictures).encode()
    for name, content in contents.items():
        write_atomically(directory / name, content)
    return [directory / name for name in contents]
