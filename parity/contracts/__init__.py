"""The parts of `parity.contract_checks`: one module a subject."""
