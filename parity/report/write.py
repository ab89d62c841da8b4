"""A report's files."""

from __future__ import annotations

from pathlib import Path

from parity.records.store import write_atomically
from parity.report import comment, data, html, junit, markdown, plots
from parity.report.document import Report
from parity.report.words import Language, speaker


def write_report(
    report: Report, directory: Path, evidence: html.PageEvidence | None = None, language: Language = "en"
) -> list[Path]:
    """Writes report.html, report.md, comment.md, report.json, junit.xml and PNGs; the same report gives the same bytes.

    Pictures come first and report.md last, so that a report that is there is whole. The page shows the samples
    and events of `evidence`; `language` is that of the page and of report.md.
    """
    directory.mkdir(parents=True, exist_ok=True)
    pictures = plots.draw(report, speaker(language))
    contents = {picture.file_name: picture.content for picture in pictures}
    contents["report.json"] = data.render(report)
    contents["junit.xml"] = junit.render(report)
    contents["report.html"] = html.render(report, evidence or html.PageEvidence(), language)
    contents["comment.md"] = comment.render(report, language).encode()
    contents["report.md"] = markdown.render(report, pictures, language).encode()
    for name, content in contents.items():
        write_atomically(directory / name, content)
    return [directory / name for name in contents]
