"""Continuous batching: one thread that owns the model, the slab and the prefix cache.

Each turn admits waiting sequences while there is room, prefills their prompts together (a prompt that several
sequences share is computed once), and then takes one step with all running sequences. Work in Python is per batch;
per sequence only where a sequence starts, ends, streams, or asks for stop strings or top log-probs.

Other threads speak to it through `submit` and `call` alone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from parity.engines.embedded.features import Features
from parity.engines.embedded.model import Model
from parity.engines.embedded.prefix_cache import PrefixCache
from parity.engines.embedded.protocol import Generated
from parity.engines.embedded.rows import Rows, rows_for
from parity.engines.embedded.sampling import Floats, Integers, log_softmax, on_grid, sample
from parity.engines.embedded.sequence import Sequence

PREFIX_CACHE_BYTES = 64 << 20
PREFILL_SCORES = 1 << 22
"""Attention scores a head that one prefill may hold: prompts x new tokens x columns."""

ABORTED = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
ABORTED_WAITING = {"type": "abort", "message": "Abort in waiting queue"}

T = TypeVar("T")
_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """Totals since the start, in the units that their names say."""

    sequences: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0


Deliver = Callable[[list[tuple[Sequence, Generated]]], None]


class Scheduler:
    """Runs sequences on a model.

    `deliver` is called on its thread, once a turn, with (sequence, result) of all that changed. `stop_text` decodes
    output ids to the text in which stop strings are looked for. At most `max_running` sequences run at once.
    """

    def __init__(
        self,
        model: Model,
        stop_ids: Iterable[int],
        stop_text: Callable[[list[int]], str],
        deliver: Deliver,
        max_running: int,
    ) -> None:
        self.model = model
        self.weight_version = "default"
        self.counters = Counters()
        self.features = Features(model)
        self.max_running = max_running
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.paused = False
        self.draw = sample
        self._stop_ids = frozenset(stop_ids)
        self._stop_text = stop_text
        self._deliver = deliver
        self._prefixes = PrefixCache(PREFIX_CACHE_BYTES)
        self._changed: list[tuple[Sequence, Generated]] = []
        self._starting: list[Sequence] = []
        self._wake = threading.Condition()
        self._commands: list[Callable[[], None]] = []
        self._stopping = False
        self._rows = Rows(model, 1, max_running)
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    # What other threads may call.

    def submit(self, sequences: Iterable[Sequence]) -> None:
        """Queues sequences, in order."""
        with self._wake:
            self.waiting.extend(sequences)
            self._wake.notify()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs a function on the scheduler's thread, between two turns."""
        future: Future[T] = Future()

        def command() -> None:
            # A caller who went away has cancelled it; setting a result would raise here and end the thread.
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except Exception as error:  # it is the caller's, who gets it from the future
                future.set_exception(error)

        with self._wake:
            self._commands.append(command)
            self._wake.notify()
        return future

    def stop(self) -> None:
        """Ends the thread after its current turn; whatever runs or waits is never delivered."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout=10)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    # What `call` may run: on the scheduler's thread only.

    def abort(self, chosen: Callable[[Sequence], bool]) -> None:
        """Ends the chosen sequences with what they have."""
        with self._wake:
            doomed = [sequence for sequence in self.waiting if chosen(sequence)]
            self.waiting = deque(sequence for sequence in self.waiting if not chosen(sequence))
        for sequence in doomed:
            self._finish(sequence, ABORTED if sequence.started else ABORTED_WAITING)
        rows = [row for row, sequence in enumerate(self.running) if chosen(sequence)]
        self._release(rows, [ABORTED] * len(rows))
        self._flush_changes()

    def pause(self, mode: str) -> None:
        """Stops taking turns: "abort" ends all sequences, "retract" makes the running ones wait, "in_place" neither."""
        self.paused = True
        if mode == "abort":
            self.abort(lambda _: True)
        elif mode == "retract":
            back = self.running
            for row, sequence in enumerate(back):
                self._read_row(row, sequence)
                sequence.retractions += 1
            self.running = []
            with self._wake:
                self.waiting.extendleft(reversed(back))

    def resume(self) -> None:
        """Takes turns again."""
        self.paused = False

    def flush_cache(self) -> bool:
        """Forgets all prefixes and images, unless sequences are running, or waiting to without a pause."""
        if self.running or (self.waiting and not self.paused):
            return False
        self.forget()
        return True

    def update_weights(self, path: Path, version: str | None) -> None:
        """Takes the weights of another checkpoint and, where given, their version; forgets all prefixes and images.

        Raises:
            CheckpointError: The checkpoint cannot be taken; the old weights stay.
        """
        self.model.load(path)
        self.forget()
        if version is not None:
            self.label(version)

    def label(self, version: str) -> None:
        """Says of all tokens from now on that weights of this version made them."""
        self.weight_version = version
        for row, sequence in enumerate(self.running):
            sequence.versions.append((version, self._rows.produced(row)))
        for sequence in self.waiting:
            if sequence.started:
                sequence.versions.append((version, len(sequence.output_ids)))

    def forget(self) -> None:
        """Forgets all prefixes and images, whatever runs."""
        self._prefixes.clear()
        self.features.clear()

    # The thread.

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._commands and not self._stopping and (self.paused or not (self.waiting or self.running)):
                    self._wake.wait()
                if self._stopping:
                    return
                commands, self._commands = self._commands, []
            for command in commands:
                command()
            if self.paused or not (self.waiting or self.running):
                continue
            try:
                self._turn()
            except Exception as error:  # the server must outlive a turn that failed: its sequences end with the reason
                _LOG.exception("a turn failed")
                self._fail(f"{type(error).__name__}: {error}")
            self._flush_changes()

    def _turn(self) -> None:
        self.counters.steps += 1
        if self.waiting:
            self._admit()
        count = len(self.running)
        if not count:
            return
        lengths = self._rows.state["length"][:count].copy()
        ids = self._rows.tokens[np.arange(count), lengths]
        positions = lengths + self._rows.state["shift"][:count]
        one = [torch.from_numpy(each)[:, None] for each in (ids, lengths, positions)]
        hidden = self.model.forward(one[0], one[1], self._rows.slab, positions=one[2])
        self._rows.state["length"][:count] += 1
        self._emit(0, self.model.logits(hidden[:, 0]))

    def _emit(self, first: int, logits: Floats) -> None:
        """Samples the next token of every row from `first` on, and ends those that are done."""
        here = slice(first, len(self.running))
        rows = self._rows.state[here]
        tokens, logprobs = self.draw(
            logits, rows["temperature"], rows["top_k"], rows["top_p"], rows["min_p"], rows["seed"], rows["length"]
        )
        raw = rows["raw"] & (rows["temperature"] != 1.0)
        if raw.any():
            logprobs[raw] = log_softmax(logits[raw])
        each = np.arange(len(rows))
        chosen = on_grid(logprobs[each, tokens])
        self._rows.tokens[first + each, rows["length"]] = tokens
        self._rows.logprobs[first + each, rows["length"]] = chosen
        self.counters.generated_tokens += len(rows)
        broken = ~np.isfinite(chosen)
        stopped = (tokens[:, None] == self._rows.stops[here]).any(axis=1)
        full = rows["length"] + 1 >= rows["end"]
        reasons: dict[int, dict[str, Any]] = {}
        for place in np.flatnonzero(broken | stopped | full | rows["watched"]).tolist():
            row, token = first + place, int(tokens[place])
            sequence = self.running[row]
            if broken[place]:
                # Whoever takes this row next must not meet a NaN in it: 0 * NaN is NaN, masked or not.
                self._rows.slab[:, :, row].zero_()
                reasons[row] = _failure("the model's logits are not finite")
                continue
            if top := sequence.request.top_logprobs:
                sequence.top.append(_best(logprobs[place], top))
            reason = self._stop_string(row, sequence)
            if reason is None and stopped[place]:
                reason = {"type": "stop", "matched": token}
            if reason is None and full[place]:
                reason = {"type": "length", "length": sequence.request.sampling.max_new_tokens}
            if reason is not None:
                reasons[row] = reason
            elif sequence.stream:
                self._read_row(row, sequence)
                self._changed.append((sequence, sequence.result(None)))
        self._release(list(reasons), list(reasons.values()))

    def _stop_string(self, row: int, sequence: Sequence) -> dict[str, Any] | None:
        strings = sequence.request.sampling.stop
        if not strings:
            return None
        # A token is at least a byte: a stop string of k bytes that ends now began at most k tokens ago.
        text = self._stop_text(self._rows.tail(row, max(len(string.encode()) for string in strings) + 1))
        matched = next((string for string in strings if string in text), None)
        return None if matched is None else {"type": "stop", "matched": matched}

    # Rows.

    def _read_row(self, row: int, sequence: Sequence) -> None:
        """Copies the output of a row to its sequence."""
        sequence.output_ids, sequence.logprobs = self._rows.output(row)

    def _release(self, done: list[int], reasons: list[dict[str, Any]]) -> None:
        """Ends the sequences of these rows, and moves the last ones into the holes."""
        for row, reason in zip(done, reasons, strict=True):
            sequence = self.running[row]
            self._read_row(row, sequence)
            self._finish(sequence, reason)
        if not done:
            return
        gone = set(done)
        left = len(self.running) - len(gone)
        holes = [row for row in sorted(gone) if row < left]
        movers = [row for row in range(left, len(self.running)) if row not in gone]
        for hole, mover in zip(holes, movers, strict=True):
            self.running[hole] = self.running[mover]
        self._rows.move(movers, holes)
        del self.running[left:]

    def _finish(self, sequence: Sequence, reason: dict[str, Any]) -> None:
        self._changed.append((sequence, sequence.result(reason)))

    def _flush_changes(self) -> None:
        if self._changed:
            changed, self._changed = self._changed, []
            self._deliver(changed)

    def _fail(self, message: str) -> None:
        with self._wake:
            everyone = dict.fromkeys([*self.running, *self._starting, *self.waiting])
            self.waiting.clear()
        self.running, self._starting = [], []
        ended = {sequence for sequence, result in self._changed if result.finish_reason}
        for sequence in everyone:
            if sequence not in ended:
                self._finish(sequence, _failure(message))
        self.forget()
        self._rows = Rows(self.model, 1, self.max_running)

    # Prefill.

    def _admit(self) -> None:
        self._starting = self._take_waiting()
        if not self._starting:
            return
        groups: dict[tuple[Any, ...], list[Sequence]] = {}
        for sequence in self._starting:
            request = sequence.request
            start = None if sequence.started else request.logprob_start
            groups.setdefault((sequence.key, start, request.top_logprobs), []).append(sequence)
        jobs = [_Prefill(members[0].context, key, start, top, members) for (key, start, top), members in groups.items()]
        for job in jobs:
            held, job.entry = self._prefixes.match(job.key)
            job.held = min(held, len(job.context) - 1, job.reach)
        place = 0
        while place < len(jobs):
            place = self._prefill(jobs, place)
        self._starting = []

    def _take_waiting(self) -> list[Sequence]:
        """Takes waiting sequences, in order, while there is room; makes a wider or higher table if that gives room."""
        taken: list[Sequence] = []
        count, columns = len(self.running), self._rows.columns if self.running else 1
        with self._wake:
            while self.waiting:
                wanted = max(columns, self.waiting[0].end)
                if count + 1 > rows_for(self.model, wanted, self.max_running):
                    break
                count, columns = count + 1, wanted
                taken.append(self.waiting.popleft())
        if taken and (columns > self._rows.columns or count > self._rows.count):
            old, self._rows = self._rows, Rows(self.model, columns, self.max_running)
            if self.running:
                self._rows.take(old, len(self.running))
        return taken

    def _prefill(self, jobs: list[_Prefill], first: int) -> int:
        """Computes as many prompts as one pass may hold, starts their sequences, and returns the next one's place."""
        last, new, longest = first, 0, 0
        while last < len(jobs):
            job = jobs[last]
            new, longest = max(new, len(job.context) - job.held), max(longest, len(job.context))
            # Padding writes past the end of a shorter prompt: `held + new` columns.
            if last > first and (last + 1 - first) * new * (longest + new) > PREFILL_SCORES:
                break
            last += 1
        chunk = jobs[first:last]
        new = max(len(job.context) - job.held for job in chunk)
        slab = self.model.new_slab(len(chunk), max(job.held for job in chunk) + new)
        ids = torch.zeros((len(chunk), new), dtype=torch.int64)
        columns = torch.tensor([job.held for job in chunk])[:, None] + torch.arange(new)
        # Padding sits in columns that no real token looks at, but must stay inside the rotary table.
        columns = columns.clamp(max=self.model.context_length - 1)
        for row, job in enumerate(chunk):
            ids[row, : len(job.context) - job.held] = torch.tensor(job.context[job.held :])
            if job.entry is not None:
                slab[:, :, row, :, : job.held] = job.entry[:, :, :, : job.held]
        sight = self.features.sight([(job.members[0].request.vision, job.held) for job in chunk], columns)
        hidden = self.model.forward(ids, columns, slab, sight=sight)
        ends = torch.tensor([len(job.context) - job.held - 1 for job in chunk])
        logits = self.model.logits(hidden[torch.arange(len(chunk)), ends])
        before = len(self.running)
        source: list[int] = []
        for row, job in enumerate(chunk):
            kv = slab[:, :, row, :, : len(job.context)]
            self._prefixes.insert(job.key, kv)
            self._score_prompt(job, hidden[row])
            source += [row] * self._start(job, kv)
        if source:
            self._emit(before, logits[source])
        return last

    def _score_prompt(self, job: _Prefill, hidden: torch.Tensor) -> None:
        if job.start is None:
            return
        count = len(job.context)
        logprobs = log_softmax(self.model.logits(hidden[job.start - job.held : count - job.held - 1]))
        # The engine clips the number that stands for an image's content to the vocabulary.
        last = self.model.vocabulary_size - 1
        targets = np.array([token if token >= 0 else last for token in job.key[job.start + 1 :]], dtype=np.int64)
        values = on_grid(logprobs[np.arange(len(targets)), targets]).tolist()
        best = tuple(_best(row, job.top) for row in logprobs) if job.top else ()
        for sequence in job.members:
            sequence.prompt_logprobs = (None, *values)
            sequence.prompt_top = (None, *best) if job.top else ()

    def _start(self, job: _Prefill, kv: torch.Tensor) -> int:
        """Gives rows to the sequences of a prompt, or ends those that ask for no token; returns the rows given."""
        first = len(self.running)
        for sequence in job.members:
            if not sequence.started:
                self._begin(sequence, job)
            if sequence.end == len(job.context):
                self._finish(sequence, {"type": "length", "length": sequence.request.sampling.max_new_tokens})
            else:
                self.running.append(sequence)
                self._fill_row(len(self.running) - 1, sequence)
        given = len(self.running) - first
        self._rows.slab[:, :, first : first + given, :, : len(job.context)] = kv[:, :, None]
        return given

    def _begin(self, sequence: Sequence, job: _Prefill) -> None:
        request = sequence.request
        prompt = len(request.input_ids)
        sequence.started = True
        sequence.versions = [(self.weight_version, 0)]
        sequence.cached_tokens = min(prompt - 1, job.reach) if request.shares_prefix else job.held
        self.counters.sequences += 1
        self.counters.prompt_tokens += prompt
        self.counters.cached_tokens += sequence.cached_tokens

    def _fill_row(self, row: int, sequence: Sequence) -> None:
        request, sampling = sequence.request, sequence.request.sampling
        self._rows.fill(
            row,
            sequence.context,
            len(request.input_ids),
            sequence.logprobs,
            sampling,
            sequence.seed,
            stops=sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else self._stop_ids),
            watched=bool(sampling.stop) or sequence.stream or request.top_logprobs > 0,
            shift=0 if request.vision is None else request.vision.shift,
        )


@dataclass(eq=False)
class _Prefill:
    """A prompt to compute for its members; `held` tokens come from `entry`, those from `start` on are scored."""

    context: tuple[int, ...]
    key: tuple[int, ...]
    start: int | None
    top: int
    members: list[Sequence]
    held: int = 0
    entry: torch.Tensor | None = None

    @property
    def reach(self) -> int:
        """Tokens that may come from the cache: those before the first that is scored."""
        return len(self.context) if self.start is None else self.start


def _best(logprobs: Floats, count: int) -> tuple[tuple[float, int], ...]:
    order: Integers = np.argsort(-logprobs, kind="stable")[:count]
    return tuple(zip(on_grid(logprobs[order]).tolist(), order.tolist(), strict=True))


def _failure(message: str) -> dict[str, Any]:
    return {"type": "abort", "message": message, "status_code": 500, "err_type": "InternalServerError"}
