"""A host's recording: written by a thread of its own, so that a slow or full disk costs the rollout nothing."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

from rollout_patch.recorder import append_line, json_lines

KINDS = ("samples", "exchanges", "groups")
_ROLLOUT = re.compile(rb'"rollout_id":(\d+)')

_log = logging.getLogger("rollout_patch")
_last: dict[Path, int] = {}
"""The last rollout that this process recorded, by folder."""


class Recording:
    """What one rollout appends to the files of a folder.

    What an earlier start of the run recorded of this rollout and of later ones is set aside first.

    Args:
        folder: Where the files are; made if need be.
        rollout_id: The host's number of the rollout.

    Raises:
        OSError: The folder cannot be made, or what is in it cannot be set aside.
    """

    def __init__(self, folder: Path, rollout_id: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if rollout_id <= _last.get(folder, rollout_id):
            for path in (one / f"rollout.{kind}.jsonl" for one in (folder, folder / "compared") for kind in KINDS):
                set_aside(path, rollout_id)
        _last[folder] = rollout_id
        self.lost = 0
        self._folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout_patch")

    def lines(self, kind: str, trained: bool, labels: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], None]:
        """A recorder of one of `KINDS`; groups that are only compared have files of their own."""
        folder = self._folder if trained else self._folder / "compared"
        return json_lines(folder / f"rollout.{kind}.jsonl", labels, self._hand_over)

    def close(self) -> None:
        """Waits until all is written."""
        self._thread.shutdown()

    def _hand_over(self, path: Path, line: str) -> None:
        self._thread.submit(self._write, path, line)

    def _write(self, path: Path, line: str) -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            append_line(path, line)
        except OSError as error:
            self.lost += 1
            if self.lost == 1:
                _log.warning("a line of the recording is lost, and others may be: %s; said once a rollout", error)


def set_aside(path: Path, rollout_id: int) -> None:
    """Moves the lines of a rollout and of all after it out of a recording, which holds rollouts in order.

    They go to a hidden file beside it, and so does a line that breaks off.
    """
    if not path.exists():
        return
    kept = 0
    with path.open("rb+") as lines:
        for line in lines:
            found = _ROLLOUT.search(line)
            if found is None or int(found[1]) >= rollout_id or not line.endswith(b"\n"):
                break
            kept += len(line)
        else:
            return
        target = next(
            one for number in count(1) if not (one := path.with_name(f".superseded-{number}.{path.name}")).exists()
        )
        lines.seek(kept)
        with target.open("wb") as aside:
            shutil.copyfileobj(lines, aside)
        lines.truncate(kept)
    _log.warning(
        "rollout %d is recorded again: what %s held of it and of later ones is in %s", rollout_id, path, target
    )
