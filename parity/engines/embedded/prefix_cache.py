"""Keys and values of prompts computed before, found by their longest common prefix."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict

import torch

Tokens = tuple[int, ...]


class PrefixCache:
    """At most `capacity` bytes of (layers, 2, kv_heads, tokens, head_dim) tensors; the least recently used go first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.bytes = 0
        self._entries: OrderedDict[Tokens, torch.Tensor] = OrderedDict()
        self._ordered: list[Tokens] = []

    def match(self, tokens: Tokens) -> tuple[int, torch.Tensor | None]:
        """The length of the longest prefix of `tokens` that is held, and an entry that begins with it."""
        place = bisect_left(self._ordered, tokens)
        # In lexicographic order the longest common prefix is with a neighbour.
        near = self._ordered[max(place - 1, 0) : place + 1]
        best = max(near, key=lambda held: common_length(held, tokens), default=None)
        if best is None or (length := common_length(best, tokens)) == 0:
            return 0, None
        self._entries.move_to_end(best)
        return length, self._entries[best]

    def insert(self, tokens: Tokens, kv: torch.Tensor) -> None:
        """Holds a copy of the keys and values of `tokens`, unless held already or larger than the capacity."""
        size = kv.numel() * kv.element_size()
        if size > self.capacity or self.match(tokens)[0] == len(tokens):
            return
        while self.bytes + size > self.capacity:
            oldest, dropped = self._entries.popitem(last=False)
            del self._ordered[bisect_left(self._ordered, oldest)]
            self.bytes -= dropped.numel() * dropped.element_size()
        self._entries[tokens] = kv.clone()
        insort(self._ordered, tokens)
        self.bytes += size

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()
        self._ordered.clear()
        self.bytes = 0


def common_length(a: Tokens, b: Tokens) -> int:
    """Length of the longest common prefix, by bisection over slices."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
