"""Writes `rollout_patch/hosts/known.py`: the bodies of the hosts' functions in revisions that the tests were run with.

    python tools/hosts/known_bodies.py slime=GIT@REVISION … miles=GIT@REVISION … relax=GIT@REVISION … > known.py

GIT is a repository, or its git directory. A body counts as known by the first revision named that has it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from rollout_patch.hosts.guard import fingerprint_of

FUNCTIONS = {
    "slime": {
        "slime.rollout.sglang_rollout": ("generate_and_rm_group", "generate_and_rm", "generate"),
        "slime.utils.http_utils": ("_post",),
    },
    "miles": {
        "miles.rollout.inference_rollout.inference_rollout_common": ("generate_and_rm_group", "generate_and_rm"),
        "miles.rollout.generate_hub.single_turn": ("generate",),
        "miles.rollout.sglang_rollout": ("generate_and_rm_group", "generate_and_rm", "generate"),
        "miles.utils.http_utils": ("_post",),
    },
    "relax": {
        "relax.engine.rollout.sglang_rollout": ("generate_and_rm_group", "generate_and_rm", "generate"),
        "relax.utils.http_utils": ("_post",),
    },
}
"""The functions whose bodies must be known, by host and module."""


def git(repository: str, *command: str) -> str:
    """What a git command prints; empty where it fails, as for a file that a revision lacks."""
    where = ["--git-dir", repository] if (Path(repository) / "HEAD").exists() else ["-C", repository]
    return subprocess.run(["git", *where, *command], capture_output=True, text=True, check=False).stdout


def bodies(host: str, repository: str, revision: str) -> Iterator[tuple[str, str]]:
    """The functions of one revision by full name, each with its fingerprint."""
    for module, names in FUNCTIONS[host].items():
        source = git(repository, "show", f"{revision}:{module.replace('.', '/')}.py")
        for node in ast.parse(source).body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in names:
                yield f"{module}.{node.name}", fingerprint_of(node)


def label(host: str, repository: str, revision: str) -> str:
    """A revision for people: host, short hash and day."""
    return f"{host} {git(repository, 'log', '-1', '--format=%h (%cs)', '--abbrev=9', revision).strip()}"


def main(*given: str) -> None:
    """Prints the module."""
    known: dict[str, dict[str, dict[str, str]]] = {host: {} for host in FUNCTIONS}
    for one in given:
        host, _, place = one.partition("=")
        repository, _, revision = place.rpartition("@")
        for name, found in bodies(host, repository, revision):
            known[host].setdefault(name, {}).setdefault(found, label(host, repository, revision))
    print('"""Bodies of hosts\' functions that the plug-in was tested with; written by tools/hosts/known_bodies.py."""')
    print("\nfrom __future__ import annotations\n\nfrom collections.abc import Mapping\n")
    print("BODIES: Mapping[str, Mapping[str, Mapping[str, str]]] = {")
    for host, functions in known.items():
        print(f'    "{host}": {{')
        for name, fingerprints in functions.items():
            print(f'        "{name}": {{')
            for digest, first in fingerprints.items():
                print(f'            "{digest}": "{first}",')
            print("        },")
        print("    },")
    print('}\n"""By host, function and fingerprint: the revision in which the body was first tested."""')


if __name__ == "__main__":
    main(*sys.argv[1:])
