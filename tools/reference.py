"""Writes docs/reference: a page of checks, of faults, and of the cases that an engine is held to, from the code.

Run as `python tools/reference.py`, and again after a change to any of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from parity.conformance import CASES, VLLM_CASES, ConformanceCase
from parity.contract_checks import CHECKS, Check
from parity.evidence.contract import accounting
from parity.faults import CONTROLS, FAULTS, Fault
from parity.findings import Severity

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
GENERATED = "<!-- written by tools/reference.py -->"
CHECK_NAMES = frozenset(check.name for check in CHECKS)
PLACES = {
    "engine": "The engine",
    "router": "The router",
    "patch": "The patch",
    "host": "The host",
    "trainer": "The trainer",
    "tracker": "The tracker",
}
FAMILIES: dict[str, Callable[[str], bool]] = {
    "Exchanges": lambda name: name.startswith("exchange_"),
    "Samples against their exchanges": lambda name: hasattr(accounting, name),
    "Both arms": lambda name: name.startswith("arms_"),
    "Curves and metrics": lambda name: name.startswith("curve_") or name == "metrics_recomputed",
}


def checks_page() -> str:
    """Every check of the contract: its rule, its severity, and the planted faults that it must catch."""
    families: dict[str, list[Check]] = {"Samples and groups": [], **{name: [] for name in FAMILIES}}
    for check in CHECKS:
        families[next((name for name, has in FAMILIES.items() if has(check.name)), "Samples and groups")].append(check)
    errors = sum(check.severity is Severity.ERROR for check in CHECKS)
    return _page(
        "Checks of the contract",
        f"{len(CHECKS)} checks make up [L0](../ladder.md#l0-contract). A breach of one of the {errors} that say "
        f"*error* fails the verdict; the {len(CHECKS) - errors} that say *warning* are shown and decide nothing. A "
        "check whose data is not there says *not compared*.",
        (line for name, checks in families.items() for line in (f"## {name}", *map(_check_entry, checks))),
    )


def _check_entry(check: Check) -> str:
    caught = [_link(name, "faults.md") for name, fault in FAULTS.items() if fault.check == check.name]
    planted = f"Planted faults that it must catch: {', '.join(caught)}." if caught else ""
    return "\n\n".join(filter(None, (f"### {check.name}", f"{check.rule}. *({check.severity.value})*", planted)))


def faults_page() -> str:
    """Every fault by where it is planted: what goes wrong, where it happened, and the check that must catch it."""
    by_place = {place: [fault for fault in FAULTS.values() if fault.place == place] for place in PLACES}
    assert sum(map(len, by_place.values())) == len(FAULTS), "a fault is planted at a place that has no heading"
    controls = [f"- **{control.name}**: {control.description}" for control in CONTROLS]
    return _page(
        "Planted faults",
        f"`parity selftest` plants these {len(FAULTS)} faults one at a time in data without faults. Each must be "
        "caught by the check named for it and by no unrelated one; the "
        f"{len(CONTROLS)} [controls](#controls) look like faults and must pass.",
        (
            *(
                line
                for place, faults in by_place.items()
                for line in (f"## {PLACES[place]}", *map(_fault_entry, faults))
            ),
            "## Controls",
            "\n".join(controls),
        ),
    )


def _fault_entry(fault: Fault) -> str:
    name, _, metric = fault.check.partition(":")
    rung = f"../ladder.md#{fault.level.rung.lower()}-{fault.level.value}"
    caught = _link(name, "checks.md") if name in CHECK_NAMES else f"[{name}]({rung})"
    size = f"{fault.units} {fault.kind.unit}" if fault.units > 1 else f"one {fault.kind.unit.removesuffix('s')}"
    of_metric = f" of `{metric}`" if metric else ""
    lines = [
        f"- What goes wrong: {fault.description}",
        f"- Caught by {caught}{of_metric}, {fault.level.rung} {fault.level.value}, within {size}",
        f"- Seen in: {_origin(fault.origin)}",
    ]
    if fault.in_run:
        task = " --task digits" if fault.needs_images else ""
        lines.append(f"- In a run: `parity run --baseline --experiment native{task} --plant {fault.name}@7`")
    return f"### {fault.name}\n\n" + "\n".join(lines)


def _origin(origin: str) -> str:
    """A public thread as a link; other origins as they are."""
    if match := re.fullmatch(r"([\w.-]+/[\w.-]+)#(\d+)", origin):
        return f"[{origin}](https://github.com/{match[1]}/issues/{match[2]})"
    return origin


def cases_page() -> str:
    """Every case that a live engine is held to."""
    own = [case for case in VLLM_CASES if case not in CASES]
    return _page(
        "Cases for a live engine",
        "`parity check http://localhost:30000` and [`pytest --parity-url`](../pytest.md) send these "
        f"{len(CASES)} cases, and hold what comes back to the [checks of exchanges](checks.md#exchanges) too.",
        (
            "\n".join(map(_case, CASES)),
            "## vLLM",
            f"`parity check` sends these {len(own)} to a server that answers as vLLM does, and `digests_of_something`.",
            "\n".join(map(_case, own)),
        ),
    )


def _case(case: ConformanceCase) -> str:
    flags = {"control": "`--control`", "destructive": "`--destructive`"}
    needs = [flag for name, flag in flags.items() if getattr(case, name)]
    return f"- **{case.name}**: {case.rule}" + (f" *(needs {' and '.join(needs)})*" if needs else "")


def _link(name: str, page: str) -> str:
    return f"[{name}]({page}#{name})"


def _page(title: str, introduction: str, parts: Iterable[str]) -> str:
    return "\n\n".join((GENERATED, f"# {title}", introduction, *parts)) + "\n"


def pages() -> Iterator[tuple[Path, str]]:
    """Each page's path and what must be in it."""
    for name, page in (("checks.md", checks_page), ("faults.md", faults_page), ("cases.md", cases_page)):
        yield REFERENCE / name, page()


if __name__ == "__main__":
    for path, text in pages():
        path.write_text(text)
