"""A host is known by the names that are used of it and by the bodies of its functions, in every version of Python."""

from __future__ import annotations

import ast
import textwrap
import types
from collections.abc import Callable
from typing import Any

import pytest

from rollout_patch import UnsupportedHost
from rollout_patch.hosts import guard
from rollout_patch.hosts.guard import Used, check_host, fingerprint_of

BODY = '''
async def generate(args, sample):
    """Asks the engine."""
    # one request
    output = await post(args.url, {"text": f"{sample.prompt}!"})
    return [item for item in output if item]
'''


def form(source: str) -> str:
    return fingerprint_of(ast.parse(textwrap.dedent(source)).body[0])


def test_a_fingerprint_is_a_known_one() -> None:
    """As every version of Python from 3.10 on makes it."""
    assert form(BODY) == "967782c9a58b"


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("    # one request\n", "", True),
        ('"""Asks the engine."""', '"""Asks."""', True),
        ("(args, sample):", "(args: Any, sample: list[int]) -> list[Any]:", True),
        ("async def", "@traced\nasync def", True),
        ("args.url", "args.address", False),
        ("}!", "}?", False),
        ("(args, sample)", "(args, sample=None)", False),
        ("await post", "await send", False),
        ("    return", "    log(output)\n    return", False),
    ],
)
def test_only_what_has_an_effect_changes_a_fingerprint(old: str, new: str, same: bool) -> None:
    assert old in BODY
    assert (form(BODY.replace(old, new)) == form(BODY)) is same


def make_module(functions: dict[str, Callable[..., Any]]) -> Any:
    module = types.ModuleType("a_host")
    vars(module).update(functions)
    return module


def group_function(sample: Any) -> Any:
    return [generate(one) for one in sample]  # type: ignore[name-defined]  # noqa: F821


def test_a_host_is_refused_by_what_is_missing_and_by_what_is_no_longer_called() -> None:
    module = make_module({"group": group_function})
    with pytest.raises(UnsupportedHost, match=r"has no a_host\.generate, a_host\.post"):
        check_host("slime", [Used(module, "group"), Used(module, "generate"), Used(module, "post")], True)
    with pytest.raises(UnsupportedHost, match=r"a_host\.group .*no longer calls \['sample'\]"):
        check_host("slime", [Used(module, "group", calls=("generate", "sample"))], True)
    assert check_host("slime", [Used(module, "group", calls=("generate",))], False) is None


def test_an_unknown_body_is_refused_with_the_known_versions_unless_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uses = [Used(make_module({"group": group_function}), "group", body=True)]
    known = {"slime": {"a_host.group": {"123456789abc": "slime 1a2b3c4 (2026-08-01)"}}}
    monkeypatch.setattr(guard, "BODIES", known)
    with pytest.raises(UnsupportedHost, match=r"a_host\.group \([0-9a-f]{12}\); known are slime 1a2b3c4"):
        check_host("slime", uses, False)
    assert "a_host.group" in str(check_host("slime", uses, True))
    assert "allowed by rollout_patch_allow_unknown_host" in caplog.text
    assert check_host("slime", uses, None) is None
    assert "the first rollout will be refused" in caplog.text
    known["slime"]["a_host.group"][guard.fingerprint(group_function)] = "slime 5d6e7f8 (2026-08-02)"
    assert check_host("slime", uses, False) is None


def test_a_function_without_source_is_unknown() -> None:
    assert guard.fingerprint(len) == "no source"
