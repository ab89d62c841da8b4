"""Files of samples read side by side: by processes of this machine, or as tasks of a Ray cluster.

A file is boiled down to its facts where it is read, so that some 600 bytes a sample come back, whatever their length.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from parity.contract_checks import Facts, Rules, facts_of
from parity.errors import InputError, UsageError
from parity.sources.registry import open_source

WORTH_IT = 1 << 28
"""Bytes of files from which on a process a core reads them, where nobody says how many."""


@dataclass(frozen=True, slots=True)
class FileRead:
    """What a file of samples holds, part by part as it was read, and why it breaks off, where it does."""

    parts: tuple[Facts, ...]
    error: InputError | UsageError | None = None


Mapped = Callable[[Sequence[Path], Rules], Iterator[FileRead]]
"""Reads files, and gives what they hold in their order."""


def read_file(path: Path, rules: Rules) -> FileRead:
    """Reads one file of samples."""
    parts: list[Facts] = []
    try:
        source = open_source(path, rules.group_size)
        batches = source.samples() if source.samples else iter(())
    except (InputError, UsageError) as error:
        return FileRead((), error)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return FileRead(tuple(parts))
        except (InputError, UsageError) as error:
            return FileRead(tuple(parts), error)
        parts.append(facts_of(batch, rules))


def reader(paths: Sequence[Path], processes: int | None, ray: str | None) -> Mapped | None:
    """What reads files side by side; `None` to read them one after the other.

    Args:
        paths: The files.
        processes: How many processes; by default one a core for `WORTH_IT` bytes and more, and else none.
        ray: The address of a Ray cluster whose nodes see the files, ``auto`` for the one of this machine.
    """
    if ray is not None:
        return partial(_by_ray, ray)
    if processes is None:
        cores = len(os.sched_getaffinity(0))
        processes = cores if sum(path.stat().st_size for path in paths) >= WORTH_IT else 1
    return partial(_by_processes, min(processes, len(paths))) if processes > 1 and len(paths) > 1 else None


def _by_processes(processes: int, paths: Sequence[Path], rules: Rules) -> Iterator[FileRead]:
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(processes, context) as pool:
        try:
            yield from pool.map(read_file, paths, [rules] * len(paths))
        except BrokenProcessPool as error:
            raise UsageError(
                "a process that read files was killed, most likely for lack of memory: give fewer --processes"
            ) from error


def _by_ray(address: str, paths: Sequence[Path], rules: Rules) -> Iterator[FileRead]:
    try:
        import ray
    except ImportError as error:
        raise UsageError('--ray needs Ray: pip install "rollout-parity[ray]"') from error
    try:
        ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
    except ConnectionError as error:
        raise UsageError(f"--ray {address}: {error}") from error
    task, shared = ray.remote(read_file), ray.put(rules)
    for one in [task.remote(path.absolute(), shared) for path in paths]:  # lost with its node, a task is done again
        read: FileRead = ray.get(one)
        yield read
