"""`python -m parity`, the same as the command `parity`."""

from parity.cli import main

main()
