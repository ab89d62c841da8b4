"""Where a result comes from: versions, machine and commit."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    *("rollout-parity", "torch", "transformers", "numpy", "scipy", "pyarrow", "aiohttp"),
    "sglang-router",
)


def versions() -> dict[str, str]:
    """Versions of Python, the platform and the packages that a result depends on; those not installed are left out."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "cores": str(os.cpu_count())}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit(directory: Path) -> str | None:
    """The git commit checked out around a directory, ``+dirty`` if files differ; `None` outside a repository."""
    try:
        head = _git(directory, "rev-parse", "HEAD")
        dirty = _git(directory, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}+dirty" if dirty else head


def _git(directory: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=directory, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def config_hash(config: Mapping[str, Any]) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of a configuration's canonical JSON."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
