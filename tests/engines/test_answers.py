"""What is damaged on its way is asked for again, what is of other weights is no sample, and what is sound passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from parity.engines.answers import SteadyPost, damage_of
from parity.engines.client import DAMAGED_TRIES, EngineClient
from parity.errors import EngineError
from parity.records.exchanges import read_exchanges
from rollout_patch import RequestFailed

PATHS = ("/generate", "/inference/v1/generate", "/v1/completions")
RECORDED = [
    exchange
    for path in sorted((Path(__file__).parents[1] / "data").glob("*.exchanges.jsonl"))
    for exchange in read_exchanges(path)
    if exchange.status == 200
    and exchange.url in PATHS
    and exchange.extra.get("case") != "n-string"
    and not exchange.request.get("stream")
]
PAYLOAD = {"input_ids": [5, 6], "sampling_params": {"n": 2}, "return_logprob": True}


def output(version: str = "v1") -> dict[str, Any]:
    logprobs = [[-0.5, 7, None], [-0.25, 8, None]]
    meta = {"id": "a", "finish_reason": {"type": "stop"}, "output_token_logprobs": logprobs, "weight_version": version}
    return {"text": "x", "output_ids": [7, 8], "meta_info": meta}


class Answering(EngineClient):
    """Gives the answers that it was told, in their order, the last one for ever."""

    def __init__(self, answers: Sequence[Any]) -> None:
        super().__init__("http://engine", "e0")
        self.answers = list(answers)
        self.weights = "v1"

    async def generate(self, payload: Any, headers: Any = None) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def ask(post: SteadyPost, payload: dict[str, Any], tries: int) -> Any:
    for _ in range(tries - 1):
        with pytest.raises(RequestFailed) as failure:
            await post(payload, {})
        assert failure.value.status is None
    return await post(payload, {})


def test_what_engines_were_recorded_to_answer_is_not_damaged() -> None:
    assert len(RECORDED) > 20
    assert [(exchange.request, damage) for exchange in RECORDED if (damage := damage_of(exchange))] == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda answer: answer.pop(),
        lambda answer: answer.append(output()),
        lambda answer: answer.__setitem__(1, None),
        lambda answer: answer[1].__setitem__("output_ids", "78"),
        lambda answer: answer[1].__setitem__("output_ids", [7, "8"]),
        lambda answer: answer[1].__setitem__("output_ids", [7]),
        lambda answer: answer[1].__setitem__("meta_info", []),
        lambda answer: answer[1]["meta_info"].__setitem__("output_token_logprobs", {}),
        lambda answer: answer[1]["meta_info"].__setitem__("finish_reason", "stop"),
    ],
)
async def test_a_damaged_answer_is_asked_for_again_until_it_is_the_engines_own(damage: Callable[[Any], Any]) -> None:
    sound = [output(), output()]
    damaged = copy.deepcopy(sound)
    damage(damaged)
    assert await ask(SteadyPost(Answering([sound])), PAYLOAD, 1) == sound
    assert await ask(SteadyPost(Answering([damaged, damaged, sound])), PAYLOAD, 3) == sound
    assert await ask(SteadyPost(Answering([damaged])), PAYLOAD, DAMAGED_TRIES) == damaged


async def test_a_200_without_json_and_a_redirect_are_no_answers_and_a_refusal_is_one() -> None:
    sound = [output(), output()]
    answers = [RequestFailed(200, "{'cut"), RequestFailed(307, ""), sound]
    assert await ask(SteadyPost(Answering(answers)), PAYLOAD, 3) == sound
    with pytest.raises(RequestFailed) as refusal:
        await SteadyPost(Answering([RequestFailed(400, "no")]))(PAYLOAD, {})
    assert refusal.value.status == 400


async def test_an_output_of_other_weights_is_never_handed_on() -> None:
    sound, foreign = [output(), output()], [output(), output("0123abcd-native-seed1-step4")]
    assert await ask(SteadyPost(Answering([foreign, sound])), PAYLOAD, 2) == sound
    with pytest.raises(EngineError, match=r"engine: output 'a' is of weights '0123abcd-native-seed1-step4', not of v1"):
        await ask(SteadyPost(Answering([foreign])), PAYLOAD, DAMAGED_TRIES)


async def test_one_sample_for_several_is_for_whoever_asked() -> None:
    assert await ask(SteadyPost(Answering([output()])), PAYLOAD, 1) == output()
