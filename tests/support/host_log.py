"""Prints, as a host does, the metrics of two rollouts that the host's own code makes of four samples each.

python host_log.py slime|miles CHECKOUT [EVENT_DIRECTORY]
"""

from __future__ import annotations

import argparse
import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

ABSENT = ("ray", "sglang", "sglang_router", "wandb")


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes modules that logging does not use, so that the host's modules can be imported without them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ABSENT else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: MagicMock()  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run."""


class Arguments(argparse.Namespace):
    def __getattr__(self, name: str) -> None:
        return None


def main(host: str, checkout: str, events: str = "") -> None:
    sys.meta_path.insert(0, Absent())
    sys.path.insert(0, checkout)
    args = Arguments(rollout_num_gpus=2, rollout_num_gpus_per_engine=1, n_samples_per_prompt=2, rollout_batch_size=2)
    args.advantage_estimator, args.global_batch_size = "grpo", 4
    if host == "slime":
        importlib.import_module("slime.observability.logging_utils").configure_logger()
        metrics = importlib.import_module("slime.observability.rollout_metrics")
    else:
        log = importlib.import_module("miles.utils.logging_utils")
        log.configure_logger_raw("rollout")
        metrics = importlib.import_module("miles.ray.rollout.metrics")
        writer = importlib.import_module("miles.utils.audit_utils.event_logger.logger")
        identity = importlib.import_module("miles.utils.audit_utils.process_identity").MainProcessIdentity()
        writer.set_event_logger(writer.EventLogger(log_dir=Path(events), file_name="main.jsonl", source=identity))
    sample = importlib.import_module(f"{host}.utils.types").Sample
    for rollout in range(2):
        samples = [
            sample(
                group_index=i // 2,
                index=i,
                prompt="p",
                tokens=[1, 2, 3],
                response="x",
                response_length=2 + i + rollout,
                reward=float(i % 2),
                status=sample.Status.TRUNCATED if i == 0 else sample.Status.COMPLETED,
            )
            for i in range(4)
        ]
        metrics.log_rollout_data(rollout, args, samples, {"rollout/odd": float("nan")}, 4.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
