"""Curves of runs that other trainers made: one module a source; `parity.sources.registry` recognises them."""
