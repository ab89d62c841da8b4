"""The report as one page: its size, and the time to make it and to open it in Chromium.

    python benchmarks/report_page.py [--steps 200] [--samples 512] [--tokens 64] [--design paired] [--repeats 5]

Each of both arms has so many samples a step; their token ids and log-probs are random, which compresses worst.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from parity.findings import judge
from parity.records.samples import SCHEMA, Rollout
from parity.records.store import RunStore, run_store
from parity.report import html
from parity.report.document import Report, build_report
from parity.report.runs import RunRecord

GROUP_SIZE = 8
ARMS = ("per-sample", "native")
WORDS = ["the", "a", "of", "so", "we", "have", "that", "each", "group", "and", "its", "sum", "is", "therefore", "equal"]


def rollout(step: int, samples: int, tokens: int, arm: str) -> Rollout:
    """Samples of one step with responses of up to twice as many tokens."""
    rng = np.random.default_rng([step, ARMS.index(arm)])
    lengths = rng.integers(1, 2 * tokens, samples)
    words = random.Random(f"{step} {arm}")
    columns = {
        "rollout_id": [step] * samples,
        "group_index": [row // GROUP_SIZE for row in range(samples)],
        "index": [row % GROUP_SIZE for row in range(samples)],
        "prompt_ids": [[3, 1, 4, row // GROUP_SIZE] for row in range(samples)],
        "output_ids": [rng.integers(0, 150_000, length).tolist() for length in lengths],
        "logprobs": [(-rng.exponential(0.5, length)).tolist() for length in lengths],
        "text": [" ".join(words.choices(WORDS, k=int(length))) for length in lengths],
        "finish_reason": ["stop"] * samples,
        "reward": rng.random(samples).round().tolist(),
        "advantage": rng.normal(size=samples).tolist(),
        "loss_mask": [[1] * int(length) for length in lengths],
        "response_length": lengths.tolist(),
        "extra": [f'{{"prompt": "Question {row // GROUP_SIZE} of step {step}"}}' for row in range(samples)],
    }
    return Rollout.from_table(
        pa.table({name: pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()}), arm
    )


def make(directory: Path, asked: argparse.Namespace) -> Report:
    """An experiment of one pair on disk, with 40 metrics a step, and its report."""
    runs = []
    for arm in ARMS:
        store: RunStore = run_store(directory, f"{arm}-seed1")
        store.create()
        rows = []
        for step in range(asked.steps):
            store.write_step(step, rollout(step, asked.samples, asked.tokens, arm), [])
            metrics = {f"train/metric_{number}": math.sin(step / 9 + number) for number in range(38)}
            rows.append(
                {"step": step, "rollout/raw_reward": step / asked.steps, "rollout/samples": asked.samples, **metrics}
            )
            store.append_metrics(rows[-1])
        runs.append(RunRecord(store.name, arm, 1, asked.design, rows, {}, []))
    return build_report({"baseline": ARMS[0], "experiment": ARMS[1]}, runs, [], judge([]))


def seconds_to_open(page: Path) -> list[float]:
    """Seconds from the start of Chromium's navigation until the overview stands, and until a step's samples do."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page()
        started = time.perf_counter()
        tab.goto(page.as_uri())
        tab.wait_for_selector("main h2")
        opened = time.perf_counter()
        tab.evaluate("location.hash = document.querySelector('main a[href^=\"#samples\"]').hash")
        tab.wait_for_selector(".sample")
        shown = time.perf_counter()
        browser.close()
    return [opened - started, shown - opened]


def main() -> None:
    """Makes an experiment, its page, and opens it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--design", default="paired")
    parser.add_argument("--repeats", type=int, default=5, help="times that the page is opened; the best is printed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        report = make(directory, asked)
        started = time.perf_counter()
        evidence = html.gather(report, directory)
        gathered = time.perf_counter()
        page = directory / "report.html"
        page.write_bytes(html.render(report, evidence))
        rendered = time.perf_counter()
        opened, shown = map(min, zip(*(seconds_to_open(page) for _ in range(asked.repeats)), strict=True))
        size = page.stat().st_size / 1e6
    held = f"{len(evidence.packed)} steps held"
    print(f"{asked.steps} steps of 2 x {asked.samples} samples of {asked.tokens} tokens: {size:.1f} MB, {held}")
    print(f"samples read and packed in {gathered - started:.1f} s, page made in {rendered - gathered:.2f} s")
    print(f"opened in {opened:.2f} s, a step's samples shown {shown:.2f} s later")


if __name__ == "__main__":
    main()
