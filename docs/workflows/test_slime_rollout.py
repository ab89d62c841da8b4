"""slime's rollout on an engine without GPU: held to the contract, and to what main made of the same answers."""

from __future__ import annotations

from argparse import Namespace

import pytest
from slime.rollout.sglang_rollout import generate_rollout
from slime.utils import http_utils
from slime.utils.types import Sample

PROMPTS = ["one and one is", "two", "three times three"]
N, CAP = 4, 8
OFF = [
    "ci_test",
    "custom_generate_function_path",
    "dynamic_sampling_filter_path",
    "group_rm",
    "mask_offpolicy_in_partial_rollout",
    "partial_rollout",
    "rm_type",
    "rollout_all_samples_process_path",
    "rollout_sample_filter_path",
    "rollout_stop",
    "rollout_stop_token_ids",
    "use_distributed_post",
    "use_rollout_routing_replay",
]


async def reward(args, sample, **kwargs):
    """Any reward that is a function of the sample."""
    return len(sample.response) % 2


class Prompts:
    """A data source of one group a prompt."""

    def get_samples(self, count):
        """All of them."""
        return [
            [Sample(group_index=group, index=group * N + slot, prompt=prompt) for slot in range(N)]
            for group, prompt in enumerate(PROMPTS)
        ]

    def add_samples(self, groups):
        """Nothing is given back."""
        assert not groups


@pytest.mark.parity(group_size=N, max_new_tokens=CAP, required=["samples_received", "rollout_log_probs_length"])
def test_rollout(parity_engine, parity_checkpoint, parity_check, parity_baseline):
    """Each sample is an output that was received; and this revision makes of the recorded answers what main made."""
    args = Namespace(
        **dict.fromkeys(OFF),
        hf_checkpoint=parity_checkpoint,
        sglang_router_ip=parity_engine.host,
        sglang_router_port=parity_engine.port,
        sglang_server_concurrency=32,
        sglang_dp_size=1,
        rollout_num_engines=1,
        rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1,
        rollout_temperature=1.0,
        rollout_top_p=1.0,
        rollout_top_k=-1,
        rollout_max_response_len=CAP,
        rollout_skip_special_tokens=True,
        rollout_seed=11,
        n_samples_per_prompt=N,
        rollout_batch_size=len(PROMPTS),
        over_sampling_batch_size=len(PROMPTS),
        rollout_global_dataset=True,
        custom_rm_path="test_slime_rollout.reward",
    )
    http_utils.init_http_client(args)
    output = generate_rollout(args, 0, Prompts(), evaluation=False)
    parity_check(output.samples)
    parity_baseline(output.samples)
