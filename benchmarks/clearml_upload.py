"""Publishing runs to ClearML against reporting their values one by one with the SDK, as a training loop does.

    python benchmarks/clearml_upload.py [--metrics 8] [--steps 150] [--repeats 3]

Both go to the same stand-in of a server on this machine, each in a process of its own, and both end with their tasks
completed. parity uploads two runs and their comparison with its tables and plots; the peer uploads the two runs alone.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from clearml_server import ClearMLServer, clearml_server

from parity.findings import judge
from parity.report.document import Report, build_report
from parity.report.runs import RunRecord
from parity.report.trackers import clearml

ARMS = ("per-sample", "native")
PEER = """
import math, sys
from clearml import Task
metrics, steps = map(int, sys.argv[1:])
for arm in ("per-sample", "native"):
    options = dict(auto_connect_frameworks=False, auto_resource_monitoring=False, reuse_last_task_id=False)
    task = Task.init("parity", arm, **options)
    for step in range(steps):
        for number in range(metrics):
            task.get_logger().report_scalar("train", f"metric_{number}", math.sin(step / 9 + number), step)
    task.close()
"""


def report(metrics: int, steps: int) -> Report:
    """Two runs of so many metrics and steps."""
    rows = [
        {"step": step, **{f"train/metric_{number}": math.sin(step / 9 + number) for number in range(metrics)}}
        for step in range(steps)
    ]
    runs = [RunRecord(f"{arm}-seed0", arm, 0, "paired", rows, {}, []) for arm in ARMS]
    return build_report({"baseline": ARMS[0], "experiment": ARMS[1]}, runs, [], judge([]))


def by_parity(asked: argparse.Namespace, directory: Path) -> None:
    """Publishes the report; every task must have gone to the server."""
    lines = list(clearml.publish(report(asked.metrics, asked.steps), directory))
    if any("offline" in line for line in lines):
        raise SystemExit("\n".join(lines))


def one_by_one(asked: argparse.Namespace, _: Path) -> None:
    """The SDK alone, a call a value."""
    command = [sys.executable, "-c", PEER, str(asked.metrics), str(asked.steps)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def arrived(server: ClearMLServer) -> int:
    """Scalars of the metrics, over all tasks."""
    return sum("metric_" in f"{event.get('variant')}{event.get('metric')}" for event in server.events)


async def main() -> None:
    """Takes turns, and prints the seconds of each and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--metrics", type=int, default=8)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    times: dict[str, list[float]] = {}
    for _ in range(asked.repeats):
        for name, publish in (("parity", by_parity), ("SDK, value by value", one_by_one)):
            with tempfile.TemporaryDirectory() as folder:
                async with clearml_server() as server:
                    configuration = Path(folder) / "clearml.conf"
                    configuration.write_text(server.configuration())
                    os.environ["CLEARML_CONFIG_FILE"] = str(configuration)
                    started = time.perf_counter()
                    await asyncio.to_thread(publish, asked, Path(folder))
                    times.setdefault(name, []).append(time.perf_counter() - started)
                    if (found := arrived(server)) < 2 * asked.metrics * asked.steps:
                        raise SystemExit(f"{name}: {found} scalars of {2 * asked.metrics * asked.steps} arrived")
    print(f"2 runs of {asked.metrics} metrics x {asked.steps} steps")
    for name, seconds in times.items():
        print(f"{name}: {min(seconds):.2f} to {max(seconds):.2f} s")
    ours, theirs = map(min, times.values())
    print(f"ratio of the best: {ours / theirs:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
