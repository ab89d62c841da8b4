"""`parity sample`: both arms against one engine at fixed weights, until the evidence suffices (L1)."""

from parity.commands.sample.config import BLOCK, MARGINS, SamplingConfig
from parity.commands.sample.judging import SamplingResult
from parity.commands.sample.prompts import Prompt, read_prompts
from parity.commands.sample.running import SamplingProgress, Watcher, sample_arms

__all__ = [
    "BLOCK",
    "MARGINS",
    "Prompt",
    "SamplingConfig",
    "SamplingProgress",
    "SamplingResult",
    "Watcher",
    "read_prompts",
    "sample_arms",
]
