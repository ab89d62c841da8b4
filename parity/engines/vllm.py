"""vLLM: how the real one is run on the CPU, and how any is fed, steered and read.

Every flag and call was tried against vLLM 0.32.0 on a machine without a GPU.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parity.engines import installed
from parity.engines.checkpoints import HEAD_FILE, ties_head, with_head
from parity.engines.client import EngineClient, decode
from parity.errors import EngineError, UsageError
from rollout_patch import Capabilities
from rollout_patch.dialects import VLLM

MAX_SEQUENCES = 256
"""Sequences that run at once; a request for more samples is refused."""

FIXED_PROMPT = list(range(5, 16))
"""Whose log-probs show whether weights have arrived."""

OWNER = "parity-embedded"
"""Who owns the model at `/v1/models` where the embedded engine answers in place of vLLM."""

Scores = tuple[float, ...]

UNTIED = {"tie_word_embeddings": False}
"""What of a checkpoint's configuration is overridden where its head is given beside it."""

ENVIRONMENT = {
    **installed.ENVIRONMENT,
    # Opens what weights, aborts, pauses and caches are steered by.
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # Its first request would end the engine.
    "VLLM_BATCH_INVARIANT": "",
}


def command(python: Path, model_path: Path, port: int) -> list[str]:
    """The command line that serves `model_path` on a loopback port."""
    return [
        *(str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model_path.absolute())),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", str(MAX_SEQUENCES)),
        # A request with a seed whose prefill is chunked ends the engine on a CPU.
        "--no-enable-chunked-prefill",
        # Opens /inference/v1/generate, which takes and gives token ids.
        "--enable-scale-out",
        # Counts the cached tokens of an answer.
        "--enable-prompt-tokens-details",
        # Sampling parameters are those of the request alone, not of the checkpoint's generation_config.json.
        *("--generation-config", "vllm"),
        # Draws without a seed come from this one; its default is the same for every server.
        *("--seed", str(secrets.randbelow(2**31))),
        *(["--hf-overrides", json.dumps(UNTIED)] if (model_path / HEAD_FILE).exists() else []),
    ]


class VllmClient(EngineClient):
    """One HTTP session with one vLLM, steered so that neither a reload nor a seed ends it.

    Weights are reloaded while no request runs, under a pause, which empties every cache: without one an answer mixes
    keys and values of the old weights with the new ones, and an image that was encoded before ends the engine. After a
    reload that failed the engine stays paused, since its next request would end it.
    """

    dialect = VLLM
    _arrived: tuple[str, Scores] | None = None
    _behind: tuple[str, ...] | None = None

    async def workers(self) -> tuple[str, ...]:
        """The URLs of the workers where a vllm-router answers; none where an engine does.

        Raises:
            EngineUnavailable: No answer.
        """
        if self._behind is None:
            status, body = await self._again("GET", "/list_workers", None, object)
            answer = decode(body)
            urls = answer.get("urls") if status == 200 and isinstance(answer, dict) else None
            self._behind = tuple(map(str, urls)) if isinstance(urls, list) else ()
        return self._behind

    async def _control(self, endpoint: str, payload: Mapping[str, Any] | None = None, wanted: type = object) -> Any:
        if workers := await self.workers():
            raise UsageError(
                f"{self._place(endpoint)}: vllm-router hands a control call to one of its workers and answers 200: "
                f"give the URL of a worker instead, of {', '.join(workers)}"
            )
        return await super()._control(endpoint, payload, wanted)

    async def update_weights(self, path: Path, version: str) -> None:
        """Loads a checkpoint of the same shape from a directory that the engine can read, and labels it `version`.

        That the weights arrived is seen by the log-probs of a fixed prompt, since the label is independent of them and
        the engine's digests leave the matrices out on a CPU.

        Raises:
            EngineError: There is no such checkpoint; the engine refused it, and is paused; or the weights did not
                arrive.
            EngineUnavailable: No answer.
        """
        self.weights = None
        digest = await asyncio.to_thread(_digest, path)
        with tempfile.TemporaryDirectory() as scratch:
            checkpoint = await self._loadable(path, Path(scratch) / "checkpoint")
            await self._control("/pause?mode=wait", {})
            kwargs = {"weights_path": str(checkpoint.absolute())}
            await self._control("/collective_rpc", {"method": "reload_weights", "kwargs": kwargs})
        await self._control("/update_weight_version", {"new_version": version})
        await self._control("/resume", {})
        reported, scores = (await self.model_info())["weight_version"], await self._scores()
        if reported != version:
            raise EngineError(
                f"{self._place('/weight_info')}: weight_version is {reported!r} after an update to {version!r}"
            )
        before, self._arrived = self._arrived, (digest, scores)
        if before and before[0] != digest and before[1] == scores:
            raise EngineError(
                f"{self._place('/collective_rpc')}: the weights of {path} did not arrive: they are not those before, "
                f"and the log-probs of a fixed prompt are the same to the last bit: {list(scores)}"
            )
        self.weights = version

    async def _loadable(self, checkpoint: Path, copy: Path) -> Path:
        """The checkpoint in a form that this server takes whole.

        On a CPU a head that is tied to the embedding is packed when the server starts, and a reload leaves it as it
        was: the embedding is then new and the head old. So the server is started without the tie (`UNTIED`), and given
        the head beside the rest.

        Raises:
            EngineError: The server would keep the output head that it was started with.
        """
        info = await self.server_info()
        if info.get("device") != "cpu" or not ties_head(checkpoint):
            return checkpoint
        overrides = info.get("hf_overrides")
        if not isinstance(overrides, dict) or not UNTIED.items() <= overrides.items():
            raise EngineError(
                f"{self.url}: vLLM on a CPU keeps the output head that it was started with, as {checkpoint} ties it to "
                "the embedding, so that half of an update would not arrive: start it from a checkpoint that has "
                f"lm_head.weight, with --hf-overrides '{json.dumps(UNTIED)}'"
            )
        return with_head(checkpoint, copy)

    async def _scores(self) -> Scores:
        """The log-probs of a fixed prompt, computed anew: nothing was ever cached under its salt."""
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        payload = {"token_ids": FIXED_PROMPT, "sampling_params": params, "cache_salt": uuid.uuid4().hex}
        status, body = await self._again("POST", "/inference/v1/generate", payload)
        answer = decode(body)
        try:
            rows = answer["prompt_logprobs"][1:]
            values = [row[str(token)]["logprob"] for row, token in zip(rows, FIXED_PROMPT[1:], strict=True)]
            return tuple(map(float, values))
        except (KeyError, TypeError, ValueError) as error:
            raise self._refused("/inference/v1/generate", status, answer) from error

    async def flush_cache(self) -> None:
        """Waits until no request runs, and empties every cache.

        Raises:
            EngineError: The engine refused, or gave no answer (EngineUnavailable).
        """
        await self._control("/pause?mode=wait", {})
        await self._control("/resume", {})

    async def abort_all(self) -> None:
        """As `EngineClient.abort_all`."""
        await self._control("/abort_requests", {})

    async def pause(self) -> None:
        """As `EngineClient.pause`."""
        await self._control("/pause?mode=abort", {})

    async def continue_(self) -> None:
        """As `EngineClient.continue_`."""
        await self._control("/resume", {})

    async def model_info(self) -> dict[str, Any]:
        """`model_path`, `context_length` and, where the server's development mode is on, `weight_version`.

        Raises:
            EngineError: They cannot be read, or there is no answer (EngineUnavailable).
        """
        status, body = await self._again("GET", "/v1/models")
        answer = decode(body)
        models = answer.get("data") if isinstance(answer, dict) else None
        if status != 200 or not isinstance(models, list) or not models or not isinstance(models[0], dict):
            raise self._refused("/v1/models", status, answer)
        weights = decode((await self._again("GET", "/weight_info"))[1])
        return {
            "model_path": models[0].get("root"),
            "context_length": models[0].get("max_model_len"),
            "owned_by": models[0].get("owned_by"),
            "weight_version": weights.get("weight_version") if isinstance(weights, dict) else None,
        }

    async def server_info(self) -> dict[str, Any]:
        """`version` and, where the server's development mode is on, the settings that samples depend on.

        Raises:
            EngineError: It is no JSON object, or there is no answer (EngineUnavailable).
        """
        status, body = await self._again("GET", "/version")
        version = decode(body)
        if status != 200 or not isinstance(version, dict):
            raise self._refused("/version", status, version)
        status, body = await self._again("GET", "/server_info?config_format=json")
        config = decode(body)
        if status != 200 or not isinstance(config, dict):
            return version
        return {**_settings(config.get("vllm_config")), **version} if "vllm_config" in config else {**config, **version}

    async def capabilities(self) -> Capabilities:
        """What every vLLM promises, and the largest n where it says so; what it does is seen by asking it."""
        most = (await self.server_info()).get("max_num_seqs")
        return replace(self.dialect.capabilities, most_samples=most if isinstance(most, int) else None)


_SETTINGS = {
    "model_config": ("dtype", "seed", "logprobs_mode", "max_logprobs", "hf_overrides"),
    "scheduler_config": ("enable_chunked_prefill", "max_num_batched_tokens", "max_num_seqs"),
    "cache_config": ("enable_prefix_caching", "block_size"),
    "device_config": ("device",),
}


def _settings(config: Any) -> dict[str, Any]:
    """Of a server's configuration, what samples depend on."""
    known: dict[str, Any] = {}
    for part, names in _SETTINGS.items():
        values = config.get(part) if isinstance(config, dict) else None
        known |= {name: values.get(name) for name in names} if isinstance(values, dict) else {}
    return {**known, "dtype": str(known.get("dtype") or "").removeprefix("torch.")}


def _digest(path: Path) -> str:
    """The SHA-256 of a checkpoint's weights.

    Raises:
        EngineError: There are none, so that a reload would end the engine.
    """
    digest = hashlib.sha256()
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{path}: no *.safetensors to load weights from")
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


CLIENT = VllmClient
