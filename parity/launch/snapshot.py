"""Writes what a job starts with: host, Python, packages, the state of its code, and digests of its variables.

Passed to the job's own Python as text, since a cluster's nodes need not have this package; so it stands alone, and what
goes wrong here never stops the job.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from importlib import metadata


def digest(content: bytes) -> str:
    """The first 12 hexadecimal digits of a SHA-256: enough to tell values apart, and nothing of a secret."""
    return hashlib.sha256(content).hexdigest()[:12]


def git(folder: str, *arguments: str) -> bytes:
    """What git prints in a folder; nothing outside a checkout."""
    try:
        return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return b""


def state_of(folder: str) -> str:
    """The commit that is checked out, and a digest of what differs from it; empty outside a checkout."""
    commit, changes = git(folder, "rev-parse", "HEAD").decode(), git(folder, "diff", "HEAD")
    return f"{commit} with changes {digest(changes)}" if commit and changes else commit


def snapshot(folders: "list[str]") -> "dict[str, object]":
    """What this process was started with."""
    packages = {str(one.metadata["Name"]): one.version for one in metadata.distributions()}
    return {
        "host": platform.node(),
        "python": platform.python_version(),
        "packages": dict(sorted(packages.items())),
        "code": {folder: state_of(folder) for folder in folders},
        "environment": {name: digest(os.fsencode(value)) for name, value in sorted(os.environ.items())},
    }


if __name__ == "__main__":
    with open(sys.argv[1], "w") as file:
        json.dump(snapshot(sys.argv[2:]), file)
