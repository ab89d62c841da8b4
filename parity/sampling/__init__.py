"""`parity sample`: both arms against one engine at fixed weights, until the evidence suffices (L1)."""

from parity.sampling.config import BLOCK, MARGINS, SamplingConfig
from parity.sampling.judging import SamplingResult
from parity.sampling.prompts import Prompt, read_prompts
from parity.sampling.running import SamplingProgress, Watcher, sample_arms

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
