"""The real vLLM, started once: it answers as recorded, takes weights whole, keeps seeds, trains, and leaves nothing."""

import asyncio
import json
from pathlib import Path

import psutil
import pytest
import torch
from real_engine import needs_vllm
from small_experiment import TWIN, curves, stores

from parity.conformance import check_engine
from parity.conformance.known import known_deviations
from parity.conformance.probe import About
from parity.engines import open_engine
from parity.engines.checkpoints import HEAD_FILE
from parity.engines.designs import choose_designs
from parity.engines.detection import detect_determinism
from parity.engines.vllm import FIXED_PROMPT
from parity.findings import Status
from parity.records.exchanges import read_exchanges
from parity.records.experiment import ExperimentConfig
from parity.trainer.policy import build_policy, load_policy, policy_config, save_policy
from rollout_patch import RequestFailed

pytestmark = needs_vllm
RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32.0-cpu.exchanges.jsonl"
STEERED = {"abort-by-id-n4", "abort-wrong-id-n2", "pause-abort-n4", "weight-version-two-spans"}
SET_UP = {"n-over-max-num-seqs": "the recorded server ran 64 at once", "stream-n2": "no client of ours streams"}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Two checkpoints of one shape and other weights everywhere, which tie their head, with the recorded context."""
    directory = tmp_path_factory.mktemp("checkpoints")
    config = policy_config(max_position_embeddings=2048)
    return [save_policy(build_policy(seed, config), directory / f"seed-{seed}") for seed in (1, 2)]


@pytest.fixture(scope="module")
def engine(checkpoints, tmp_path_factory):
    logs = tmp_path_factory.mktemp("logs")
    with open_engine("vllm", checkpoints[0], logs) as running:
        server = psutil.Process(running.pid)
        started = [server, *server.children(recursive=True)]
        assert (logs / "vllm-0-checkpoint" / HEAD_FILE).exists()
        yield running
    assert len(started) >= 3, "a server, its engine and its worker"
    _, left = psutil.wait_procs(started, timeout=10)
    assert left == [], "no process may be left behind"


def ask(engine, *payloads):
    async def go():
        async with engine.client() as client:
            return [await client.generate(payload) for payload in payloads]

    return asyncio.run(go())


@pytest.mark.parametrize(
    "exchange",
    [
        exchange
        for exchange in read_exchanges(RECORDED)
        if exchange.as_said is not None and exchange.extra["case"] not in STEERED | SET_UP.keys()
        if exchange.engine_id == "vllm-0.32.0-cpu"
    ],
    ids=lambda exchange: exchange.extra["case"],
)
def test_what_was_recorded_is_answered_alike(engine, exchange):
    request, recorded = exchange.as_said
    asked = {name: value for name, value in request.items() if name != "model" or value == "nope"}
    try:
        (answer,) = ask(engine, asked)
    except RequestFailed as refused:
        assert (refused.status, sorted(refused.body["error"])) == (exchange.status, sorted(recorded["error"]))
        return
    assert exchange.status == 200
    assert sorted(answer) == sorted(recorded)
    choices = [[sorted(choice) for choice in one["choices"]] for one in (answer, recorded)]
    assert choices[0] == choices[1]


def scores(checkpoint):
    """Log-probs of the fixed prompt's tokens but the first, by the trainer's own pass."""
    with torch.no_grad():
        logits = load_policy(checkpoint)(torch.tensor([FIXED_PROMPT])).logits[0, :-1]
    return logits.log_softmax(-1)[range(len(FIXED_PROMPT) - 1), FIXED_PROMPT[1:]].tolist()


def test_weights_arrive_whole_also_where_the_head_is_tied_to_the_embedding(engine, checkpoints):
    async def push():
        seen = []
        async with engine.client() as client:
            for number, checkpoint in enumerate([*checkpoints, checkpoints[0]]):
                await client.update_weights(checkpoint, f"v{number}")
                seen.append((await client._scores(), (await client.model_info())["weight_version"]))
        return seen

    seen = asyncio.run(push())
    assert [version for _, version in seen] == ["v0", "v1", "v2"]
    assert seen[0][0] == seen[2][0] != seen[1][0]
    for (found, _), checkpoint in zip(seen, checkpoints, strict=False):
        assert found == pytest.approx(scores(checkpoint), abs=1e-4)


def test_seeds_hold_in_any_batch_and_by_slot(engine):
    async def seen():
        async with engine.client() as client:
            return await detect_determinism(client.generate, await client.capabilities(), client.dialect)

    found = asyncio.run(seen())
    assert {name for name, fact in found.facts.items() if not fact.holds} == {"lists take a seed per item"}
    assert (found.contradictions, found.clones) == ((), ())
    assert found.capabilities.most_samples == 256
    assert choose_designs(ExperimentConfig("per-sample", "native"), found) == ("twin", "paired")


@pytest.mark.parametrize("plants", [(), ("--plant", "exchanged-outputs@2")])
def test_a_twin_is_equal_bit_for_bit_and_shows_where_a_fault_was_planted(engine, parity_here, tmp_path, plants):
    out = tmp_path / "out"
    ended = parity_here("run", *TWIN, *plants, "--engine", engine.url, "--control", "--out", out)
    report = json.loads((out / "report" / "report.json").read_bytes())
    if not plants:
        assert (ended.returncode, report["verdict"]) == (0, "PARITY"), ended.printed + ended.errors
        first, second = map(curves, stores(out))
        assert first == second
        assert max(row["train/train_rollout_logprob_abs_diff"] for row in first) < 1e-4
        return
    assert (ended.returncode, report["verdict"]) == (1, "DIFFERENT"), ended.printed + ended.errors
    failing = {finding["check"]: finding["where"] for finding in report["findings"] if finding["status"] == "fail"}
    where = failing["samples_received"]
    assert (where["run"], where["rollout_id"], where["field"]) == ("native-seed0", 2, "output_ids")


def test_it_keeps_its_promises_but_for_the_deviations_that_are_known(engine):
    findings = check_engine(engine.url, control=True)
    assert [(finding.check, finding.message) for finding in findings if finding.fails] == []
    known = known_deviations(About(vllm="0.32.0", settings={"device": "cpu"}))
    assert {finding.check for finding in findings if finding.status is Status.FAIL} == {
        f"engine_{name}" for name in known
    }
    assert not [finding.check for finding in findings if finding.status is Status.NOT_COMPARED]
