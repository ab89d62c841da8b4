"""Native group sampling for RL trainers: one `/generate` request a group instead of one a sample."""

from rollout_patch.assignment import Assignment, fixed, probe, switchback
from rollout_patch.dialects import DIALECTS, SGLANG, VLLM, Dialect, plan_requests
from rollout_patch.eligibility import CONDITIONS, Capabilities, Condition
from rollout_patch.errors import PatchError, RequestAborted, RequestFailed, ResponseRefused, UnsupportedHost
from rollout_patch.group import Adapter, GroupReport, Post, Recorder, generate_group
from rollout_patch.media import Encoder
from rollout_patch.metrics import group_metrics
from rollout_patch.permits import Permits
from rollout_patch.recorder import json_lines, sample_rows
from rollout_patch.requests import ARMS, PlannedRequest, SampleRequest
from rollout_patch.responses import Output

__all__ = [
    "ARMS",
    "CONDITIONS",
    "DIALECTS",
    "SGLANG",
    "VLLM",
    "Adapter",
    "Assignment",
    "Capabilities",
    "Condition",
    "Dialect",
    "Encoder",
    "GroupReport",
    "Output",
    "PatchError",
    "Permits",
    "PlannedRequest",
    "Post",
    "Recorder",
    "RequestAborted",
    "RequestFailed",
    "ResponseRefused",
    "SampleRequest",
    "UnsupportedHost",
    "fixed",
    "generate_group",
    "group_metrics",
    "json_lines",
    "plan_requests",
    "probe",
    "sample_rows",
    "switchback",
]
