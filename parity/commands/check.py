"""`parity check`: what lies at some paths, held to the contract, from files alone.

Files of one directory and format are one data set: its groups are checked together, and its exchanges, if there are
any, against its samples. Samples stream through the rules a part at a time, exchanges one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from parity.commands.file_by_file import Mapped, reader
from parity.commands.reward import reward_function
from parity.commands.validation import check_live_engines
from parity.contract_checks import (
    CHECKS,
    GAP_CHECKS,
    AdvantageFormula,
    Facts,
    Rules,
    check_batches,
    check_exchanges,
    check_facts,
    check_recording,
    check_run_curves,
    facts_of,
    samples_of,
)
from parity.errors import InputError, UsageError, did_you_mean
from parity.findings import Finding, Level, Message, Progress, Severity, Status, quantity
from parity.records.exchanges import Exchange
from parity.records.json_lines import in_batches
from parity.records.samples import Rollout, Sample
from parity.report.checks import CheckResult
from parity.sources.directories import Omission, dataset_of, find_sources, omission
from parity.sources.dumps.rows import rollout_of
from parity.sources.registry import Source

_OUTPUTS_AT_A_TIME = 2_048
_RULES_OVER_OUTPUTS = ("output_count", "weight_version", "clones", "clone_prefixes")
"""Rules over groups that recorded answers alone are held to; those over single outputs are the exchanges' own."""


_Key = tuple[Any, ...]


def _silent(done: int, total: int, text: str) -> None:
    """Watches nothing."""


@dataclass(slots=True)
class _Reading:
    """What was read so far, over all data sets; a file that breaks off is left out from there on, and listed."""

    of: int
    watcher: Progress
    omissions: list[Omission]
    errors: dict[Path, str] = field(default_factory=dict)
    begun: set[Path] = field(default_factory=set)
    samples: int = 0
    groups: int = 0
    exchanges: int = 0
    runs: int = 0

    def counts(self) -> dict[str, int]:
        """By name, for the result."""
        files = len(self.begun)
        counts = {"samples": self.samples, "groups": self.groups, "exchanges": self.exchanges, "files": files}
        return counts | ({"runs": self.runs} if self.runs else {})

    def report(self) -> None:
        """Tells the watcher how far it is."""
        text = f"{quantity(self.samples, 'samples')}, {quantity(self.exchanges, 'exchanges')}"
        self.watcher(len(self.begun), self.of, text)

    def leave_out(self, source: Source, error: InputError | UsageError) -> None:
        """Lists a file that broke off, once."""
        if source.path not in self.errors:
            self.errors[source.path] = str(error)
            self.omissions.append(omission(source.path, error))


def check_sources(
    sources: Sequence[str],
    *,
    group_size: int | None = None,
    max_new_tokens: int | None = None,
    context_length: int | None = None,
    vocab_size: int | None = None,
    stop_token_ids: Sequence[int] = (),
    stop_strings: bool = False,
    media_placeholders: Sequence[str] = (),
    temperature: float | None = None,
    reward: str | None = None,
    advantage: AdvantageFormula | None = None,
    partial_rollout: bool = False,
    required: Sequence[str] = (),
    destructive: bool = False,
    control: bool = False,
    determinism: bool = False,
    processes: int | None = None,
    ray: str | None = None,
    watcher: Progress = _silent,
) -> CheckResult:
    """Checks what lies at paths, or the engine at one URL, as the command's options say.

    A check that is `required` fails where it could not be compared; ``all`` stands for every check that is made.

    Raises:
        InputError: As `check_paths`.
        UsageError: As `check_paths`; or a URL stands beside other sources or lacks its http://, or options do not fit
            the source.
        EngineError: What answers at the URL is no engine, or nothing answers.
    """
    if any(source.startswith(("http://", "https://")) for source in sources):
        numbers = (group_size, max_new_tokens, context_length, vocab_size, temperature, reward, advantage)
        others = (stop_token_ids, stop_strings, media_placeholders, partial_rollout, required)
        if len(sources) > 1 or any(others) or any(option is not None for option in numbers):
            raise UsageError("a URL is checked alone, and without options about recorded rollouts")
        from parity.conformance import check_determinism, check_engine

        check_live_engines(sources)
        if determinism:
            findings = check_determinism(sources[0], control=control, progress=watcher)
        else:
            findings = check_engine(sources[0], destructive=destructive, control=control, progress=watcher)
        return CheckResult(tuple(findings), {"checks": len({finding.check for finding in findings})}, (), ())
    for source in sources:
        if re.fullmatch(r"[\w.-]+:\d+/?", source) and not Path(source).exists():
            raise UsageError(f"{source}: no such file; an engine is named by its URL: http://{source}")
    if destructive or control or determinism:
        raise UsageError("--destructive, --control and --determinism are about a live engine, at a URL")
    check_required(required)
    rules = Rules(
        group_size=group_size,
        max_new_tokens=max_new_tokens,
        context_length=context_length,
        vocab_size=vocab_size,
        stop_token_ids=frozenset(stop_token_ids),
        stop_strings=stop_strings,
        media_placeholders=frozenset(int(item) if item.isdecimal() else item for item in media_placeholders),
        temperature=temperature,
        reward=reward_function(reward) if reward else None,
        advantage=advantage,
        partial_versions=partial_rollout,
    )
    result = check_paths([Path(source) for source in sources], rules, watcher, processes, ray)
    return replace(result, findings=tuple(_require(result.findings, required)))


ALL = "all"


def check_required(names: Sequence[str]) -> None:
    """Refuses a required check that there is not.

    Raises:
        UsageError: One is unknown.
    """
    known = [ALL, *(check.name for check in CHECKS)]
    for name in names:
        if name not in known:
            raise UsageError(
                f"--require {name}: no such check{did_you_mean(name, known)}; docs/reference/checks.md has all"
            )


def _require(findings: Sequence[Finding], required: Sequence[str]) -> Iterator[Finding]:
    """The findings; a required check that compared nothing fails, and so does one that was not made."""
    compared = {finding.check for finding in findings if finding.status is not Status.NOT_COMPARED}
    names = dict.fromkeys(finding.check for finding in findings if ALL in required) or dict.fromkeys(required)
    for finding in findings:
        if finding.check in names and finding.check not in compared:
            message = Message("required, but {reason}", reason=finding.message)
            finding = replace(finding, status=Status.FAIL, severity=Severity.ERROR, message=message)
        yield finding
    for name in names.keys() - {finding.check for finding in findings}:
        message = Message("required, but nothing that was read can be held to it")
        yield Finding(name, Level.CONTRACT, Status.FAIL, message)


def check_paths(
    paths: Sequence[Path],
    rules: Rules,
    watcher: Progress = _silent,
    processes: int | None = None,
    ray: str | None = None,
) -> CheckResult:
    """Checks all samples and exchanges at some paths.

    Samples without exchanges may be read side by side; the result is that of reading them one after the other.

    Args:
        paths: Files and directories.
        rules: What the rollouts were asked to be.
        watcher: Told how far it is, by files.
        processes: How many processes read files; by default one a core where there is much to read.
        ray: The address of a Ray cluster to read files on.

    Raises:
        InputError: A file that is named itself cannot be read or is not recognised, or nothing is left to check.
        UsageError: A file that is named itself lacks what only the command can say.
    """
    found = find_sources(paths, rules.group_size)
    named = {path for path in paths if not path.is_dir()}
    checked = [source for source in found.sources if source.samples or source.exchanges]
    of_curves = [source for source in found.sources if source.runs]
    reading = _Reading(len(checked) + len(of_curves), watcher, list(found.omissions))
    datasets = datasets_of(checked)
    names = names_of([directory for directory, _ in datasets])
    findings: list[Finding] = []
    for name, (_, sources) in zip(names, datasets, strict=True):
        mapped = None
        if all(source.samples for source in sources):
            mapped = reader([source.path for source in sources], processes, ray)
        own = (
            check_facts(_facts(sources, rules, reading, mapped), rules)
            if mapped
            else _findings(sources, rules, reading)
        )
        findings += own if len(datasets) == 1 else [finding.in_run(name) for finding in own]
    findings += _curve_findings(of_curves, reading)
    if failed := next((path for path in reading.errors if path in named), None):
        raise InputError(reading.errors[failed])
    if not (reading.samples or reading.exchanges or reading.runs):
        reasons = "".join(f"\n  {one.path}: {one.reason}" for one in reading.omissions[:10])
        raise InputError(f"no samples, exchanges or metrics at {', '.join(map(str, paths))}{reasons}")
    sources_read = tuple((source.path, source.format) for source in found.sources if source.path in reading.begun)
    return CheckResult(tuple(findings), reading.counts(), sources_read, tuple(reading.omissions))


def samples_at(path: Path, group_size: int | None = None) -> Rollout:
    """All samples of one data set.

    Args:
        path: A file, or a directory with files of one format.
        group_size: Samples of each group, for formats that do not say which samples are one.

    Raises:
        InputError: There are no samples, several data sets, or a file that breaks off.
        UsageError: A format needs the group size.
    """
    found = find_sources([path], group_size)
    datasets = datasets_of([source for source in found.sources if source.samples])
    if len(datasets) != 1:
        names = ", ".join(str(directory) for directory, _ in datasets)
        reasons = "".join(f"\n  {one.path}: {one.reason}" for one in found.omissions[:10])
        what = f"several data sets; give the path of one: {names}" if names else f"no samples{reasons}"
        raise InputError(f"{path}: {what}")
    reading = _Reading(len(found.sources), _silent, list(found.omissions))
    rollouts = list(_parts(datasets[0][1], reading))
    if reading.errors:
        raise InputError("\n".join(reading.errors.values()))
    return Rollout.concatenate(rollouts)


def _curve_findings(sources: Sequence[Source], reading: _Reading) -> list[Finding]:
    """The rules over curves of every run: a gap of trainer and engine fails, odd steps and values are warnings."""
    runs = []
    for source in sources:
        assert source.runs is not None
        try:
            runs += [run.curves for run in source.runs()]
            reading.begun.add(source.path)
            reading.report()
        except (InputError, UsageError) as error:
            reading.leave_out(source, error)
    reading.runs = len(runs)
    return [
        finding if finding.check in GAP_CHECKS else replace(finding, severity=Severity.WARNING)
        for finding in (check_run_curves(runs) if runs else [])
    ]


def datasets_of(sources: Iterable[Source]) -> list[tuple[Path, list[Source]]]:
    """Sources by directory and format of samples; exchanges go with the samples beside them, if of one format."""
    datasets: dict[tuple[Path, str], list[Source]] = {}
    exchanges: dict[Path, list[Source]] = {}
    for source in sources:
        directory = dataset_of(source.path)
        if source.samples:
            datasets.setdefault((directory, source.format), []).append(source)
        else:
            exchanges.setdefault(directory, []).append(source)
    for directory, own in exchanges.items():
        beside = [key for key in datasets if key[0] == directory]
        datasets.setdefault(beside[0] if len(beside) == 1 else (directory, "exchanges"), []).extend(own)
    return [(directory, own) for (directory, _), own in datasets.items()]


def names_of(directories: Sequence[Path]) -> list[str]:
    """Names of data sets: the parts of their paths in which they differ, numbered where that does not suffice."""
    shared = 0
    for parts in zip(*(directory.parts for directory in directories), strict=False):
        if len(set(parts)) > 1:
            break
        shared += 1
    short = ["/".join(directory.parts[shared:]) or directory.name for directory in directories]
    return [name if short.count(name) == 1 else f"{name} #{number + 1}" for number, name in enumerate(short)]


def _findings(sources: Sequence[Source], rules: Rules, reading: _Reading) -> list[Finding]:
    with_samples = [source for source in sources if source.samples]
    with_exchanges = [source for source in sources if source.exchanges]
    if not with_exchanges:
        return check_batches(_parts(with_samples, reading), rules)
    if with_samples:
        recorded = _exchanges(with_exchanges, reading, counted=True)
        return check_recording(_parts(with_samples, reading), recorded, rules)
    findings = check_exchanges(_exchanges(with_exchanges, reading, counted=True), rules)
    outputs = samples_of(_exchanges(with_exchanges, reading))
    batches = (_as_rollout(batch, with_exchanges[0].path) for batch in in_batches(outputs, _OUTPUTS_AT_A_TIME))
    of_groups = [finding for finding in check_batches(batches, rules) if finding.check in _RULES_OVER_OUTPUTS]
    return [*findings, *of_groups]


def _as_rollout(outputs: Sequence[Sample], path: Path) -> Rollout:
    """Recorded outputs as columns; what the wire says of them may be of any type."""

    def place(row: int) -> str:
        return f"{path} and beside it: group {outputs[row].group_index}, output {outputs[row].index}"

    return rollout_of([output.to_json() for output in outputs], place)


def _facts(sources: Sequence[Source], rules: Rules, reading: _Reading, mapped: Mapped) -> list[Facts]:
    """The facts of `_parts`, of files that are read side by side."""
    seen = _Seen()
    facts: list[Facts] = []
    for source, read in zip(sources, mapped([source.path for source in sources], rules), strict=True):
        keys = [key for part in read.parts for key in part.sample_keys()]
        if any(seen.owners.get(key, source.path) != source.path for key in keys):
            facts += [facts_of(part, rules) for part in _parts_of(source, seen, reading)]
            continue
        reading.begun.add(source.path)
        seen.take(keys, source.path)
        reading.samples += len(keys)
        reading.report()
        facts += read.parts
        if read.error:
            reading.leave_out(source, read.error)
    reading.groups += len(seen.groups)
    return facts


@dataclass(slots=True)
class _Seen:
    """Which file of a data set holds each sample, and its groups."""

    owners: dict[_Key, Path] = field(default_factory=dict)
    groups: set[_Key] = field(default_factory=set)

    def take(self, keys: Sequence[_Key], path: Path) -> list[bool]:
        """Notes the samples of a file; which of them no earlier file has."""
        self.groups.update(key[:2] for key in keys)
        return [self.owners.setdefault(key, path) == path for key in keys]


def _parts(sources: Sequence[Source], reading: _Reading) -> Iterator[Rollout]:
    """The samples of all files; a sample that another file has too is an error of the later file."""
    seen = _Seen()
    for source in sources:
        yield from _parts_of(source, seen, reading)
    reading.groups += len(seen.groups)


def _parts_of(source: Source, seen: _Seen, reading: _Reading) -> Iterator[Rollout]:
    assert source.samples is not None
    reading.begun.add(source.path)
    try:
        for rollout in source.samples():
            keys = list(zip(*(rollout.table.column(name).to_pylist() for name in _KEY), strict=True))
            own = seen.take(keys, source.path)
            if not all(own):
                rollout = _without_copies(rollout, keys, own, source.path, seen.owners)
            reading.samples += len(rollout)
            reading.report()
            yield rollout
    except (InputError, UsageError) as error:
        reading.leave_out(source, error)


_KEY = ("rollout_id", "group_index", "index")


def _without_copies(
    rollout: Rollout, keys: Sequence[_Key], own: Sequence[bool], path: Path, owners: Mapping[_Key, Path]
) -> Rollout:
    """What no earlier file has, of a train dump's rank: ranks of one tensor-parallel group hold the same samples."""
    for row in (row for row, is_own in enumerate(own) if not is_own):
        if "rank" not in rollout.extra(row):
            place = ", ".join(f"{name} {value}" for name, value in zip(_KEY, keys[row], strict=True))
            other = owners[keys[row]]
            raise InputError(f"{path}: {place} is in {other} already; if they are of different runs, check them apart")
    return Rollout(rollout.table.filter(pa.array(own)))


def _exchanges(sources: Sequence[Source], reading: _Reading, counted: bool = False) -> Iterator[Exchange]:
    for source in sources:
        assert source.exchanges is not None
        reading.begun.add(source.path)
        try:
            for number, exchange in enumerate(source.exchanges()):
                reading.exchanges += counted
                if number % 1_000 == 0:
                    reading.report()
                yield exchange
        except InputError as error:
            reading.leave_out(source, error)
