"""Every wait for somebody else's answer has a bound: each call that opens one names it, by a scan of the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "parity"
BOUNDED = {
    "ClientSession": "timeout",
    "ClientTimeout": "total",
    "HTTPConnection": "timeout",
    "HTTPSConnection": "timeout",
    "urlopen": "timeout",
    "create_connection": "timeout",
}
"""Calls that wait for an answer, and the argument that bounds the wait."""

BOUNDED_ELSEWHERE = {
    ("engines/client.py", "ClientSession"): "each request has a ClientTimeout of its own",
    ("pytest_plugin/front.py", "ClientSession"): "pytest-timeout, and the test that asks, bound it",
}


def unbounded(source: str) -> Iterator[str]:
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if name in BOUNDED and BOUNDED[name] not in keywords:
            yield name
        runs_program = (
            name == "run" and isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "subprocess.run"
        )
        if runs_program and "timeout" not in keywords:
            yield "subprocess.run"


def test_no_call_waits_without_a_bound() -> None:
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in ROOT.rglob("*.py")
        for name in unbounded(path.read_text("utf-8"))
    }
    assert found - set(BOUNDED_ELSEWHERE) == set()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("aiohttp.ClientSession()", ["ClientSession"]),
        ("aiohttp.ClientSession(timeout=t)", []),
        ("urlopen(url)", ["urlopen"]),
        ("http.client.HTTPConnection(host, timeout=10)", []),
        ("subprocess.run(['git'])", ["subprocess.run"]),
        ("subprocess.run(['git'], timeout=1)", []),
        ("ClientTimeout(sock_connect=1)", ["ClientTimeout"]),
    ],
)
def test_the_scan_finds_what_it_is_for(source: str, names: list[str]) -> None:
    assert list(unbounded(source)) == names
