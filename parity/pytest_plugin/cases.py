"""The conformance suite's cases as tests."""

from __future__ import annotations

from typing import Any

import pytest

from parity.conformance import CASES, ConformanceCase, check_engine
from parity.errors import EngineError
from parity.findings import Status

GONE = pytest.StashKey[str]()
"""Why the remaining cases cannot run: the engine no longer answers."""


def items(session: pytest.Session) -> list[pytest.Item]:
    """A test for each case."""
    return [CaseItem.from_parent(session, name=f"parity::{case.name}", case=case) for case in CASES]


class CaseFailed(Exception):
    """The engine broke the case's rule."""


class CaseItem(pytest.Item):
    """One case as a test: it fails with its findings, is skipped where nothing was compared, xfails where known."""

    def __init__(self, *, case: ConformanceCase, **more: Any) -> None:
        super().__init__(**more)
        self.case = case
        self.add_marker("parity_case")

    def runtest(self) -> None:
        """Runs the case against the engine."""
        if gone := self.config.stash.get(GONE, ""):
            pytest.skip(gone)
        try:
            findings = check_engine(
                self.config.getoption("--parity-url"),
                control=self.config.getoption("--parity-control"),
                destructive=self.config.getoption("--parity-destructive"),
                cases=(self.case,),
            )
        except EngineError as error:
            self.config.stash[GONE] = f"not compared: {error}"
            raise CaseFailed(str(error)) from error
        messages = "\n".join(finding.message for finding in findings)
        if any(finding.fails for finding in findings):
            raise CaseFailed(messages)
        if any(finding.status is Status.FAIL for finding in findings):
            pytest.xfail(messages)
        if all(finding.status is Status.NOT_COMPARED for finding in findings):
            pytest.skip(messages)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The findings alone, where the case failed."""
        return str(excinfo.value) if isinstance(excinfo.value, CaseFailed) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """The rule, under the case's name."""
        return self.path, None, f"{self.name}: {self.case.rule}"
