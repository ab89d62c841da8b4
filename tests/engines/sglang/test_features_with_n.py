"""What the real SGLang does with n together with routed experts, a LoRA adapter and custom parameters of sampling.

One small mixture of experts serves all of it. A group of one request is held to one request a sample, and each sample
to what transformers computes of its own tokens.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from aiohttp import ClientSession
from real_engine import needs_sglang
from safetensors.torch import save_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from parity.engines import installed, sglang
from parity.engines.process import EngineProcess
from parity.trainer.policy import build_tokenizer, policy_config
from rollout_patch import Capabilities, SampleRequest, generate_group

pytestmark = needs_sglang

LAUNCHER = Path(__file__).parents[2] / "support" / "sglang_plain_memory.py"
LAYERS, EXPERTS, CHOSEN, HIDDEN, RANK = 2, 8, 2, 128, 8
PROMPTS = [[72, *((group * 37 + place * 11) % 250 + 2 for place in range(12))] for group in range(3)]
CAN = Capabilities(lora_with_n=True, lora_lists=True)
GROUP = 4
TOLERANCE = 1e-3
"""Of log-probabilities in float32; a wrong adapter or expert is off by more than 1."""


@pytest.fixture(scope="module")
def adapter():
    """The factors of an adapter, by module."""
    generator = torch.Generator().manual_seed(7)
    sizes = {"q_proj": 128, "k_proj": 64, "v_proj": 64, "o_proj": 128}
    return {
        f"model.layers.{layer}.self_attn.{name}": (
            torch.randn(RANK, HIDDEN, generator=generator) * 0.3,
            torch.randn(size, RANK, generator=generator) * 0.3,
        )
        for layer in range(LAYERS)
        for name, size in sizes.items()
    }


@pytest.fixture(scope="module")
def folder(adapter, tmp_path_factory):
    """The model, with its tokenizer, and the adapter, as checkpoints."""
    folder = tmp_path_factory.mktemp("checkpoints")
    small = policy_config()
    torch.manual_seed(3)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=small.vocab_size,
            hidden_size=HIDDEN,
            intermediate_size=128,
            moe_intermediate_size=64,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            num_experts=EXPERTS,
            num_experts_per_tok=CHOSEN,
            norm_topk_prob=True,
            max_position_embeddings=512,
            initializer_range=0.15,
            tie_word_embeddings=False,
            eos_token_id=small.eos_token_id,
            pad_token_id=small.pad_token_id,
        )
    )
    model.save_pretrained(folder / "model")
    build_tokenizer().save_pretrained(folder / "model")
    tensors = {
        f"base_model.model.{name}.lora_{which}.weight": factor.contiguous()
        for name, factors in adapter.items()
        for which, factor in zip("AB", factors, strict=True)
    }
    (folder / "adapter").mkdir()
    save_file(tensors, folder / "adapter" / "adapter_model.safetensors")
    modules = sorted({name.rpartition(".")[2] for name in adapter})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "bias": "none", "target_modules": modules}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    return folder


def loaded(folder, adapter=None):
    model = Qwen3MoeForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    for name, (down, up) in (adapter or {}).items():
        model.get_submodule(name).weight.data += 2.0 * up @ down
    return model


@pytest.fixture(scope="module")
def models(folder, adapter):
    """The model by itself, and with the adapter merged in."""
    return {None: loaded(folder), "one": loaded(folder, adapter)}


@pytest.fixture(scope="module")
def engine(folder, tmp_path_factory):
    python = installed.find_python("sglang")

    def command(port):
        whole = sglang.command(python, folder / "model", port)
        return [
            str(python),
            str(LAUNCHER),
            *whole[whole.index("--model-path") :],
            *("--enable-return-routed-experts", "--enable-custom-logit-processor"),
            *("--enable-lora", "--lora-paths", f"one={folder / 'adapter'}", "--lora-backend", "torch_native"),
        ]

    logs = tmp_path_factory.mktemp("logs")
    process = EngineProcess("sglang", command, environment=sglang.ENVIRONMENT, log_dir=logs, start_timeout=600)
    process.start()
    yield process
    process.stop()


class Kept:
    """An adapter of requests whose outputs are kept by slot."""

    def __init__(self, request):
        self.outputs = {}
        self._request = request

    def request(self, slot):
        return self._request

    def apply(self, slot, output):
        self.outputs[slot] = output

    def snapshot(self, slot):
        return None

    def restore(self, slot, snapshot):
        self.outputs.pop(slot, None)


async def group(client, arm, prompt, options, **params):
    request = SampleRequest(
        {"max_new_tokens": 12, **params}, input_ids=prompt, options={"return_logprob": True, **options}
    )
    kept = Kept(request)
    report = await generate_group(
        arm, range(GROUP), adapter=kept, post=lambda payload, _: client.generate(payload), capabilities=CAN
    )
    assert report.arm_used == arm, report.reasons
    return [kept.outputs[slot] for slot in range(GROUP)]


async def control(engine, path, body):
    async with ClientSession() as session, session.post(engine.url + path, json=body) as answer:
        return await answer.json()


def of_transformers(model, tokens):
    """The experts that the model chooses for each token but the last, and its log-probabilities."""
    with torch.no_grad():
        out = model(torch.tensor([tokens]), output_router_logits=True)
    chosen = torch.stack([torch.topk(logits, CHOSEN).indices for logits in out.router_logits], dim=1)
    return np.sort(chosen.numpy()[:-1], axis=-1), torch.log_softmax(out.logits[0].double(), dim=-1)


def experts(output):
    flat = np.frombuffer(base64.b64decode(output.meta_info["routed_experts"]), dtype=np.int32)
    return flat.reshape(-1, LAYERS, CHOSEN)


def holds(model, prompt, output):
    """Whether experts and log-probabilities are those of the sample's own tokens."""
    ids = list(output.output_ids)
    chosen, logprobs = of_transformers(model, [*prompt, *ids])
    own = [logprobs[len(prompt) + place - 1, token].item() for place, token in enumerate(ids)]
    return np.array_equal(np.sort(experts(output), axis=-1), chosen) and np.allclose(
        output.logprobs, own, rtol=0, atol=TOLERANCE
    )


@pytest.mark.parametrize("lora", [None, "one"], ids=["model", "adapter"])
@pytest.mark.parametrize("arm", ["batched", "native"])
async def test_a_request_a_group_equals_one_a_sample_in_tokens_experts_and_adapter(engine, models, arm, lora):
    options = {"return_routed_experts": True, **({"lora_path": lora} if lora else {})}
    other = models[None if lora else "one"]
    async with engine.client() as client:
        for prompt in PROMPTS:
            single = await group(client, "per-sample", prompt, options, temperature=0.0)
            together = await group(client, arm, prompt, options, temperature=0.0)
            for one, another in zip(single, together, strict=True):
                assert one.output_ids == another.output_ids
                assert np.array_equal(experts(one), experts(another))
            drawn = await group(client, arm, prompt, options, temperature=1.0)
            assert len({tuple(output.output_ids) for output in drawn}) > 1
            assert all(holds(models[lora], prompt, output) for output in drawn)
            assert not any(holds(other, prompt, output) for output in drawn)  # what the check would say of a wrong one


async def test_an_adapter_used_with_n_is_unloaded_and_loaded_again_after_an_abort_too(engine, folder, models):
    async with engine.client() as client:
        for abort in (False, True):
            options = {"lora_path": "one", "return_routed_experts": True}
            asked = asyncio.ensure_future(
                group(client, "native", PROMPTS[0], options, temperature=1.0, max_new_tokens=200, ignore_eos=True)
            )
            if abort:
                await asyncio.sleep(1)
                await client.abort_all()
            outputs = await asked
            assert {output.finish_reason for output in outputs} == {"abort" if abort else "length"}
            unloaded = await asyncio.wait_for(control(engine, "/unload_lora_adapter", {"lora_name": "one"}), 60)
            assert unloaded["success"]
            again = {"lora_name": "one", "lora_path": str(folder / "adapter")}
            assert (await control(engine, "/load_lora_adapter", again))["success"]
        (output, *_) = await group(client, "native", PROMPTS[0], options, temperature=1.0)
        assert holds(models["one"], PROMPTS[0], output)


async def test_custom_parameters_reach_every_sample_of_a_group_and_no_other(engine):
    name = "sglang.srt.sampling.custom_logit_processor"
    code = f"from {name} import DisallowedTokensLogitsProcessor as one; print(one.to_str())"
    ran = subprocess.run([installed.find_python("sglang"), "-c", code], capture_output=True, text=True, check=True)
    processor = ran.stdout.strip().splitlines()[-1]
    async with engine.client() as client:
        free = await group(client, "native", PROMPTS[0], {}, temperature=0.0)
        banned = sorted(set(free[0].output_ids))
        options, params = {"custom_logit_processor": processor}, {"custom_params": {"token_ids": banned}}
        single = await group(client, "per-sample", PROMPTS[0], options, temperature=0.0, **params)
        for arm in ("batched", "native"):
            together = await group(client, arm, PROMPTS[0], options, temperature=0.0, **params)
            assert [output.output_ids for output in together] == [output.output_ids for output in single]
        drawn, beside = await asyncio.gather(
            group(client, "native", PROMPTS[0], options, temperature=1.0, **params),
            group(client, "native", PROMPTS[0], {}, temperature=0.0),
        )
        assert not any(set(output.output_ids) & set(banned) for output in drawn)
        assert all(output.output_ids == free[0].output_ids for output in beside)
