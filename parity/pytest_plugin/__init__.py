"""A plug-in of pytest: the contract in a host's own tests, and an engine held to the protocol.

`parity_engine` is an engine to ask, `parity_check` holds what a test made of its answers to the contract, and
`parity_baseline` compares it with what a recorded revision made of the same answers. `pytest --parity-url http://…`
asks that engine, and adds the conformance suite, one test a case.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import pytest

if TYPE_CHECKING:  # pytest loads this module in every project that has parity installed
    from parity.contract_checks import Rules
    from parity.engines import EngineClient
    from parity.findings import Finding
    from parity.pytest_plugin.front import Front
    from parity.pytest_plugin.judging import Baseline
    from parity.records.exchanges import Exchange

POLICY_CONTEXT = 4096
"""Tokens of prompt and response that the plug-in's own policy takes; a token is a byte."""

MARKERS = (
    "parity(required=(), chunk=None, **rules): what parity_check is told in this test; required names checks that must "
    "have been compared, rules are the fields of parity.contract_checks.Rules",
    "parity_case: a case of the conformance suite, which --parity-url adds",
)

LONGEST_NAME = 200
"""Bytes of a file's name, of which file systems take 255."""

UNCALLED = pytest.StashKey[bool]()
"""Whether a test requested `parity_baseline` and has not called it."""


@dataclass(frozen=True, slots=True)
class EngineUnderTest:
    """An engine that keeps the exchanges of this test.

    Attributes:
        url: The base URL.
        exchanges: The requests to `/generate` and their responses so far.
    """

    url: str
    exchanges: Sequence[Exchange]

    @property
    def host(self) -> str:
        """The host alone, for hosts that want it so."""
        return str(urlsplit(self.url).hostname)

    @property
    def port(self) -> int:
        """The port alone."""
        return int(urlsplit(self.url).port or 80)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of group `parity`."""
    group = parser.getgroup("parity", "contract of rollouts, conformance of an SGLang-compatible engine")
    group.addoption("--parity-url", metavar="URL", help="Ask this engine, and add the conformance suite's cases.")
    group.addoption("--parity-control", action="store_true", help="Also update its weights, flush, abort and pause.")
    group.addoption("--parity-destructive", action="store_true", help="Also send what is known to end some servers.")
    group.addoption("--parity-baseline", metavar="DIR", type=Path, help="Where parity_baseline finds its recordings.")
    group.addoption("--parity-record", action="store_true", help="Write these recordings, and compare nothing.")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if config.getoption("--parity-record") and not config.getoption("--parity-baseline"):
        raise pytest.UsageError("--parity-record needs --parity-baseline DIR")
    changed = config.getoption("--parity-url") and config.getoption("--parity-control")
    if changed and config.getoption("dist", "no") != "no":  # pytest-xdist's
        raise pytest.UsageError("--parity-control changes the engine that all workers of pytest-xdist ask; use -n 0")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds the cases to what was collected, before `-k` and the like choose."""
    if config.getoption("--parity-url"):
        from parity.pytest_plugin import cases

        items.extend(cases.items(session))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fails a test that requested `parity_baseline` and compared nothing, one of a `unittest.TestCase` too."""
    result = yield
    if item.stash.get(UNCALLED, False):
        pytest.fail("parity_baseline was not called: nothing was compared", pytrace=False)
    return result


@pytest.fixture(scope="session")
def _parity_policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The checkpoint of a small policy with random weights."""
    try:
        from parity.trainer.policy import build_policy, policy_config, save_policy
    except ImportError as error:
        pytest.fail(f"an engine of its own needs rollout-parity[train] ({error}); or --parity-url", pytrace=False)
    policy = build_policy(0, policy_config(max_position_embeddings=POLICY_CONTEXT))
    return str(save_policy(policy, tmp_path_factory.mktemp("parity") / "policy"))


@pytest.fixture(scope="session")
def _parity_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str | None]]:
    """The URL of the engine, and the checkpoint that it names; `None` if the plug-in started it."""
    import asyncio

    from parity.engines import open_engine
    from parity.errors import EngineError

    if url := request.config.getoption("--parity-url"):
        try:
            engine = open_engine(url, Path(), Path())
            served = asyncio.run(_model_path(engine.client()))
        except EngineError as error:
            pytest.fail(str(error), pytrace=False)
        yield engine.url, served
        return
    policy = Path(request.getfixturevalue("_parity_policy"))
    engine = open_engine("embedded", policy, tmp_path_factory.mktemp("parity-log"))
    try:
        yield engine.url, None
    finally:
        engine.stop()


async def _model_path(client: EngineClient) -> str:
    """The checkpoint that an engine names, or an empty text."""
    async with client:
        return str((await client.model_info()).get("model_path") or "")


@pytest.fixture
def _parity_front(request: pytest.FixtureRequest) -> Iterator[Front]:
    """The engine of the test."""
    from parity.pytest_plugin.front import passing_on, replaying

    if "parity_baseline" in request.fixturenames and (baseline := _recorded(request)):
        if baseline.exchanges is None:
            pytest.fail(f"{_directory(request)}: no exchanges in this recording; --parity-record", pytrace=False)
        front_of_test = replaying(baseline.exchanges, baseline.answers)
    else:
        url, _ = request.getfixturevalue("_parity_server")
        given = request.config.getoption("--parity-url")
        front_of_test = passing_on(url, control=request.config.getoption("--parity-control") or not given)
    with front_of_test as front:
        yield front
    if front.refused:
        pytest.fail("\n".join(dict.fromkeys(front.refused)), pytrace=False)


@pytest.fixture
def parity_engine(_parity_front: Front) -> EngineUnderTest:
    """An engine to ask: that of --parity-url, else one that is started once a session, with a small random policy.

    In a test with `parity_baseline` that has a recording, the recorded answers are given and no engine is started.
    """
    return EngineUnderTest(_parity_front.url, _parity_front.exchanges)


@pytest.fixture
def parity_checkpoint(request: pytest.FixtureRequest) -> str | None:
    """The checkpoint that `parity_engine` serves or served, for a tokenizer; `None` where it does not say."""
    if "parity_baseline" in request.fixturenames and (baseline := _recorded(request)):
        served = baseline.checkpoint
    else:
        _, served = request.getfixturevalue("_parity_server")
    return (request.getfixturevalue("_parity_policy") if served is None else served) or None


@pytest.fixture
def parity_check(request: pytest.FixtureRequest) -> Callable[..., list[Finding]]:
    """`parity_check(samples, required=(), chunk=None, **rules)`: fails the test where the contract is broken.

    `samples` are a path, `parity.records.samples.Sample`s or the host's own; `None` where there are none. What the test
    asked of `parity_engine` is checked too, and against the samples. The marker `parity` gives what the call does not.
    """
    marked = _marked(request)

    def check(samples: Any = None, **options: Any) -> list[Finding]:
        from parity.pytest_plugin.judging import contract_findings

        rules = marked | options
        required, chunk = rules.pop("required", ()), rules.pop("chunk", None)
        if isinstance(required, str):
            pytest.fail(f"required is {required!r}, not a list of checks", pytrace=False)
        front = _front_of(request)  # now, since the test may have requested its engine meanwhile
        with _readable():
            findings = contract_findings(samples, front.exchanges if front else None, _rules(rules), chunk)
        return _passing(findings, required)

    return check


@pytest.fixture
def parity_baseline(request: pytest.FixtureRequest) -> Callable[[Any], list[Finding]]:
    """`parity_baseline(samples)`: fails the test where its samples are not those of its recording.

    With --parity-record it writes the recording, and the test ends as skipped. Without --parity-baseline it ends as
    skipped too.
    """
    group_size = _marked(request).get("group_size")
    request.node.stash[UNCALLED] = True

    def compare(samples: Any) -> list[Finding]:
        from parity.pytest_plugin.judging import Baseline, rollout_of

        if not request.node.stash[UNCALLED]:
            pytest.fail("parity_baseline was called before; a test has one recording", pytrace=False)
        request.node.stash[UNCALLED] = False
        if request.config.getoption("--parity-baseline") is None:
            pytest.skip("not compared: --parity-baseline names no recordings")
        with _readable():
            rollout = rollout_of(samples, group_size)
        front = _front_of(request)
        exchanges = front.exchanges if front else None
        baseline = _recorded(request)
        if baseline is not None:
            return _passing(baseline.findings(rollout, exchanges))
        _, served = request.getfixturevalue("_parity_server") if front else (None, None)
        Baseline(rollout, exchanges, front.answers if front else {}, served).write(_directory(request))
        pytest.skip(f"recorded in {_directory(request)}, nothing compared")

    return compare


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The options of the markers; closer ones take precedence."""
    options: dict[str, Any] = {}
    for marker in request.node.iter_markers("parity"):
        if marker.args:
            raise pytest.UsageError(f"{request.node.nodeid}: the marker parity takes names with values")
        options = dict(marker.kwargs) | options
    return options


def _rules(options: dict[str, Any]) -> Rules:
    """The rules of some options; an unknown name fails the test."""
    from parity.contract_checks import Rules

    known = [rule.name for rule in fields(Rules)]
    if unknown := [name for name in options if name not in known]:
        rules = ", ".join(["required", "chunk", *known])
        pytest.fail(f"there is no rule {', '.join(unknown)}; the rules are {rules}", pytrace=False)
    return Rules(**options)


def _front_of(request: pytest.FixtureRequest) -> Front | None:
    """The front of the test's engine, if it has one."""
    if "parity_engine" not in request.fixturenames:
        return None
    front: Front = request.getfixturevalue("_parity_front")
    return front


def _directory(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.getoption("--parity-baseline"), *map(_file_name, request.node.nodeid.split("::")))


def _file_name(part: str) -> str:
    """A part of a test's name as one of a path, which must not be too long for a file system, nor lead upwards."""
    name = quote(part, "[]")
    if len(name) <= LONGEST_NAME and name.strip("."):
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.sha256(part.encode()).hexdigest()[:16]}"


def _recorded(request: pytest.FixtureRequest) -> Baseline | None:
    """The recording of this test, unless none is to be compared with."""
    from parity.pytest_plugin.judging import Baseline

    if request.config.getoption("--parity-record") or request.config.getoption("--parity-baseline") is None:
        return None
    if not _directory(request).is_dir():
        pytest.fail(f"{_directory(request)}: no recording of this test; --parity-record writes it", pytrace=False)
    with _readable():
        return Baseline.read(_directory(request))


@contextmanager
def _readable() -> Iterator[None]:
    """Fails the test with the message of an error of parity, without parity's code."""
    from parity.errors import ParityError

    try:
        yield
    except ParityError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def _passing(findings: list[Finding], required: Collection[str] = ()) -> list[Finding]:
    """The findings, unless one fails, nothing was compared, or a required check was not."""
    from parity.findings import Status

    compared = {finding.check for finding in findings if finding.status is not Status.NOT_COMPARED}
    wrong = [f"{finding.check}: {finding.message}" for finding in findings if finding.fails]
    wrong += [f"{name}: not compared, but required" for name in required if name not in compared]
    if wrong or not compared:
        pytest.fail("\n".join(dict.fromkeys(wrong)) or "nothing could be compared", pytrace=False)
    return findings
