"""What holds between modules beside the order of imports, which import-linter holds: names stay, the core is pure."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import rollout_patch
from parity.records import arms

ROOT = Path(__file__).parents[1]

NAMES = {
    "rollout_patch": """
        ARMS CONDITIONS Adapter Assignment Capabilities Condition Encoder GroupReport Output PatchError Permits Post
        Recorder RequestAborted RequestFailed ResponseRefused SampleRequest UnsupportedHost fixed generate_group
        group_metrics json_lines probe sample_rows switchback
    """,
    "parity.contract_checks": """
        CHECKS AdvantageFormula Check Rules check_accounting check_arms check_batches check_curves
        check_exchanges check_metrics check_recording check_requests check_samples samples_of summarise
    """,
    "parity.engines": "Engine EngineClient EngineProcess RemoteEngine open_engine",
    "parity.stats": """
        Band Collapse Evidence ExchangeProcess GroupValues InsideMargin Margin Mean PairMeans PowerRow RateComparison
        RatioResult RunComparison RunValues SignFlip Trajectory adjusted_log_e benjamini_hochberg collapse_finding
        collapse_rates compare_runs cost_findings curve_band decide_many detect_collapse distance_kernel
        equality_kernel holm margin_from_history mean_excess paired_log_ratio runs_needed sampling_findings
        simulate_groups simulate_power tost_power training_findings trajectory_findings verdict_of
    """,
}


@pytest.mark.parametrize("module", NAMES)
def test_names_that_others_import_stay(module: str) -> None:
    face = importlib.import_module(module)
    assert set(NAMES[module].split()) <= set(face.__all__)
    assert all(hasattr(face, name) for name in face.__all__)


def loaded_after(code: str, *flags: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after some code."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-I", *flags, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_the_patch_needs_the_standard_library_alone() -> None:
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in (ROOT / "rollout_patch").rglob("*.py")]
    modules = ", ".join(sorted(name.removesuffix(".__init__") for name in names))
    loaded = loaded_after(f"import {modules}", "-S")  # -S leaves installed packages out of reach
    assert "rollout_patch.group" in loaded
    assert not {name for name in loaded if name.split(".")[0] == "parity"}


def test_the_core_loads_nothing_that_runs_engines_trains_draws_or_prints() -> None:
    core = ("contract_checks", "metrics", "stats", "evidence.replay", "findings")
    loaded = loaded_after("import " + ", ".join(f"parity.{name}" for name in core))
    assert "parity.stats" in loaded
    edges = {"aiohttp", "click", "matplotlib", "psutil", "rich", "torch", "transformers"}
    edges |= {f"parity.{name}" for name in ("cli", "engines", "report", "runner", "records.store", "trainer")}
    assert not loaded & edges


def test_records_and_patch_know_the_same_arms() -> None:
    assert arms.WAYS == rollout_patch.ARMS


def test_the_page_on_architecture_names_what_there_is_in_the_order_of_imports() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    paths = set(re.findall(r"\b(?:parity|rollout_patch)/[\w/.]*\w", page))
    assert len(paths) > 25
    assert [path for path in paths if not (ROOT / path).exists()] == []
    layers = re.search(r"^layers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    assert layers
    held = re.findall(r"[\w.]+", layers[1])
    table = page.partition("## The order of imports")[2].partition("##")[0]
    cells = (cell for line in table.splitlines() if line.startswith("| `") for cell in line.split("|")[1:2])
    named = [path.removesuffix(".py").replace("/", ".") for cell in cells for path in re.findall("`([^`]+)`", cell)]
    assert named == [module for module in held if module != "parity.__main__"]
