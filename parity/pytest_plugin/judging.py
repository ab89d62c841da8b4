"""A test's samples, held to the contract and to those that a known good revision made of the same responses."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pyarrow.parquet as pq

from parity.commands.check import check_paths
from parity.contract_checks import (
    Rules,
    check_accounting,
    check_arms,
    check_exchanges,
    check_requests,
    check_samples,
)
from parity.errors import InputError, UsageError
from parity.evidence.replay import compare_twins
from parity.findings import Finding, Level, Message, Status, quantity
from parity.records.exchanges import Exchange, read_exchanges
from parity.records.samples import Rollout, Sample
from parity.records.store import read_json
from parity.sources.directories import dataset_of, find_sources
from parity.sources.dumps.rollout_dumps import rollout_of_dump

Subject: TypeAlias = "str | Path | Rollout | Iterable[Any]"
"""Samples: what lies at a path, or `parity.records.samples.Sample`s, or a host's own, also as lists of groups."""

SAMPLES_FILE, EXCHANGES_FILE, ENGINE_FILE = "rollout.parquet", "rollout.exchanges.jsonl", "engine.json"


def rollout_of(subject: Subject, group_size: int | None) -> Rollout:
    """Reads samples.

    A host's own sample has `to_dict`, as those of slime, Miles and Relax, or is what that gives.

    Raises:
        InputError: It cannot be read, or there is nothing.
        UsageError: A path has several data sets, or the samples name no group and the group size is not given.
    """
    if isinstance(subject, Rollout):
        return subject
    if isinstance(subject, (str, Path)):
        return _rollout_at(Path(subject), group_size)
    samples = list(_flat(subject))
    if not samples:
        raise InputError("there are no samples")
    if all(isinstance(sample, Sample) for sample in samples):
        return Rollout.from_samples(samples)
    rows = [sample.to_dict() if hasattr(sample, "to_dict") else sample for sample in samples]
    return rollout_of_dump(rows, Path("the samples given"), group_size)


def _flat(samples: Iterable[Any]) -> Iterator[Any]:
    for item in samples:
        yield from _flat(item) if isinstance(item, (list, tuple)) else (item,)


def _rollout_at(path: Path, group_size: int | None) -> Rollout:
    sources = [source for source in find_sources([path], group_size).sources if source.samples]
    if len(sets := {(dataset_of(source.path), source.format) for source in sources}) != 1:
        names = ", ".join(sorted(f"{directory} ({name})" for directory, name in sets)) or "none"
        raise UsageError(f"{path}: one data set of samples is expected, not {names}")
    return Rollout.concatenate([part for source in sources if source.samples for part in source.samples()])


def contract_findings(
    subject: Subject | None, exchanges: Sequence[Exchange] | None, rules: Rules, chunk: int | None
) -> list[Finding]:
    """Holds samples, the exchanges that they came by, and both together to the contract.

    Args:
        subject: Samples, if there are any.
        exchanges: What an engine was asked and answered; `None` where no engine was there to ask.
        rules: What the rollouts were asked to be.
        chunk: Samples a request at most, where one group is asked for in several requests.

    Raises:
        InputError: The samples cannot be read whole, or the engine was not asked for anything.
        UsageError: As `rollout_of`.
    """
    findings: list[Finding] = []
    if isinstance(subject, (str, Path)):
        result = check_paths([Path(subject)], rules)
        if damaged := next((omission for omission in result.omissions if omission.damaged), None):
            raise InputError(f"{damaged.path}: {damaged.reason}")
        findings += result.findings
    elif subject is not None:
        subject = rollout_of(subject, rules.group_size)
        findings += check_samples(subject, rules)
    if exchanges is None:
        return findings
    if not exchanges:
        raise InputError("the engine of this test got no request")
    findings += check_exchanges(exchanges, rules)
    if subject is not None:
        findings += _account_findings(rollout_of(subject, rules.group_size), exchanges, chunk)
    return findings


def _account_findings(rollout: Rollout, exchanges: Sequence[Exchange], chunk: int | None) -> list[Finding]:
    assigned = assign(exchanges, rollout)
    lone = sum(exchange.status == 200 and exchange.group_index is None for exchange in assigned)
    if lone:  # as in turns of a conversation, whose samples hold more than one answer
        message = Message(
            "samples are not compared with their exchanges: {lone} of {requests} are for a prompt that belongs to no "
            "group or to several",
            lone=lone,
            requests=quantity(len(exchanges), "requests"),
        )
        return [Finding("requests_accounted", Level.CONTRACT, Status.NOT_COMPARED, message)]
    return [*check_accounting(rollout, assigned, chunk), *_dropped(assigned)]


def _dropped(assigned: Sequence[Exchange]) -> list[Finding]:
    """Requests that failed for a prompt that no sample has: their group is missing."""
    failed = [exchange for exchange in assigned if exchange.group_index is None]
    if not failed:
        return []
    message = Message(
        "{failed} of {requests} failed for a prompt that no sample has, the first with status {status}: its group was "
        "left out",
        failed=len(failed),
        requests=quantity(len(assigned), "requests"),
        status=failed[0].status,
    )
    return [Finding("requests_accounted", Level.CONTRACT, Status.FAIL, message)]


def assign(exchanges: Iterable[Exchange], rollout: Rollout) -> list[Exchange]:
    """The exchanges with the step and group whose prompt they sent, if just one has it."""
    places: dict[tuple[int, ...], set[tuple[int | None, int]]] = {}
    columns = (rollout.table.column(name).to_pylist() for name in ("prompt_ids", "rollout_id", "group_index"))
    for ids, rollout_id, group in zip(*columns, strict=True):
        places.setdefault(tuple(ids or ()), set()).add((rollout_id, group))
    assigned = []
    for exchange in exchanges:
        prompts = {tuple(prompt) if isinstance(prompt, list) else () for prompt in exchange.prompts}
        owners = places.get(prompts.pop(), set()) if len(prompts) == 1 else set()
        rollout_id, group_index = next(iter(owners)) if len(owners) == 1 else (None, None)
        assigned.append(replace(exchange, rollout_id=rollout_id, group_index=group_index))
    return assigned


class _EngineFile(msgspec.Struct):
    """What a recording keeps of its engine besides exchanges."""

    model_path: str | None
    answers: dict[str, tuple[int, Any]]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A recorded test.

    Attributes:
        rollout: Its samples.
        exchanges: Its requests and their responses; `None` if it sent none.
        answers: The engine's responses at other methods and paths.
        checkpoint: The checkpoint that its engine named, or ""; `None` if the plug-in started the engine.
    """

    rollout: Rollout
    exchanges: list[Exchange] | None
    answers: dict[str, tuple[int, Any]]
    checkpoint: str | None

    def write(self, directory: Path) -> None:
        """Writes it whole or not at all, over what was there."""
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".recording.", dir=directory.parent) as scratch:
            new = Path(scratch, "new")
            new.mkdir()
            pq.write_table(self.rollout.table, new / SAMPLES_FILE)
            if self.exchanges is not None:
                lines = (json.dumps(exchange.to_json()) + "\n" for exchange in assign(self.exchanges, self.rollout))
                (new / EXCHANGES_FILE).write_text("".join(lines))
            engine = {"model_path": self.checkpoint, "answers": self.answers}
            (new / ENGINE_FILE).write_text(json.dumps(engine, indent=1) + "\n")
            if directory.exists():
                directory.rename(Path(scratch, "old"))
            new.rename(directory)

    @classmethod
    def read(cls, directory: Path) -> Baseline:
        """Reads what `write` wrote.

        Raises:
            InputError: There is none, or a file of it is damaged.
        """
        file, path = directory / ENGINE_FILE, directory / EXCHANGES_FILE
        try:
            engine = msgspec.convert(read_json(file), _EngineFile)
        except msgspec.ValidationError as error:
            raise InputError(f"{file}: {error}") from error
        exchanges = list(read_exchanges(path)) if path.exists() else None
        rollout = Rollout.read_parquet(directory / SAMPLES_FILE)
        return cls(rollout, exchanges, engine.answers, engine.model_path)

    def findings(self, rollout: Rollout, exchanges: Sequence[Exchange] | None) -> list[Finding]:
        """Compares the samples of this run with those recorded.

        Counts, prompts, parameters, finish reasons and recorded fields are always compared. Where responses were
        replayed, so are the requests, and every sample bit for bit; since slots of a group are exchangeable and
        requests may overtake each other, samples of a group are matched by their tokens.

        Args:
            rollout: The samples.
            exchanges: The requests to the recording; `None` if there were none.

        Raises:
            InputError: Only one of the two runs sent requests.
        """
        if (exchanges is None) != (self.exchanges is None):
            raise InputError("the test sent requests only now, or only when it was recorded; record it again")
        findings = check_arms(self.rollout, rollout)
        if exchanges is not None and self.exchanges is not None:
            findings += check_requests(assign(self.exchanges, self.rollout), assign(exchanges, rollout))
            findings += compare_twins(_by_tokens(self.rollout), _by_tokens(rollout))
        return findings


def _by_tokens(rollout: Rollout) -> Rollout:
    """The samples with the slots of each group numbered in the order of their tokens."""

    def group(sample: Sample) -> tuple[int, int]:
        return -1 if sample.rollout_id is None else sample.rollout_id, sample.group_index

    ordered = sorted(rollout.samples(), key=lambda sample: (group(sample), sample.output_ids or [], sample.text or ""))
    for _, of_group in groupby(ordered, group):
        for slot, sample in enumerate(of_group):
            sample.index = slot
    return Rollout.from_samples(ordered)
