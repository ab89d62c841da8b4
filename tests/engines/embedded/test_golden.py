"""Every recorded request to the real engine, replayed: the same structure, and every value that no weight decides."""

import json
import threading
import time
from pathlib import Path

import pytest
from answers import fixed, items

RECORDED = Path(__file__).parents[2] / "data" / "sglang-0.5.23-cpu.exchanges.jsonl"
ROWS = [json.loads(line) for line in RECORDED.read_text().splitlines()]
PLAIN = [row for row in ROWS if not row["case"].startswith("abort")]


@pytest.mark.timeout(300)
def test_every_recorded_request_gets_the_recorded_structure(engine_url, ask):
    assert ask(engine_url, "/flush_cache", {})[0] == 200
    by_reason = {}
    for row in PLAIN:
        if row["status"] == 200:
            for item in map(fixed, items(row["response"])):
                by_reason.setdefault((row["case"], item[3]["finish_reason"]["type"]), item)
    for row in PLAIN:
        status, response = ask(engine_url, row["url"], row["request"])
        assert status == row["status"], (row["case"], response)
        if status != 200:
            assert response == row["response"], row["case"]
            continue
        assert type(response) is type(row["response"]), row["case"]
        assert len(items(response)) == len(items(row["response"])), row["case"]
        for ours, theirs in zip(items(response), items(row["response"]), strict=True):
            kinds = [item["meta_info"]["finish_reason"]["type"] for item in (ours, theirs)]
            if kinds[0] == kinds[1]:
                assert fixed(ours) == fixed(theirs), row["case"]
            else:
                # Weights decide which sample meets a stop: its keys are those that this request was answered with, or
                # another that ended the same way.
                alike = [item for (_, kind), item in by_reason.items() if kind == kinds[0]]
                assert fixed(ours)[0] in [item[0] for item in (fixed(theirs), *alike)], row["case"]


def test_recorded_greedy_and_prompt_facts_hold(engine_url, ask):
    case = {row["case"]: row["request"] for row in PLAIN}
    _, greedy = ask(engine_url, "/generate", case["native-greedy"])
    assert len({tuple(item["output_ids"]) for item in greedy}) == 1
    _, scored = ask(engine_url, "/generate", case["native-prompt-logprobs"])
    assert scored[0]["meta_info"]["input_token_logprobs"] == scored[1]["meta_info"]["input_token_logprobs"]
    _, top = ask(engine_url, "/generate", case["native-top-logprobs"])
    for item in top:
        for (chosen, token, _), best in zip(
            item["meta_info"]["output_token_logprobs"], item["meta_info"]["output_top_logprobs"], strict=True
        ):
            assert len(best) == 3
            assert [row[0] for row in best] == sorted((row[0] for row in best), reverse=True)
            assert all(row[0] == chosen for row in best if row[1] == token)


def abort_when_running(engine_url, ask, requests, running):
    """Sends requests one after another, waits until so many sequences run, aborts all, and returns the responses."""
    responses = [None] * len(requests)

    def send(place):
        responses[place] = ask(engine_url, "/generate", requests[place])

    threads = []
    for place in range(len(requests)):
        threads.append(threading.Thread(target=send, args=(place,)))
        threads[-1].start()
        wait_for(lambda: loads(engine_url, ask)["num_total_reqs"] >= min(len(threads) * running[1], running[2]))
    wait_for(lambda: loads(engine_url, ask)["num_running_reqs"] == running[0])
    time.sleep(0.1)
    assert ask(engine_url, "/abort_request", {"abort_all": True}) == (200, "")
    for thread in threads:
        thread.join()
    return responses


def loads(engine_url, ask):
    return ask(engine_url, "/v1/loads")[1]["loads"][0]


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("case", "running"),
    [("abort-running-n4", 4), ("abort-running-single", 1), ("abort-running-batched", 3)],
)
def test_aborted_while_running_they_carry_their_partial_output(engine_url, ask, case, running):
    row = next(row for row in ROWS if row["case"] == case)
    # The prompt has been seen, as when it was recorded.
    ask(engine_url, "/generate", row["request"] | {"sampling_params": {"max_new_tokens": 1}})
    [(status, response)] = abort_when_running(engine_url, ask, [row["request"]], (running, running, running))
    assert status == 200
    assert type(response) is type(row["response"])
    assert [fixed(item) for item in items(response)] == [fixed(item) for item in items(row["response"])]
    assert all(item["output_ids"] for item in items(response))


def test_an_abort_with_a_queue_mixes_partial_and_queued_items(engine_url, ask):
    rows = [row for row in ROWS if row["case"] == "abort-mixed-queue-n8"]
    requests = [row["request"] for row in rows]
    responses = abort_when_running(engine_url, ask, requests, (12, 8, 24))
    ours = [fixed(item) for _, response in responses for item in response]
    recorded = [fixed(item) for row in rows for item in row["response"]]
    assert sorted(map(repr, ours)) == sorted(map(repr, recorded))
    waiting = {"type": "abort", "message": "Abort in waiting queue"}
    queued = [sum(item["meta_info"]["finish_reason"] == waiting for item in response) for _, response in responses]
    assert queued == [0, 4, 8]
