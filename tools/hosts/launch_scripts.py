"""Counts, over the launch scripts that a host ships, how many could ask for groups natively, and why the rest cannot.

    python tools/hosts/launch_scripts.py slime=CHECKOUT miles=CHECKOUT relax=CHECKOUT [--list]

A script is a shell or Python file that starts a training run with rollouts; what only trains (SFT), evaluates or serves
is not counted. Flags are read from the text, comments left out: what a script makes up when it runs is not seen.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

FOLDERS = {"slime": ("scripts", "examples"), "miles": ("scripts", "examples"), "relax": ("scripts", "examples")}
STARTS = {
    "slime": r"\btrain(_async)?\.py\b",
    "miles": r"\btrain(_async)?\.py\b|execute_train\(",
    "relax": r"relax/entrypoints/train\.py|relax\.entrypoints\.train|\bentrypoints?/[\w-]+\.sh",
}
"""What starts a run."""
NO_ROLLOUTS = r"--loss-type[ =]+sft|sft_rollout|--debug-train-only|--loss-type\", ?\"sft|--train-sft|SFT_ARGS"
"""What only trains."""
REASONS = {
    "speculative_decoding": r"--sglang-speculative-algorithm",
    "indexer_replay": r"--use-rollout-indexer-replay",
    "custom_generate": r"--custom-generate-function-path|--custom-agent-function-path",
    "another rollout function": r"--rollout-function-path(?! slime\.rollout\.fully)|--use-agentic-rollout",
    "disaggregated_prefill": r"--prefill-num-servers|--sglang-disaggregation-mode",
    "deterministic_inference": r"--sglang-enable-deterministic-inference",
    "middleware_router": r"--use-miles-router|--use-slime-router",
    "lora_adapter": r"--lora-adapter|--lora-rank|--multi-lora",
    "engine_unknown": r"--sglang-config",
    "kept_tokens": r"--rollout-top-p[ =\"',]+0?\.\d",
    "client_request_id": r"--multi-lora",
}
"""The flags behind each reason of `rollout_patch.CONDITIONS`, and other rollout functions than the plug-in's."""
BY_ENGINE = {"slime": set(), "miles": {"lora_adapter"}, "relax": set()}
"""Reasons that an engine's release lifts, `rollout_patch.hosts.engines.LORA_WITH_N`."""
MERGED = {"relax": {"lora_adapter": r"--lora-adapter-mode"}}
"""Reasons for which a host needs other flags: Relax merges LoRA weights without an adapter mode."""


def scripts(host: str, checkout: Path) -> Iterator[tuple[Path, str]]:
    """The launch scripts of a host, each with its text without comments."""
    for folder in FOLDERS[host]:
        for path in sorted((checkout / folder).rglob("*")):
            if path.suffix not in (".sh", ".py") or not path.is_file():
                continue
            text = re.sub(r"(?m)^\s*#.*$|\s#\s.*$", "", path.read_text(encoding="utf-8", errors="replace"))
            starts = re.search(STARTS[host], text) and re.search(r"--(rollout-batch-size|n-samples-per-prompt)", text)
            if starts and not re.search(NO_ROLLOUTS, text):
                yield path.relative_to(checkout), text


def reasons(host: str, text: str) -> list[str]:
    """Why a script's groups would not go native."""
    flags = {**REASONS, **MERGED.get(host, {})}
    return [name for name, pattern in flags.items() if re.search(pattern, text)]


def main(*given: str) -> None:
    """Prints one row a host; with ``--list`` each script that is not eligible, too."""
    listed = "--list" in given
    print("| host | scripts | eligible | share | on engines that unload adapters | reasons of the rest |")
    print("|---|---|---|---|---|---|")
    rest = []
    for one in given:
        if one == "--list":
            continue
        host, _, checkout = one.partition("=")
        found = {path: reasons(host, text) for path, text in scripts(host, Path(checkout))}
        counts = Counter(name for names in found.values() for name in names)
        free = sum(not names for names in found.values())
        mended = sum(set(names) <= BY_ENGINE[host] for names in found.values())
        why = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        print(f"| {host} | {len(found)} | {free} | {free / max(1, len(found)):.0%} | {mended} | {why} |")
        rest += [f"{host} {path}: {', '.join(names)}" for path, names in found.items() if names]
    if listed:
        print("\n".join(["", *rest]))


if __name__ == "__main__":
    main(*sys.argv[1:])
