"""Answers of engines: as what no weight decides, as what a seed decides, and many at once."""

import asyncio

import aiohttp


def described(value):
    """A JSON value as its types, in order."""
    if isinstance(value, dict):
        return [(key, described(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [described(inner) for inner in value]
    return "number" if isinstance(value, float) else type(value).__name__


def fixed(item):
    """A response item without what weights and clocks decide; lengths that must agree are checked here."""
    meta = dict(item["meta_info"])
    count = len(item["output_ids"])
    reason = dict(meta["finish_reason"])
    assert meta["completion_tokens"] == count
    spans = meta.pop("weight_versions")
    assert [(span["start"], span["end"]) for span in spans] == [(0, count)]
    ends_itself = reason["type"] == "length"
    for name in ("output_token_logprobs", "output_top_logprobs"):
        if name in meta:
            rows = meta.pop(name)
            assert len(rows) == count
            meta[name] = described(rows[:1])
    if "output_token_logprobs_length" in meta:
        assert meta["output_token_logprobs_length"] == count
        assert [token for _, token, _ in item["meta_info"]["output_token_logprobs"]] == item["output_ids"]
    meta["input_token_logprobs"] = [
        [type(logprob).__name__, token, text] for logprob, token, text in meta.get("input_token_logprobs", [])
    ]
    for name in ("id", "e2e_latency", "response_sent_to_client_ts"):
        meta[name] = described(meta[name])
    if reason["type"] == "stop":
        reason["matched"] = described(reason["matched"])
    if not ends_itself:
        meta["completion_tokens"] = meta["output_token_logprobs_length"] = "weights"
        if count == 0:
            meta["output_token_logprobs"] = "none"
    keys = (list(item), list(item["meta_info"]), [list(span) for span in spans], [span["version"] for span in spans])
    return keys, type(item["text"]), count if ends_itself else "weights", meta | {"finish_reason": reason}


def items(response):
    return response if isinstance(response, list) else [response]


def outcome(item):
    return item["output_ids"], item["meta_info"]["output_token_logprobs"], item["meta_info"]["finish_reason"]


async def everything_at_once(url, bodies):
    async with aiohttp.ClientSession() as session:

        async def one(body):
            async with session.post(f"{url}/generate", json=body) as response:
                assert response.status == 200, await response.text()
                return await response.json()

        return await asyncio.gather(*map(one, bodies))
