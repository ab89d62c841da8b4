"""TRL's own code, from PyPI: a real `GRPOTrainer` trains on groups of every arm, and its server mode is guarded."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served import serve_here
from trl_training import GROUP, PROMPTS, STEPS, TASK, of_training, train

from parity.contract_checks import Rules, check_recording
from parity.findings import Status
from parity.records.exchanges import read_exchanges
from parity.sources.dumps.sample_lines import read_sample_lines
from parity.trainer.warm_start import warm_start
from rollout_patch import (
    ARMS,
    DIALECTS,
    VLLM,
    Capabilities,
    PatchError,
    RequestFailed,
    ResponseRefused,
    UnsupportedHost,
)
from rollout_patch.hosts.trl import GroupRollout, check_answer, guard_server_mode

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

SEEDED = Capabilities(seeded=True, seed_per_slot=True, free_clones=False)


@pytest.fixture(scope="module")
def policy(policy_cache: Path) -> Path:
    return warm_start(TASK, policy_cache)


@pytest.fixture(scope="module")
def engine_url(policy: Path) -> Iterator[str]:
    with serve_here(policy, 64) as (url, _):
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_arms_train_the_same_to_the_bit(policy: Path, engine_url: str, tmp_path: Path, dialect: str) -> None:
    """A twin: the same seeds in both arms lead to the same metrics and the same weights."""
    runs = {}
    for arm in ("per-sample", "native"):
        out = tmp_path / arm
        rollout = GroupRollout(
            engine_url, arm, DIALECTS[dialect], weights=out / "weights", seed=1, capabilities=SEEDED, record=out / "rec"
        )
        runs[arm] = train(policy, rollout, out)
        assert [path.name for path in (out / "weights").iterdir()] == [f"step-{STEPS - 1}"]
    (single_log, single), (native_log, native) = runs["per-sample"], runs["native"]
    assert of_training(native_log) == of_training(single_log)
    assert native == single
    start, _ = train(policy, GroupRollout(engine_url, dialect=DIALECTS[dialect]), tmp_path, max_steps=1)
    assert native != start
    assert len(native_log) == STEPS + 1
    assert [row["rollout_patch/requests"] for row in native_log[:STEPS]] == [PROMPTS] * STEPS
    assert [row["rollout_patch/requests"] for row in single_log[:STEPS]] == [PROMPTS * GROUP] * STEPS
    for arm in runs:
        check_recorded(tmp_path / arm / "rec", arm)


def check_recorded(folder: Path, arm: str) -> None:
    """What was recorded obeys the contract, and holds the rewards that the trainer trained on."""
    parts = list(read_sample_lines(folder / "rollout.samples.jsonl", None))
    samples = [sample for part in parts for sample in part.samples()]
    findings = check_recording(parts, read_exchanges(folder / "rollout.exchanges.jsonl"), Rules())
    assert [finding for finding in findings if finding.status is Status.FAIL] == []
    assert len(samples) == STEPS * PROMPTS * GROUP
    assert {sample.arm for sample in samples} == {arm}
    assert [one.weight_versions for one in samples[:: PROMPTS * GROUP]] == [[f"step-{step}"] for step in range(STEPS)]
    assert {sample.reward for sample in samples} == {0.0, 1.0}


@pytest.mark.slow
def test_what_the_page_shows_trains(policy: Path, engine_url: str, tmp_path: Path, monkeypatch: Any) -> None:
    from datasets import Dataset

    page = (Path(__file__).parents[2] / "docs" / "hosts" / "trl.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    for shown, here in {
        "http://127.0.0.1:8000": engine_url,
        "/shared/model": str(policy),
        "/shared": str(tmp_path),
        'output_dir="out", ': f'output_dir="{tmp_path}", max_steps=1, max_completion_length=10, **here, ',
    }.items():
        assert shown in code
        code = code.replace(shown, here)
    prompts = [TASK.view(one).text for one in TASK.prompts(0, 0, 8)]
    given = {
        "reward": lambda completions, **_: [float(len(one)) for one in completions],
        "dataset": Dataset.from_dict({"prompt": prompts}),
        "here": {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True},
    }
    exec(compile(code, "trl.md", "exec"), given)
    assert given["trainer"].state.global_step == 1  # type: ignore[attr-defined]
    assert len((tmp_path / "recording" / "rollout.samples.jsonl").read_text().splitlines()) == 8


@pytest.mark.slow
def test_a_seedless_batched_group_trains_too(policy: Path, engine_url: str, tmp_path: Path) -> None:
    log, _ = train(policy, GroupRollout(engine_url, "batched", weights=tmp_path / "weights"), tmp_path, max_steps=1)
    assert (log[0]["rollout_patch/batched_groups"], log[0]["rollout_patch/requests"]) == (PROMPTS, PROMPTS)


# --- against an engine that answers by a script

Reply = tuple[int, Any]


@contextmanager
def answering(reply: Callable[[str, dict[str, Any]], Reply]) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A server's address and what it was sent."""
    sent: list[tuple[str, dict[str, Any]]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            payload = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                sent.append((self.path, payload))
                status, body = reply(self.path, payload)
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def sound(path: str, payload: Mapping[str, Any], version: str = "step-0") -> Reply:
    """What vLLM answers: of a prompt and seed always the same, whichever way it is asked."""
    if path not in ("/inference/v1/generate", "/v1/completions"):
        return 200, {"status": "ok"}
    params = payload.get("sampling_params", payload)
    prompts = [payload["token_ids"]] if "token_ids" in payload else payload["prompt"]
    choices = []
    for place in range(len(prompts) * params.get("n", 1)):
        prompt = prompts[place // params.get("n", 1)]
        ids = [sum(prompt) % 50, (params.get("seed", 0) + place % params.get("n", 1)) % 97]
        choices.append({"index": place, "finish_reason": "length", "stop_reason": None, "token_ids": ids})
        if "token_ids" in payload:
            choices[-1]["logprobs"] = {"content": [{"token_id": token, "logprob": -0.5} for token in ids]}
            choices[-1]["weight_versions"] = [{"version": version, "start": 0, "end": 2}]
        else:
            names = [f"token_id:{token}" for token in ids]
            tops = [{name: -0.5} for name in names]
            choices[-1]["logprobs"] = {"tokens": names, "token_logprobs": [-0.5, -0.5], "top_logprobs": tops}
            choices[-1]["prompt_token_ids"] = prompt
    usage = {"prompt_tokens": sum(map(len, prompts)), "completion_tokens": 2 * len(choices)}
    name = {"request_id" if "token_ids" in payload else "id": f"r-{payload}-{params.get('seed')}"}
    return 200, {**name, "usage": usage, "choices": choices}


class FakeModel(SimpleNamespace):
    def save_pretrained(self, folder: Path, state_dict: Any) -> None:
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"")


def trainer_of(prompts: list[list[int]], step: int = 0, process: int = 0, processes: int = 1, **changes: Any) -> Any:
    """What `GroupRollout` uses of a trainer."""
    accelerator = SimpleNamespace(
        process_index=process, num_processes=processes, is_main_process=process == 0, unwrap_model=lambda model: model,
        get_state_dict=lambda model: {}, wait_for_everyone=lambda: None,
    )  # fmt: skip
    metrics: dict[str, list[float]] = {}
    given = {
        "accelerator": accelerator,
        "model": FakeModel(training=True),
        "state": SimpleNamespace(global_step=step),
        "args": SimpleNamespace(gradient_accumulation_steps=1, steps_per_generation=1, generation_kwargs=None),
        "num_generations": 4,
        "num_generations_eval": 2,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
        "max_completion_length": 2,
        "eos_token_ids": [99],
        "_tokenize_prompts": lambda _: (prompts, None, {}),
        "_metrics": {"train": _Lists(metrics), "eval": _Lists({})},
    }
    return SimpleNamespace(**{**given, **changes})


class _Lists(dict[str, list[float]]):
    def __missing__(self, name: str) -> list[float]:
        return self.setdefault(name, [])


TWO = [[1, 2, 3]] * 4 + [[4, 5]] * 4


def test_each_completion_is_of_the_prompt_at_its_place_in_every_arm() -> None:
    with answering(sound) as (url, sent):
        for arm in ARMS:
            got = GroupRollout(url, arm, seed=None if arm == "batched" else 7)([""] * 8, trainer_of(TWO))
            assert got["prompt_ids"] == TWO
            assert [ids[0] for ids in got["completion_ids"]] == [6] * 4 + [9] * 4
            assert got["logprobs"] == [[-0.5, -0.5]] * 8
            assert got["env_mask"] == [[1, 1]] * 8
    paths = [path for path, _ in sent]
    assert (paths.count("/inference/v1/generate"), paths.count("/v1/completions")) == (8 + 2, 2)


def test_a_group_over_two_processes_has_the_seeds_that_it_has_in_one() -> None:
    def seeds(sent: list[tuple[str, dict[str, Any]]]) -> list[int]:
        return sorted(
            payload["sampling_params"]["seed"] + slot
            for _, payload in sent
            for slot in range(payload["sampling_params"].get("n", 1))
        )

    with answering(sound) as (url, sent):
        whole = GroupRollout(url, seed=7)([""] * 8, trainer_of(TWO, step=3))["completion_ids"]
        alone = seeds(sent)
        sent.clear()
        parts = []
        for process, part in enumerate((TWO[:2], TWO[2:4], TWO[4:6], TWO[6:])):
            trainer = trainer_of(part, step=3, process=process, processes=4)
            parts += GroupRollout(url, seed=7)([""] * 2, trainer)["completion_ids"]
        assert (parts, seeds(sent)) == (whole, alone)
    assert len(set(alone)) == 8


def test_prompts_that_are_no_groups_are_refused() -> None:
    shuffled = [TWO[0], TWO[4], *TWO[1:4], *TWO[5:]]
    with answering(sound) as (url, sent), pytest.raises(UnsupportedHost, match="prompt 1 is to be in group 0"):
        GroupRollout(url)([""] * 8, trainer_of(shuffled))
    assert sent == []


def planted(change: Callable[[dict[str, Any]], object]) -> Callable[[str, dict[str, Any]], Reply]:
    """A reply whose second prompt's answers are changed."""

    def reply(path: str, payload: dict[str, Any]) -> Reply:
        status, body = sound(path, payload)
        if payload.get("token_ids") == [4, 5]:
            body = copy.deepcopy(body)
            change(body)
        return status, body

    return reply


def cut_off(body: dict[str, Any], tokens: int) -> None:
    choice = body["choices"][1]
    choice.update(finish_reason="abort", token_ids=choice["token_ids"][:tokens])
    choice["logprobs"]["content"] = choice["logprobs"]["content"][:tokens]
    choice["weight_versions"] = [{"version": "step-0", "start": 0, "end": tokens}] if tokens else []
    body["usage"]["completion_tokens"] -= 2 - tokens


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        (lambda body: body["choices"].pop(), ResponseRefused, "asked for 4 samples, got 3"),
        (lambda body: body.update(prompt_token_ids=[1, 2]), ResponseRefused, "another prompt"),
        (lambda body: cut_off(body, 0), PatchError, "prompt 5 has a completion without tokens"),
    ],
)
def test_a_wrong_answer_ends_the_rollout_and_is_named(change: Any, error: type[Exception], named: str) -> None:
    with answering(planted(change)) as (url, _), pytest.raises(error, match=named):
        GroupRollout(url)([""] * 8, trainer_of(TWO))


def test_what_an_abort_cut_off_is_not_trained_on() -> None:
    with answering(planted(lambda body: cut_off(body, 1))) as (url, _):
        got = GroupRollout(url)([""] * 8, trainer_of(TWO))
    assert got["env_mask"] == [[1, 1]] * 5 + [[0]] + [[1, 1]] * 2


def test_a_passing_error_is_asked_again_and_counted() -> None:
    errors = iter([503])

    def reply(path: str, payload: dict[str, Any]) -> Reply:
        status = next(errors, 200)
        return sound(path, payload) if status == 200 else (status, "busy")

    trainer = trainer_of(TWO)
    with answering(reply) as (url, sent):
        GroupRollout(url)([""] * 8, trainer)
    assert (len(sent), trainer._metrics["train"]["rollout_patch/retries"]) == (3, [1.0])


def test_every_engine_is_given_the_weights_once_a_step(tmp_path: Path) -> None:
    step = iter(range(9))
    current = {"version": "step-0"}

    def reply(path: str, payload: dict[str, Any]) -> Reply:
        return sound(path, payload, current["version"])

    with answering(reply) as (one, of_one), answering(reply) as (two, of_two):
        rollout = GroupRollout(one, weights=tmp_path, workers=(one, two))
        for _ in range(2):
            number = next(step)
            current["version"] = f"step-{number}"
            for _ in range(2):
                rollout([""] * 8, trainer_of(TWO, step=number))
            assert [path.name for path in tmp_path.iterdir()] == [f"step-{number}"]
        calls = [path for path, _ in VLLM.weight_calls("", "")]
        assert [path for path, _ in of_two] == calls * 2
        assert [path for path, _ in of_one if path != "/inference/v1/generate"] == calls * 2
        assert [body["new_version"] for path, body in of_two if path == "/update_weight_version"] == [
            "step-0",
            "step-1",
        ]


def test_an_answer_of_other_weights_is_an_error(tmp_path: Path) -> None:
    with answering(lambda path, payload: sound(path, payload, "step-0")) as (url, _):
        rollout = GroupRollout(url, weights=tmp_path)
        rollout([""] * 8, trainer_of(TWO))
        with pytest.raises(PatchError, match=r"rollout 1, group [01], slot 0: .*'step-0', not 'step-1'"):
            rollout([""] * 8, trainer_of(TWO, step=1))


def test_an_engine_that_could_not_load_stays_paused(tmp_path: Path) -> None:
    """The next request to vLLM would end it; a good load before recovers it."""

    def reply(path: str, payload: dict[str, Any]) -> Reply:
        return (500, {"error": "no such file"}) if path == "/collective_rpc" else sound(path, payload)

    with answering(reply) as (url, sent), pytest.raises(RequestFailed, match="no such file"):
        GroupRollout(url, weights=tmp_path)([""] * 8, trainer_of(TWO))
    assert [path for path, _ in sent] == ["/pause?mode=wait", "/collective_rpc"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": FakeModel(training=True, peft_config={})}, "adapters"),
        ({"_tokenize_prompts": lambda _: (TWO, [["image"]], {})}, "images"),
        ({"_tokenize_prompts": None}, "_tokenize_prompts"),
        ({"tools": [print]}, "tools"),
    ],
)
def test_what_was_not_seen_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with answering(sound) as (url, _), pytest.raises(UnsupportedHost, match=named):
        GroupRollout(url, weights=tmp_path)([""] * 8, trainer_of(TWO, **changes))


def test_a_resumed_run_draws_the_seeds_that_it_would_have_drawn() -> None:
    with answering(sound) as (url, sent):
        rollout = GroupRollout(url, seed=7)
        for step in range(3):
            rollout([""] * 8, trainer_of(TWO, step=step))
        going_on = sent[-2:]
        GroupRollout(url, seed=7)([""] * 8, trainer_of(TWO, step=2))
    assert sorted(map(str, sent[-2:])) == sorted(map(str, going_on))
    seeds = [payload["sampling_params"]["seed"] for _, payload in sent[:6]]
    assert {abs(one - other) >= 4 for at, one in enumerate(seeds) for other in seeds[:at]} == {True}


# --- TRL's own server mode


def client_of(url: str) -> Any:
    """TRL's client without its constructor, which wants vLLM installed beside it."""
    import requests
    from trl.generation.vllm_client import VLLMClient

    client = object.__new__(VLLMClient)
    client.session, client.base_url, client.model = requests.Session(), url, "tiny"
    return client


def generation_of(url: str) -> Any:
    """TRL's server mode, without what starts it."""
    from accelerate import Accelerator
    from trl.generation.vllm_generation import VLLMGeneration

    generation = object.__new__(VLLMGeneration)
    settings = {
        "mode": "server", "enable_sleep_mode": False,
        "accelerator": Accelerator(cpu=True), "vllm_client": client_of(url),
        "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "logprobs": 0,
        "max_completion_length": 2, "structured_outputs_regex": None, "generation_kwargs": {},
    }  # fmt: skip
    vars(generation).update(settings)
    return generation


PROMPTS_OF_SERVER = [[1, 2, 3], [4, 5], [7, 7, 7]]


def short(place: int, renumbered: bool) -> Callable[[str, dict[str, Any]], Reply]:
    """An engine, or a router before it, that drops a choice."""

    def reply(path: str, payload: dict[str, Any]) -> Reply:
        status, body = sound(path, payload)
        del body["choices"][place]
        if renumbered:
            for index, choice in enumerate(body["choices"]):
                choice["index"] = index
        return status, body

    return reply


@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_dropped_choice_shifts_trls_completions_and_is_an_error_under_the_guard(place: int, renumbered: bool) -> None:
    with answering(short(place, renumbered)) as (url, _):
        unguarded = client_of(url).generate(PROMPTS_OF_SERVER, n=4)
        assert (len(unguarded["completion_ids"]), len(unguarded["prompt_ids"])) == (11, 3)
        generation = generation_of(url)
        guard_server_mode(generation)
        # renumbered, the first place at which it shows is where the next prompt's completions begin
        shown = place // 4 if not renumbered else min(2, (place // 4 * 4 + 3) // 4)
        with pytest.raises(ResponseRefused, match=rf"^prompt {shown}: .*11 choices came for 3 prompts with n = 4"):
            generation.vllm_client.generate(PROMPTS_OF_SERVER, n=4)


def test_a_sound_answer_passes_the_guard_unchanged() -> None:
    with answering(sound) as (url, _):
        generation = generation_of(url)
        repeated = [prompt for prompt in PROMPTS_OF_SERVER for _ in range(4)]
        before = generation.generate(repeated, None, 4)
        guard_server_mode(generation)
        assert generation.generate(repeated, None, 4) == before
        assert len(before[1]) == 12


def test_prompts_of_a_tool_loop_get_others_completions_and_are_an_error_under_the_guard() -> None:
    """trl#6673: each num_generations-th prompt alone is asked for, and its completions go to all."""
    contexts = [[1, 2, 3, tool] for tool in range(4)]
    with answering(sound) as (url, _):
        generation = generation_of(url)
        shifted = generation.generate(contexts, None, 4)
        assert {ids[0] for ids in shifted[1]} == {6}  # all of the first context, whose sum is 6
        guard_server_mode(generation)
        with pytest.raises(PatchError, match="prompt 1 is another than prompt 0"):
            generation.generate(contexts, None, 4)


def test_a_prompt_without_its_completions_is_an_error_under_the_guard() -> None:
    payload = {"prompt": PROMPTS_OF_SERVER, "n": 2, "max_tokens": 2}
    _, answer = sound("/v1/completions", payload)
    check_answer(payload, answer)
    for change, named in (
        (lambda body: body["choices"].append(copy.deepcopy(body["choices"][0])), "there is no prompt 3"),
        (lambda body: body["choices"].insert(0, body["choices"].pop()), "prompt 0: choice 5 stands"),
        (lambda body: body["choices"][3].update(token_ids=[]), "prompt 1: completion 1 has no tokens"),
        (lambda body: body["choices"][2].update(prompt_token_ids=[1, 2, 3]), "prompt 1: completion 0 is of another"),
        (lambda body: body.update(choices=None), "no choices"),
    ):
        wrong = copy.deepcopy(answer)
        change(wrong)
        with pytest.raises(ResponseRefused, match=named):
            check_answer(payload, wrong)


def test_the_guard_wants_server_mode() -> None:
    with pytest.raises(UnsupportedHost, match="server mode"):
        guard_server_mode(SimpleNamespace(vllm_client=None))
