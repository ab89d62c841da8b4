"""A store of bounded size that forgets what was not used for longest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class RecentlyUsed(Generic[V]):
    """Values of at most `capacity` bytes together, by `size`; the least recently used go first."""

    def __init__(self, capacity: int, size: Callable[[V], int]) -> None:
        self.bytes = 0
        self._capacity = capacity
        self._size = size
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        """What is held under a key."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Hashable, value: V) -> None:
        """Holds a value under a key that holds none, unless it is larger than the capacity."""
        if self._size(value) > self._capacity:
            return
        self._values[key] = value
        self.bytes += self._size(value)
        while self.bytes > self._capacity:
            self.bytes -= self._size(self._values.popitem(last=False)[1])

    def clear(self) -> None:
        """Forgets everything."""
        self._values.clear()
        self.bytes = 0
