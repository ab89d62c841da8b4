"""A reward function of the user's own, by its name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from parity.errors import UsageError

if TYPE_CHECKING:
    from parity.records.samples import Sample  # imports pyarrow


def reward_function(name: str) -> Callable[[Sample], float]:
    """The function ``module:function`` of what is installed, or ``FILE.py:function``, of one sample to its reward.

    Raises:
        UsageError: There is no such function; or later, when it fails on a sample.
    """
    module, _, attribute = name.rpartition(":")
    try:
        source = _module_of_file(Path(module)) if module.endswith(".py") else import_module(module)
        function = getattr(source, attribute)
    except Exception as error:  # the user's own code may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"--reward {name}: no such function ({reason}); expected MODULE:FUNCTION of a module that is installed, or "
            "./FILE.py:FUNCTION"
        ) from error

    return _Reward(name, function)


@dataclass(frozen=True, slots=True)
class _Reward:
    """The user's reward; a process that reads files looks the function up by its name."""

    name: str
    function: Callable[[Sample], Any]

    def __call__(self, sample: Sample) -> float:
        try:
            return float(self.function(sample))
        except Exception as error:
            place = f"rollout {sample.rollout_id}, group {sample.group_index}, slot {sample.index}"
            raise UsageError(f"--reward {self.name} fails at {place}: {type(error).__name__}: {error}") from error

    def __reduce__(self) -> tuple[Callable[[str], Callable[[Sample], float]], tuple[str]]:
        return reward_function, (self.name,)


def _module_of_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"reward_of_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # where its own dataclasses look for it
    spec.loader.exec_module(module)
    return module
