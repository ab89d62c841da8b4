"""Sets up a virtual environment in which the real SGLang 0.5.23 serves on a CPU: ``install.py DIR``.

SGLang's own requirements pull gigabytes of CUDA. Here every package it needs on a CPU is pinned and installed without
dependencies, and two imports that only matter on a GPU are satisfied. Safe to run again: what is there is kept, and a
changed recipe is installed over it. Takes about two minutes and 2.8 GB. Needs Python 3.11 or 3.12, and a CPU build of
torch that pip can find: point PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS at one.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PYTHONS = ((3, 11), (3, 12))

# SGLang imports vLLM's rotary embedding for devices without kernels of their own, and never calls it on a CPU.
VLLM_STUB = '''"""Stands in for vLLM, which SGLang imports but does not call on a CPU."""


def rotary_embedding(*args, **kwargs):
    """Never called on a CPU."""
    raise NotImplementedError("vLLM is not installed")
'''

# The default index's torchvision is linked against CUDA, so its operators do not load next to a CPU build of torch. It
# registers shape functions for two of them all the same, which fails unless they are declared.
TORCHVISION_MARK = "# Declared for a CPU build of torch"
TORCHVISION_OPERATORS = f"""
{TORCHVISION_MARK}
if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(f"{{_name}}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""

CHECK = """
import torch, torchvision
from importlib.metadata import version
from vllm._custom_ops import rotary_embedding
assert torch.version.cuda is None, f"torch {torch.__version__} is built for CUDA"
print("sglang", version("sglang"), "on torch", torch.__version__)
"""


def main(directory: Path) -> int:
    """Makes `directory` such an environment; returns the exit code."""
    if sys.version_info[:2] not in PYTHONS:
        return fail(f"SGLang 0.5.23 and its pins need Python 3.11 or 3.12, not {sys.version.split()[0]}")
    recipe = hashlib.sha256(REQUIREMENTS.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    done, python = directory / ".recipe", directory / "bin" / "python"
    if done.exists() and done.read_text() == recipe and python.exists():
        return 0
    done.unlink(missing_ok=True)
    venv.EnvBuilder(with_pip=True).create(directory)
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", REQUIREMENTS]
    if subprocess.run(install, check=False).returncode:
        return fail("pip could not install the pins; a CPU build of torch comes from an index of its own")
    packages = directory / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    (packages / "vllm").mkdir(exist_ok=True)
    (packages / "vllm" / "__init__.py").touch()
    (packages / "vllm" / "_custom_ops.py").write_text(VLLM_STUB)
    extension = packages / "torchvision" / "extension.py"
    source = extension.read_text()
    if TORCHVISION_MARK not in source:
        extension.write_text(source + TORCHVISION_OPERATORS)
    if subprocess.run([python, "-c", CHECK], check=False).returncode:
        return fail("the environment does not work")
    done.write_text(recipe)
    return 0


def fail(why: str) -> int:
    """Prints why, and returns the exit code for it."""
    print(f"{Path(__file__).name}: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: install.py DIR")
    sys.exit(main(Path(sys.argv[1])))
