"""TRL: a `rollout_func` for `GRPOTrainer` that asks for groups in any arm, and a guard for its own server mode."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollout_patch.dialects import VLLM, Dialect
from rollout_patch.eligibility import Capabilities
from rollout_patch.errors import PatchError, RequestFailed, ResponseRefused, UnsupportedHost
from rollout_patch.group import GroupReport, generate_group
from rollout_patch.hosts.recording import Recording
from rollout_patch.metrics import group_metrics
from rollout_patch.permits import Permits
from rollout_patch.recorder import sample_rows
from rollout_patch.refusals import Refusals
from rollout_patch.requests import SEED, SampleRequest
from rollout_patch.responses import Output

MOST_BYTES = 1 << 30
"""What an answer may have."""

_SEEDS = 1 << 30


@dataclass(slots=True)
class _Seat:
    """One completion that the trainer waits for."""

    asked: SampleRequest
    output: Output | None = None


class _Seats:
    """Lets seats take part in `generate_group`."""

    def request(self, seat: _Seat) -> SampleRequest:
        return seat.asked

    def apply(self, seat: _Seat, output: Output) -> None:
        seat.output = output

    def snapshot(self, seat: _Seat) -> None:
        return None

    def restore(self, seat: _Seat, snapshot: object) -> None:
        seat.output = None


@dataclass
class GroupRollout:
    """A `rollout_func` for TRL's `GRPOTrainer` (1.16 or newer): the completions of a prompt are one group.

    Attributes:
        url: The engine, or the router in front of several.
        arm: How a group is asked for.
        dialect: How the engine is spoken to.
        weights: A folder that trainer and engines see: the trainer's weights are saved there, and every engine loads
            them, before the first rollout and after each step. `None` where something else gives engines the weights.
        workers: The engines, where `url` is a router, since a router hands a control call to one of them alone.
        seed: Gives each completion a sampling seed of its own, the same in every arm; `None` samples freely.
        capabilities: What the engine does; `None` for what is usual with the dialect.
        record: A folder for exchanges, groups and samples, which `parity check` reads.
        in_flight: Most completions asked for at once.
        retries: How often a request may be sent again.
        timeout: Seconds that an answer may take.
        strict: Whether `rollout_patch.responses.DOUBTS` refuse an answer.
    """

    url: str
    arm: str = "native"
    dialect: Dialect = VLLM
    weights: Path | str | None = None
    workers: Sequence[str] = ()
    seed: int | None = None
    capabilities: Capabilities | None = None
    record: Path | str | None = None
    in_flight: int = 256
    retries: int = 2
    timeout: float = 600.0
    strict: bool = True
    _version: str | None = field(default=None, init=False, repr=False)
    _step: tuple[int, int] = field(default=(-1, 0), init=False, repr=False)
    _refused: Refusals = field(default_factory=Refusals, init=False, repr=False)

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """The completion of each prompt at its place, as the trainer expects them of a `rollout_func`.

        Raises:
            UnsupportedHost: The trainer is another than the known one, has tools or an environment, the prompts hold
                images, or are no groups.
            PatchError: A group could not be generated, or was answered by an engine with other weights.
        """
        if getattr(trainer, "tools", None):
            raise UnsupportedHost("tools and environments, whose answers make several turns, were not seen with groups")
        self.push(trainer)
        training = bool(trainer.model.training)
        tokenized, images, _ = _known(trainer, "_tokenize_prompts")(prompts)
        if images is not None:
            raise UnsupportedHost("prompts with images were not seen with TRL's rollout_func")
        first = trainer.accelerator.process_index * len(prompts)
        size = trainer.num_generations if training else trainer.num_generations_eval
        rollout_id = self._next_rollout(trainer, training)
        groups: dict[int, list[_Seat]] = {}
        for place, ids in enumerate(tokenized):
            number = (first + place) // size
            seed = self._seed_of(training, rollout_id, trainer.accelerator.num_processes * len(prompts), first + place)
            seat = _Seat(SampleRequest(_params(trainer, seed), input_ids=ids, options={"return_logprob": True}))
            group = groups.setdefault(number, [])
            if group and group[0].asked.input_ids != ids:
                raise UnsupportedHost(
                    f"prompt {place} is to be in group {number} with the {len(group)} before it, and is another: "
                    f"TRL gives each prompt {size} times in a row, unless prompts were reordered"
                )
            group.append(seat)
        recording = self._recording(trainer, rollout_id) if training else None
        with ThreadPoolExecutor(1) as thread:  # a loop of its own, as in a notebook one runs already
            work = self._generate(groups, recording, rollout_id)
            reports = thread.submit(asyncio.run, work).result()
        outputs = [_sound(seat.output, place) for place, seat in enumerate(s for g in groups.values() for s in g)]
        metrics = trainer._metrics["train" if training else "eval"]
        for name, count in group_metrics(reports).items():
            metrics[name].append(count)
        if recording is not None:
            _record_scored(trainer, recording, rollout_id, dict(zip(groups, reports, strict=True)))
        return {
            "prompt_ids": tokenized,
            "completion_ids": [output.output_ids for output in outputs],
            "logprobs": [output.logprobs for output in outputs],
            # what was cut off by an abort is not trained on
            "env_mask": [[int(output.finish_reason != "abort")] * len(output.output_ids) for output in outputs],
        }

    def push(self, trainer: Any) -> None:
        """Gives every engine the trainer's weights, unless they have them.

        Raises:
            UnsupportedHost: The model is an adapter, whose checkpoint is not that of a whole model.
            RequestFailed: An engine did not load them.
        """
        version = f"step-{trainer.state.global_step}"
        if self.weights is None or version == self._version:
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "peft_config"):
            raise UnsupportedHost("weights of adapters were not seen with TRL's rollout_func; merge them, or push them")
        folder = Path(self.weights).absolute()
        state = trainer.accelerator.get_state_dict(trainer.model)
        if trainer.accelerator.is_main_process:
            model.save_pretrained(folder / version, state_dict=state)
            for worker in self.workers or (self.url,):
                for path, body in self.dialect.weight_calls(str(folder / version), version):
                    answer = send(f"{worker}{path}", body, {}, self.timeout)
                    if isinstance(answer, dict) and answer.get("success") is False:
                        raise RequestFailed(200, answer)
            if self._version is not None:
                shutil.rmtree(folder / self._version, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        self._version = version

    async def _generate(
        self, groups: Mapping[int, list[_Seat]], recording: Recording | None, rollout_id: int
    ) -> list[GroupReport]:
        """All groups at once; after the first failure the rest is cancelled."""
        permits = Permits(asyncio.Semaphore(self.in_flight), self.in_flight)
        pool = ThreadPoolExecutor(self.in_flight, thread_name_prefix="rollout_patch")
        loop = asyncio.get_running_loop()

        async def post(payload: dict[str, Any], headers: Mapping[str, str]) -> Any:
            url = f"{self.url}{self.dialect.path_of(payload)}"
            return await loop.run_in_executor(pool, send, url, payload, headers, self.timeout)

        async def generate(number: int, seats: list[_Seat]) -> GroupReport:
            labels = {"rollout_id": rollout_id, "group_index": number}
            report = await generate_group(
                self.arm,
                seats,
                adapter=_Seats(),
                post=post,
                dialect=self.dialect,
                capabilities=self.capabilities,
                retries=self.retries,
                recorder=None if recording is None else recording.lines("exchanges", True, labels),
                permits=permits,
                refused=self._refused,
                strict=self.strict,
            )
            for slot, output in enumerate(report.outputs):
                if None not in (self._version, output.weight_version) and output.weight_version != self._version:
                    raise PatchError(
                        f"rollout {rollout_id}, group {number}, slot {slot}: answered with weights "
                        f"{output.weight_version!r}, not {self._version!r}: an engine has missed the update"
                    )
            return report

        tasks = [asyncio.ensure_future(generate(number, seats)) for number, seats in groups.items()]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _next_rollout(self, trainer: Any, training: bool) -> int:
        """The number of a rollout: that of the step, where each has one; a resumed run goes on counting."""
        step: int = trainer.state.global_step
        if not training:
            return step
        args = trainer.args
        per_step: int = max(1, args.gradient_accumulation_steps // args.steps_per_generation)
        self._step = (step, self._step[1] + 1 if self._step[0] == step else 0)
        return step * per_step + self._step[1]

    def _seed_of(self, training: bool, rollout_id: int, per_rollout: int, place: int) -> int | None:
        if self.seed is None:
            return None
        offset = int.from_bytes(hashlib.sha256(f"{self.seed}/{training}".encode()).digest()[:8], "big") % _SEEDS
        return (offset + rollout_id * per_rollout + place) % (2 * _SEEDS)

    def _recording(self, trainer: Any, rollout_id: int) -> Recording | None:
        if self.record is None:
            return None
        accelerator = trainer.accelerator
        alone = accelerator.num_processes == 1
        folder = Path(self.record) if alone else Path(self.record) / f"process-{accelerator.process_index}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        return Recording(folder, rollout_id)


def send(url: str, payload: Mapping[str, Any], headers: Mapping[str, str], timeout: float) -> Any:
    """Posts JSON, on a connection of its own; returns the decoded body of a 200, or its text where it is no JSON.

    Raises:
        RequestFailed: Another status, no answer, or one above `MOST_BYTES`.
    """
    body = json.dumps(payload).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            status, content = answer.status, answer.read(MOST_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise RequestFailed(error.code, _decoded(error.read(10_000))) from error
    except OSError as error:
        raise RequestFailed(None, f"{url}: {type(error).__name__}: {error}") from error
    if status != 200 or len(content) > MOST_BYTES:
        raise RequestFailed(status if status != 200 else None, f"{url}: {len(content)} bytes with status {status}")
    return _decoded(content)


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")


def _params(trainer: Any, seed: int | None) -> dict[str, Any]:
    """The trainer's sampling parameters; what ends a completion for it ends it for the engine."""
    params = {
        "temperature": trainer.temperature,
        "top_p": trainer.top_p,
        "top_k": trainer.top_k or -1,
        "min_p": trainer.min_p,
        "repetition_penalty": trainer.repetition_penalty,
        "max_new_tokens": trainer.max_completion_length,
        "stop_token_ids": list(trainer.eos_token_ids),
        SEED: seed,
        **(trainer.args.generation_kwargs or {}),
    }
    return {name: value for name, value in params.items() if value is not None}


def _sound(output: Output | None, place: int) -> Output:
    """An output that the trainer can take: it reads the last token of each completion."""
    if output is None or not output.output_ids:
        raise PatchError(f"prompt {place} has a completion without tokens, which TRL cannot train on")
    return output


def _known(trainer: Any, name: str) -> Callable[..., Any]:
    """A method of the trainer that is not public.

    Raises:
        UnsupportedHost: It has none of that name.
    """
    method = getattr(trainer, name, None)
    if not callable(method):
        raise UnsupportedHost(f"{type(trainer).__name__} has no {name}; TRL 1.16 has")
    found: Callable[..., Any] = method
    return found


def _record_scored(trainer: Any, recording: Recording, rollout_id: int, reports: Mapping[int, GroupReport]) -> None:
    """Writes groups, and samples as soon as the trainer has scored them."""
    stock = _known(trainer, "_calculate_rewards")
    for number, report in reports.items():
        way = {"arm": report.arm_used, "reasons": report.reasons, "requests": report.requests, "notes": report.notes}
        labels = {"rollout_id": rollout_id, "group_index": number}
        recording.lines("groups", True, labels)({"design": "fixed", "arms": [report.arm_asked], **way})

    @functools.wraps(stock)
    def calculate_rewards(inputs: Sequence[Any], *rest: Any) -> Any:
        vars(trainer).pop("_calculate_rewards", None)
        of_functions = stock(inputs, *rest)
        weights = trainer.reward_weights.to(of_functions.device)
        first = trainer.accelerator.process_index * len(inputs)
        own = of_functions[first : first + len(inputs)]
        scored = zip((own * weights).nansum(dim=1).tolist(), own.isnan().all(dim=1).tolist(), strict=True)
        rewards = [{} if unscorable else {"reward": reward} for reward, unscorable in scored]
        rows = [row for number, report in reports.items() for row in sample_rows(report, rollout_id, number)]
        write = recording.lines("samples", True, {})
        for row, reward in zip(rows, rewards, strict=True):
            write({**row, **reward})
        recording.close()
        return of_functions

    trainer._calculate_rewards = calculate_rewards


# --- server mode: TRL's own client


def guard_server_mode(generation: Any) -> None:
    """Makes a short or shifted answer an error that names the prompt, in TRL's own server mode.

    TRL pairs completions with prompts by their places alone: a choice that is missing shifts all after it
    (vllm#52398), and prompts that are not each given `num_generations` times in a row, as in a tool loop, get the
    completions of others (trl#6673). `generation` is `trainer.vllm_generation`.

    Raises:
        UnsupportedHost: It is not in server mode, or has no client of the known form.
    """
    client: Any = getattr(generation, "vllm_client", None)
    if not callable(getattr(client, "_post", None)) or not callable(getattr(generation, "generate", None)):
        raise UnsupportedHost("trainer.vllm_generation has no client of the known form: server mode is off, or changed")
    stock_post, stock_generate = client._post, generation.generate

    @functools.wraps(stock_post)
    def post(url: str, **named: Any) -> Any:
        answer = stock_post(url, **named)
        if url.endswith(("/v1/completions", "/inference/v1/generate")):
            check_answer(named["json"], answer)
        return answer

    @functools.wraps(stock_generate)
    def generate(prompts: Sequence[Any], images: Any, num_generations: int, *rest: Any, **named: Any) -> Any:
        for place, prompt in enumerate(prompts):
            if prompt != prompts[place - place % num_generations]:
                raise PatchError(
                    f"prompt {place} is another than prompt {place - place % num_generations}: TRL would give it the "
                    f"completions of that one, since it asks for each {num_generations}th prompt alone"
                )
        answer = stock_generate(prompts, images, num_generations, *rest, **named)
        if len(answer[1]) != len(prompts):
            raise ResponseRefused(f"{len(answer[1])} completions for {len(prompts)} prompts")
        return answer

    client._post, generation.generate = post, generate


def check_answer(payload: Mapping[str, Any], answer: Any) -> None:
    """Refuses an answer whose choices are not those asked for, each of its prompt and at its place.

    Raises:
        ResponseRefused: The message names the prompt, by its place in the request.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    if not isinstance(choices, list):
        raise ResponseRefused(f"the answer has no choices: {str(answer)[:200]}")
    n = payload.get("sampling_params", payload).get("n", 1)
    prompts = [payload["token_ids"]] if "token_ids" in payload else payload["prompt"]
    prompts = prompts if isinstance(prompts, list) and not isinstance(prompts[0], int) else [prompts]
    for place in range(max(len(prompts) * n, len(choices))):
        number = place // n
        came = f"{len(choices)} choices came for {len(prompts)} prompts with n = {n}"
        if place >= len(prompts) * n:
            raise ResponseRefused(f"{came}: there is no prompt {number}")
        choice = choices[place] if place < len(choices) else None
        index = choice.get("index") if isinstance(choice, dict) else None
        if not isinstance(choice, dict) or index != place:
            found = "nothing" if choice is None else f"choice {index}"
            raise ResponseRefused(f"prompt {number}: {found} stands where completion {place % n} should; {came}")
        stated = choice.get("prompt_token_ids")
        if isinstance(prompts[number], list) and stated is not None and stated != prompts[number]:
            other = f"is of another prompt, {str(stated)[:100]}"
            raise ResponseRefused(f"prompt {number}: completion {place % n} {other}; {came}")
        if not choice.get("token_ids"):
            raise ResponseRefused(f"prompt {number}: completion {place % n} has no tokens")
