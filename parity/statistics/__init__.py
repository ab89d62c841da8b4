"""The parts of `parity.stats`, which is where to import them from."""
