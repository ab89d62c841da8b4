"""A plug-in of pytest: `pytest --parity-url http://…` holds an engine to the protocol, one test a case."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from parity.conformance import Case

GONE = pytest.StashKey[str]()
"""Why the cases that are left cannot be asked: the engine no longer answers."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of group `parity`."""
    group = parser.getgroup("parity", "conformance of an SGLang-compatible engine")
    group.addoption("--parity-url", metavar="URL", help="Add the conformance suite's cases, against this engine.")
    group.addoption("--parity-control", action="store_true", help="Also update its weights, flush, abort and pause.")
    group.addoption("--parity-destructive", action="store_true", help="Also send what is known to end some servers.")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds the cases to what was collected, before `-k` and the like choose."""
    if config.getoption("--parity-url"):
        from parity.conformance import CASES  # pytest loads this module in every project that has parity installed

        items.extend(CaseItem.from_parent(session, name=f"parity::{case.name}", case=case) for case in CASES)


class CaseFailed(Exception):
    """The engine broke the case's rule."""


class CaseItem(pytest.Item):
    """One case as a test: it fails with its findings, is skipped where nothing was compared, xfails where known."""

    def __init__(self, *, case: Case, **more: Any) -> None:
        super().__init__(**more)
        self.case = case

    def runtest(self) -> None:
        """Runs the case against the engine."""
        from parity.conformance import check_engine
        from parity.errors import EngineError
        from parity.findings import Status

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
