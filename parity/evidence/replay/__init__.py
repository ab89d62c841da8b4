"""L2: whether the same responses lead to the same samples, advantages, loss and gradients.

Recordings are served by `parity.engines`.
"""

from parity.evidence.replay.twins import compare_twin_steps, compare_twins

__all__ = ["compare_twin_steps", "compare_twins"]
