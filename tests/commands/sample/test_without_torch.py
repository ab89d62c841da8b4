"""Sampling a deployment needs no torch, as the base installation has none."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "tokenizers", "safetensors", "sklearn"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Absent())
import parity.commands.sample.running
import parity.commands.sample.reporting
"""


def test_what_samples_a_deployment_is_imported_without_torch() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)
