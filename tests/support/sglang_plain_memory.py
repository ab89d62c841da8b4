"""SGLang's server with plain memory where it asks for pinned memory, which needs an accelerator.

What captures the experts of a mixture of experts, and LoRA, copy through such memory, on a CPU too. Run by the Python
that has SGLang, in place of ``-m sglang.launch_server``.
"""

from __future__ import annotations

import functools
import sys

import torch
from sglang.srt.state_capturer import base


def _unpinned(make):
    @functools.wraps(make)
    def made(*sizes, **options):
        options.pop("pin_memory", None)
        return make(*sizes, **options)

    return made


# at import, so that SGLang's own processes, which import this file, have it too
for _name in ("tensor", "empty", "zeros"):
    setattr(torch, _name, _unpinned(getattr(torch, _name)))
torch.Tensor.pin_memory = lambda self: self
base.ALLOC_MEMORY_FUNCS["cpu"] = lambda dims, dtype, device, pin_memory, allocator: torch.empty(dims, dtype=dtype)

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args

    run_server(prepare_server_args(sys.argv[1:]))
