"""`parity sample`: both arms against one engine at fixed weights, until the evidence suffices (L1)."""

from parity.commands.sample.prompts import Prompt, read_prompts
from parity.commands.sample.running import SamplingProgress, Watcher, sample_arms

__all__ = ["Prompt", "SamplingProgress", "Watcher", "read_prompts", "sample_arms"]
