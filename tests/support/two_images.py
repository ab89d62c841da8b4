"""Two images in one prompt as the real engine was seen to answer them, for hosts to be replayed with."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

_RECORDED = Path(__file__).parents[1] / "data" / "sglang-0.5.23-cpu-qwen2.5-vl.exchanges.jsonl"


def exchange(case: str) -> dict[str, Any]:
    """A recorded exchange by its name."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in _RECORDED.read_text().splitlines()]
    return next(row for row in rows if row["case"] == case)


def image(data_url: str) -> Any:
    """An image off the wire."""
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(data_url.partition(",")[2]))).convert("RGB")


def answer(body: dict[str, Any]) -> tuple[int, Any]:
    """What the engine answered to images in this shape: it takes a flat list for n = 1, and a nested one for more."""
    several = body["sampling_params"].get("n", 1) > 1
    shape = "nested" if isinstance(body["image_data"][0], list) else "flat"
    row = exchange(f"two-images-{'native' if several else 'single'}-{shape}")
    return row["status"], row["response"]


def assert_asked_and_answered(body: dict[str, Any], output: Any, row: dict[str, Any]) -> None:
    """One native request asked for the images of a recorded exchange, and each sample is what it was answered with."""
    params, (urls,) = row["request"]["sampling_params"], row["request"]["image_data"]
    assert body["sampling_params"]["n"] == params["n"]
    assert [[image(one).tobytes() for one in images] for images in body["image_data"]] == [
        [image(url).tobytes() for url in urls]
    ]
    (group,) = output.samples
    for sample, item in zip(group, row["response"], strict=True):
        triples = item["meta_info"]["output_token_logprobs"]
        assert sample.tokens[-sample.response_length :] == item["output_ids"]
        assert sample.rollout_log_probs == [triple[0] for triple in triples]
        assert (sample.response, sample.weight_versions) == (item["text"], [item["meta_info"]["weight_version"]])
    assert len({id(sample.tokens) for sample in group}) == params["n"]
    assert output.metrics["rollout_patch/native_groups"] == 1
    assert "rollout_patch/fallback/refused_native" not in output.metrics
