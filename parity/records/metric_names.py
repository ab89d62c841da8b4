"""The names of metrics, which follow slime's; every reader of another program's files maps its names to these."""

from __future__ import annotations

REWARD = "rollout/raw_reward"


REQUESTS = "perf/requests"


ROLLOUT_TIME = "perf/rollout_time"


TOKENS_PER_SECOND = "perf/tokens_per_gpu_per_sec"


ENGINE_BALANCE = "perf/engine_tokens/max_over_mean"


RESPONSE_LENGTH = "rollout/response_len/mean"
