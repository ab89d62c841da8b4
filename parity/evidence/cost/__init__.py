"""L4: requests, time, speed and balance, as ratios of interleaved work.

Nothing is measured here; `parity.commands.bench` does.
"""
