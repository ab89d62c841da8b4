"""What each command does, from its inputs to what it reports.

Options and printed text are in `parity.cli`, rendering in `parity.report`.
"""
