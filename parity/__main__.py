"""`python -m parity`, the same as the command `parity`: nothing is imported from the folder that it is called in."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Runs the command; also where a package of the installation cannot be loaded, an exit code of 1 is a verdict."""
    here = os.getcwd()
    added = not getattr(sys.flags, "safe_path", False)  # by `python -m`; what PYTHONPATH names comes after it and stays
    if added and sys.path[0] in ("", here) and Path(__file__).parents[1] != Path(here):
        del sys.path[0]
    try:
        from parity.cli import main as run
    except Exception as error:
        print(f"parity: the installation cannot be loaded: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
