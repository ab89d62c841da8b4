"""What a host's user can choose, by the host's YAML or by the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rollout_patch.assignment import DESIGNS, Assignment, fixed, probe, switchback
from rollout_patch.requests import ARMS

_SHARE = 0.1
_SWITCHES = ("parameter_lists", "seed_per_slot", "evaluation", "strict", "allow_unknown_host")
_OF_ARGUMENTS, _OF_ENVIRONMENT = "rollout_patch_", "ROLLOUT_PATCH_"
SWITCH = "SGLANG_NATIVE_GROUP_SAMPLING"
"""The variable of Relax's launchers that switches group sampling on."""


@dataclass(frozen=True, slots=True)
class Options:
    """How groups are asked for.

    Attributes:
        arm: The arm asked for; in a design that compares, the experiment's, the baseline being `per-sample`.
        design: One of `rollout_patch.assignment.DESIGNS`.
        chunk: Most samples in one request; `None` for the whole group.
        record: The folder that gets exchanges, samples and groups as JSON lines; `None` records nothing.
        parameter_lists: The engine is reached without a router that refuses lists of sampling parameters and of texts.
        seed_per_slot: The engine gives sample i of a request the seed `sampling_seed` + i.
        share: The share of groups that a probe asks for in both arms.
        evaluation: Groups are evaluated this way too, by a host that evaluates groups.
        strict: What is doubtful in an answer, but trained on without the patch, ends the rollout.
        allow_unknown_host: The host's functions may have other bodies than those that the plug-in was tested with.
    """

    arm: str = "native"
    design: str = "fixed"
    chunk: int | None = None
    record: Path | None = None
    parameter_lists: bool = False
    seed_per_slot: bool = False
    share: float = _SHARE
    evaluation: bool = False
    strict: bool = False
    allow_unknown_host: bool = False

    def assign(self, *, seed: int, rollout_id: int, group_index: int) -> Assignment:
        """The arms of one group."""
        if self.design == "fixed":
            return fixed(self.arm)
        arms = ("per-sample", self.arm)
        if self.design == "switchback":
            return switchback(*arms, seed=seed, rollout_id=rollout_id, group_index=group_index)
        return probe(*arms, share=self.share, seed=seed, rollout_id=rollout_id, group_index=group_index)


def read_options(args: Any, environment: Mapping[str, str]) -> Options:
    """Options out of the host's arguments, `rollout_patch_<name>`, or else the environment, `ROLLOUT_PATCH_<NAME>`.

    Raises:
        ValueError: There is no such option, or a value is none that it has; the message names it.
    """
    _refuse_unknown(
        _OF_ARGUMENTS, getattr(args, "__dict__", {}), [f"{_OF_ARGUMENTS}{name}" for name in Options.__slots__]
    )
    refuse_unknown_variables(environment)
    read = {name: _given(name, args, environment) for name in Options.__slots__}
    given = {"arm": "native", "design": "fixed"} | {
        name: value for name, value in read.items() if value not in (None, "")
    }
    arm, design, chunk, record = given["arm"], given["design"], given.get("chunk"), given.get("record")
    if arm not in ARMS:
        raise ValueError(f"rollout_patch_arm is {arm!r}, none of {ARMS}")
    if design not in DESIGNS:
        raise ValueError(f"rollout_patch_design is {design!r}, none of {DESIGNS}")
    if design != "fixed" and arm == "per-sample":
        raise ValueError(f"rollout_patch_arm is 'per-sample', with which the design {design!r} compares it already")
    if chunk is not None and not re.fullmatch(r"0*[1-9][0-9]{0,8}", str(chunk), re.ASCII):
        raise ValueError(f"rollout_patch_chunk is {chunk!r}, no number of samples")
    if record and not isinstance(record, (str, Path)):
        raise ValueError(f"rollout_patch_record is {record!r}, no folder")
    return Options(
        arm=arm,
        design=design,
        chunk=None if chunk is None else int(chunk),
        record=Path(record) if record else None,
        share=_share(given.get("share")),
        **{name: _truth(name, given.get(name)) for name in _SWITCHES},
    )


def allows_unknown_host(args: Any) -> bool:
    """Whether the host's functions may have other bodies than the known ones; read before any other option.

    Raises:
        ValueError: The option has no such value.
    """
    return _truth("allow_unknown_host", _given("allow_unknown_host", args, os.environ))


def refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    """Refuses variables that look like options and are none.

    Raises:
        ValueError: The message names what may have been meant.
    """
    _refuse_unknown(_OF_ENVIRONMENT, environment, [f"{_OF_ENVIRONMENT}{name.upper()}" for name in Options.__slots__])
    _refuse_unknown(SWITCH.removesuffix("SAMPLING"), environment, [SWITCH])
    switched_on(environment)


def switched_on(environment: Mapping[str, str]) -> bool:
    """Whether Relax's launcher switches group sampling on.

    Raises:
        ValueError: The variable is neither 0 nor 1.
    """
    value = environment.get(SWITCH, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"{SWITCH} is {value!r}; it is 0 or 1")
    return value == "1"


def _refuse_unknown(prefix: str, given: Iterable[str], known: list[str]) -> None:
    """Refuses names that begin as options do, in whatever case, and are none."""
    for name in given:
        if name.lower().startswith(prefix.lower()) and name not in known:
            ends = {one[len(prefix) :].lower(): one for one in known}
            meant = get_close_matches(name[len(prefix) :].lower(), ends, n=1)
            hint = f"did you mean {ends[meant[0]]}?" if meant else f"there are {', '.join(known)}"
            raise ValueError(f"there is no option {name}; {hint}")


def _share(value: Any) -> float:
    try:
        share = float("nan" if isinstance(value, bool) else _SHARE if value is None else value)
    except (TypeError, ValueError):
        share = float("nan")
    if not 0 <= share <= 1:
        raise ValueError(f"rollout_patch_share is {value!r}, no number between 0 and 1")
    return share


def _truth(name: str, value: Any) -> bool:
    word = str(0 if value in (None, "") else value).lower()
    if word not in ("0", "1", "false", "true"):
        raise ValueError(f"rollout_patch_{name} is {value!r}, neither true nor false")
    return word in ("1", "true")


def _given(name: str, args: Any, environment: Mapping[str, str]) -> Any:
    value = getattr(args, f"rollout_patch_{name}", None)
    return environment.get(f"ROLLOUT_PATCH_{name.upper()}") if value is None else value
