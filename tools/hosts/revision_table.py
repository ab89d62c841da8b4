"""Runs the plug-in's tests over the history of a host, and prints which revisions it works with.

    python tools/hosts/revision_table.py slime=REPOSITORY miles=REPOSITORY relax=REPOSITORY [--newest N] [--tests WORDS]

Revisions with the same bodies of the functions that the plug-in holds on to are one row; the newest of them is run, out
of a checkout of its own in a temporary folder, with unknown bodies allowed. By default they are refused, which needs no
run; so what lies further back is one row. What a host's code needs is found by PYTHONPATH, too.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from known_bodies import FUNCTIONS, bodies, git, label

from rollout_patch.hosts.known import BODIES

TESTS = {"slime": "test_slime.py", "miles": "test_miles.py", "relax": "test_relax_code.py"}
WORDS = "one_native_body or field_by_field or training_tensors_are_equal or comes_back or come_back"
"""Tests that say whether a revision works: the request, and seeded equality with stock, sample by sample."""
ROOT = Path(__file__).resolve().parents[2]


def rows_of(host: str, repository: str) -> list[tuple[list[str], dict[str, str]]]:
    """Revisions of equal bodies, the newest first: the revisions, and the bodies by function."""
    files = [f"{module.replace('.', '/')}.py" for module in FUNCTIONS[host]]
    rows: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for revision in git(repository, "log", "--format=%H", "HEAD", "--", *files).split():
        key = tuple(sorted(bodies(host, repository, revision)))
        rows.setdefault(key, []).append(revision)
    return [(revisions, dict(key)) for key, revisions in rows.items()]


def outcome(host: str, repository: str, revision: str, words: str) -> str:
    """What the tests say of one revision, in a few words."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder) / host
        subprocess.run(["git", "clone", "-q", "--shared", "-n", repository, checkout], check=True)
        subprocess.run(["git", "-C", checkout, "checkout", "-q", revision], check=True)
        environment = {
            **os.environ,
            f"{host.upper()}_CHECKOUT": str(checkout),
            "ROLLOUT_PATCH_ALLOW_UNKNOWN_HOST": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])),
        }
        tests = [str(ROOT / "tests" / "hosts" / TESTS[host]), "-k", words]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "--timeout=90", *tests]
        try:
            ran = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
            )
        except subprocess.TimeoutExpired:
            return "not tried: the tests did not end in 300 s"
    refused = re.search(r"UnsupportedHost: (\S+ .*? has no [^;]+|[^;]*no longer calls[^,]*)", ran.stdout)
    last = next((line for line in reversed(ran.stdout.splitlines()) if " passed" in line or " failed" in line), "")
    counts = ", ".join(re.findall(r"\d+ (?:passed|failed|error(?:s)?)", last))
    if refused:
        return f"refuses: {refused[1]}"
    if not counts or "passed" not in counts:
        error = re.search(r"^E? *(\w*Error: .*)$", ran.stdout, re.MULTILINE)
        return f"not tried: {error[1][:90] if error else 'its code cannot be imported here'}"
    failed = dict.fromkeys(re.findall(r"^(?:FAILED|ERROR) \S+::(\w+)", ran.stdout, re.MULTILINE))
    return f"differs: {counts} ({', '.join(failed)})" if failed else f"works: {counts}"


def span(host: str, repository: str, first: str, last: str) -> str:
    """Revisions between two, for people."""
    named = label(host, repository, last)
    return named if first == last else f"{named} back to {label(host, repository, first).partition(' ')[2]}"


def main() -> None:
    """Prints one table, a row as it is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", nargs="+", metavar="HOST=REPOSITORY")
    parser.add_argument("--newest", type=int, default=12, help="rows a host that are run")
    parser.add_argument("--tests", default=WORDS, help="which tests, as pytest's -k takes it")
    options = parser.parse_args()
    print("| revisions | bodies | result |\n|---|---|---|")
    for one in options.hosts:
        host, _, repository = one.partition("=")
        rows = rows_of(host, repository)
        for revisions, found in rows[: options.newest]:
            unknown = sum(digest not in BODIES[host].get(name, {}) for name, digest in found.items())
            known = f"{unknown} of {len(found)} unknown: refused; allowed" if unknown else "known"
            named = span(host, repository, revisions[-1], revisions[0])
            print(f"| {named} | {known} | {outcome(host, repository, revisions[0], options.tests)} |", flush=True)
        if older := rows[options.newest :]:
            named = span(host, repository, older[-1][0][-1], older[0][0][0])
            print(f"| {named}, in {len(older)} forms | unknown: refused; allowed | not tried |", flush=True)


if __name__ == "__main__":
    main()
