"""Prompts are scored alike in both dialects, and an answer without log-probs of them is said to have none."""

import pytest
from served import serve_here

from parity.engines.client import EngineClient
from parity.engines.scoring import prompt_ids, score
from parity.engines.vllm import VllmClient
from parity.errors import ExchangeError
from parity.trainer.policy import build_policy, save_policy

PROMPTS = [[5, 6, 7, 8, 9], [9, 8, 7]]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with serve_here(save_policy(build_policy(1), tmp_path_factory.mktemp("policy") / "one"), 16) as (url, _):
        yield url


async def test_both_dialects_give_the_same_log_probs_and_ids(url):
    seen = []
    for speaks in (EngineClient, VllmClient):
        async with speaks(url, "e0") as client:
            seen.append((await score(client, PROMPTS, 1), await prompt_ids(client, "7+5=")))
    assert seen[0] == seen[1]
    rows = seen[0][0]
    assert [[token for _, token in row[1:]] for row in rows] == [prompt[2:] for prompt in PROMPTS]


@pytest.mark.parametrize("speaks", [EngineClient, VllmClient])
async def test_an_answer_without_log_probs_is_an_error(url, speaks, monkeypatch):
    async def generate(self, payload, headers=None):
        return {"choices": [{}]}

    monkeypatch.setattr(EngineClient, "generate", generate)
    async with speaks(url, "e0") as client:
        with pytest.raises(ExchangeError):
            await score(client, PROMPTS, 1)
        with pytest.raises(ExchangeError):
            await prompt_ids(client, "7+5=")
