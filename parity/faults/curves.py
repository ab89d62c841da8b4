"""Faults that no single sample shows: draws at fixed weights, trackers' records, curves of whole runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from parity.faults.clean import CAP, SIZE, clean_rollout
from parity.faults.scenes import DRAWS, RUNS, TRACKER, Draws, Fault, Plant, Scene
from parity.findings import Level
from parity.records.samples import Rollout

# --- draws


def _at(*temperatures: float) -> Plant:
    """The experiment draws at other temperatures, one for all slots or one a slot; its samples do not say so."""

    def plant(draws: Draws) -> None:
        slots = list(temperatures) * (SIZE if len(temperatures) == 1 else 1)
        draws.experiment = clean_rollout(draws.rng, draws.prompts, temperatures=slots)

    return plant


def _without_long(draws: Draws) -> None:
    """A third of the responses that hit the cap is aborted and drawn again."""
    again = clean_rollout(draws.rng, draws.prompts)
    long = draws.experiment.numbers("response_length")[0] == CAP
    redrawn = long & (draws.rng.random(len(long)) < 0.6)
    rows = np.where(redrawn, len(long) + np.arange(len(long)), np.arange(len(long)))
    draws.experiment = Rollout(Rollout.concatenate([draws.experiment, again]).table.take(pa.array(rows)))


def _with_logprobs(draws: Draws, values: Callable[[Rollout], Any]) -> None:
    table = draws.experiment.table
    ragged = draws.experiment.ragged("logprobs")
    column = pa.ListArray.from_arrays(pa.array(ragged.offsets, pa.int32()), pa.array(values(draws.experiment)))
    place = table.column_names.index("logprobs")
    draws.experiment = Rollout(table.set_column(place, table.schema.field(place), column))


def _unscaled(draws: Draws) -> None:
    """Log-probs are of the logits before the temperature: here, as if it had been 0.7."""
    _with_logprobs(draws, lambda rollout: rollout.ragged("logprobs").values * 0.7)


def _only_first_sensible(draws: Draws) -> None:
    """All slots but the first draw almost at random."""
    _at(1.0, *[1.6] * (SIZE - 1))(draws)


def _rewards_by_slot(draws: Draws) -> None:
    """The first slot is rewarded more often than the others."""
    table = draws.experiment.table
    rewards = draws.experiment.numbers("reward")[0]
    lucky = (draws.experiment.integers("index") == 0) & (draws.rng.random(len(rewards)) < 0.4)
    place = table.column_names.index("reward")
    draws.experiment = Rollout(
        table.set_column(place, table.schema.field(place), pa.array(np.where(lucky, 1.0, rewards)))
    )


def _pairs_cloned(draws: Draws) -> None:
    """The last two slots of every group hold one response."""
    slots = draws.experiment.integers("index")
    rows = np.arange(len(slots)) - (slots == SIZE - 1)
    table = draws.experiment.table.take(pa.array(rows))
    place = table.column_names.index("index")
    draws.experiment = Rollout(table.set_column(place, table.schema.field(place), pa.array(slots)))


SAMPLING_FAULTS = tuple(
    Fault(name, origin, place, description, DRAWS, plant, check, Level.SAMPLING, groups, companions)
    for name, origin, place, description, plant, check, groups, companions in (
        (
            "temperature-dropped", "statistics 7", "engine", "drawn at 0.7, though 1.0 was asked for",
            _at(0.7), "sampling_marginal:negative_log_likelihood", 64,
            ("sampling_shape:*", "sampling_marginal:*", "sampling_independence:output_ids*"),
        ),
        (
            "temperature-a-little-off", "statistics 7", "engine", "drawn at 0.9, though 1.0 was asked for",
            _at(0.9), "sampling_marginal:negative_log_likelihood", 64, ("sampling_shape:*", "sampling_marginal:*"),
        ),
        (
            "logprobs-unscaled", "huggingface/trl#4159", "engine", "log-probs are of logits before the temperature",
            _unscaled, "sampling_marginal:negative_log_likelihood", 64, ("sampling_shape:negative_log_likelihood",),
        ),
        (
            "first-slot-greedy", "statistics 7", "engine", "the first sample of each group is drawn greedily",
            _at(0.1, *[1.0] * (SIZE - 1)), "sampling_slot:negative_log_likelihood", 64,
            ("sampling_*",),
        ),
        (
            "only-first-sensible", "sgl-project/sglang#5541", "engine", "with an image, all but the first are noise",
            _only_first_sensible, "sampling_slot:negative_log_likelihood", 64, ("sampling_*",),
        ),
        (
            "stale-image-cache", "statistics 7", "engine", "siblings read the image of another prompt from the cache",
            _at(*[1.0] * 2, *[1.3] * (SIZE - 2)), "sampling_slot:negative_log_likelihood", 64, ("sampling_*",),
        ),
        (
            "slot-rewarded", "huggingface/transformers#36083", "host", "the first slot is rewarded more often",
            _rewards_by_slot, "sampling_slot:reward", 256, (),
        ),
        (
            "pairs-drawn-once", "statistics 7", "engine", "two slots of each group hold one draw",
            _pairs_cloned, "sampling_independence:output_ids", 64, ("sampling_independence:*",),
        ),
        (
            "long-ones-aborted", "statistics 7", "engine", "most responses that reach the cap are given up, redrawn",
            _without_long, "sampling_marginal:truncated", 256, (),
        ),
    )
)  # fmt: skip

_REWARD = "rollout/raw_reward"

# --- records of a tracker


def _shift(scene: Scene) -> None:
    """What is logged at step k is of step k - 1."""
    steps = [record["step"] for record in scene.records]
    for step, record in zip(steps[1:], scene.records, strict=False):
        record["step"] = step
    scene.records.pop()


def _over_all_samples(scene: Scene) -> None:
    """A mean over finished samples is divided by all of them."""
    scene.samples[1].reward = scene.samples[2].reward = None
    known = [sample.reward for sample in scene.samples if sample.rollout_id == 0 and sample.reward is not None]
    scene.records[0][_REWARD] = sum(known) / (len(known) + 2)


def _counted_twice(scene: Scene) -> None:
    """A rewarded rollout of two trajectories counts twice."""
    rewards = [sample.reward or 0.0 for sample in scene.samples if sample.rollout_id == 0]
    scene.records[0][_REWARD] = float(np.mean([*rewards, max(rewards)]))


def _per_child(scene: Scene) -> None:
    """Tokens of the request's prompt are counted for each child."""
    scene.records[0]["rollout/avg_cached_tokens_per_sample"] *= SIZE


# --- curves


def each_run(change: Callable[[list[dict[str, Any]]], object]) -> Plant:
    """Changes the records of every run of the experiment."""
    return lambda runs: [change(records) for records in runs.experiment]


def _resumed_late(records: list[dict[str, Any]]) -> None:
    """A tracker goes on at its last step plus what the trainer counts from there."""
    for record in records[30:]:
        record["step"] += 30


def _cut_titles(records: list[dict[str, Any]]) -> None:
    for record in records:
        record.pop("rollout/group_reward_std")


def _downsampled(records: list[dict[str, Any]]) -> None:
    records[20:] = records[20::3]


def _purge_some(records: list[dict[str, Any]]) -> None:
    """A restart writes steps 20 to 29 again, with other values."""
    records[30:30] = [{**record, "rollout/raw_reward": record[_REWARD] * 1.01} for record in records[20:30]]


def _purge_tag(records: list[dict[str, Any]]) -> None:
    """Steps 20 to 29 of one tag are purged at a restart, those of the others are not."""
    for record in records[20:30]:
        del record["train/grad_norm"]


def scale(metric: str, factor: float, start: int = 0) -> Callable[[Sequence[dict[str, Any]]], None]:
    """Multiplies a metric from a step on."""

    def change(records: Sequence[dict[str, Any]]) -> None:
        for record in records[start:]:
            record[metric] *= factor

    return change


_PARITY = "training_parity:*"

CURVE_FAULTS = tuple(
    Fault(name, origin, place, description, kind, plant, check, level, units, companions)
    for name, origin, place, description, kind, plant, check, level, units, companions in (
        (
            "logged-a-step-late", "prime-rl and verl, constructed", "tracker", "what is logged at k is of k - 1",
            TRACKER, _shift, "metrics_recomputed", Level.CONTRACT, 2, (),
        ),
        (
            "denominator-of-all", "verl-project/verl#7970", "tracker", "a mean counts samples that were masked out",
            TRACKER, _over_all_samples, "metrics_recomputed", Level.CONTRACT, 1, (),
        ),
        (
            "trajectory-counted-twice", "radixark/miles#2378", "tracker", "a rollout of two trajectories counts twice",
            TRACKER, _counted_twice, "metrics_recomputed", Level.CONTRACT, 1, (),
        ),
        (
            "children-counted", "vllm-project/vllm#56361", "tracker", "a request's tokens count once a child",
            TRACKER, _per_child, "metrics_recomputed", Level.CONTRACT, 1, (),
        ),
        (
            "steps-jump", "clearml/clearml#439", "tracker", "a resumed run's steps continue too far on",
            RUNS, each_run(_resumed_late), "curve_regular_steps", Level.CONTRACT, 1, ("curve_arms_same_steps",),
        ),
        (
            "titles-cut", "clearml/clearml#383", "tracker", "metrics beyond the first hundred are not kept",
            RUNS, each_run(_cut_titles), "curve_arms_same_steps", Level.CONTRACT, 1, (),
        ),
        (
            "downsampled", "clearml/clearml#997", "tracker", "long curves are thinned out when they are read",
            RUNS, each_run(_downsampled), "curve_regular_steps", Level.CONTRACT, 1, (),
        ),
        (
            "end-not-flushed", "clearml/clearml#766", "tracker", "the last scalars are missing",
            RUNS, each_run(lambda records: records.__delitem__(slice(-3, None))), "curve_arms_same_steps",
            Level.CONTRACT, 1, (),
        ),
        (
            "step-dropped", "wandb/wandb#9449", "tracker", "a step that was logged too early drops another",
            RUNS, each_run(lambda records: records.pop(3)), "curve_regular_steps", Level.CONTRACT, 1,
            ("curve_arms_same_steps",),
        ),
        (
            "overlap-kept", "tensorflow/tensorboard#1272", "tracker", "steps before a restart are logged again",
            RUNS, each_run(_purge_some), "curve_steps_once", Level.CONTRACT, 1, (),
        ),
        (
            "tag-purged", "tensorflow/tensorboard#3732", "tracker", "steps before a restart are lost for one tag",
            RUNS, each_run(_purge_tag), "curve_regular_steps", Level.CONTRACT, 1, ("curve_arms_same_steps",),
        ),
        (
            "nan-logged", "PrimeIntellect-ai/prime-rl#2972", "trainer", "0 times infinity is NaN, even when masked",
            RUNS, each_run(lambda records: records[40].update({"train/loss": float("nan")})), "curve_finite_values",
            Level.CONTRACT, 1, (),
        ),
        (
            "temperature-forgotten-in-trainer", "PrimeIntellect-ai/prime-rl#697", "trainer",
            "the trainer's log-probs are not scaled by the temperature",
            RUNS, each_run(scale("train/train_rollout_logprob_abs_diff", 200.0)), "curve_train_rollout_gap",
            Level.CONTRACT, 1, (),
        ),
        (
            "processed-before-logprobs", "sgl-project/sglang#2664", "engine",
            "log-probs leave out temperature and top-p, not what was sampled from",
            RUNS, each_run(scale("train/train_rollout_logprob_abs_diff", 100.0, 10)), "curve_train_rollout_gap",
            Level.CONTRACT, 1, (),
        ),
        (
            "engine-version-moved", "OpenRLHF/OpenRLHF#1108", "engine", "another engine version moves the reward",
            RUNS, each_run(scale(_REWARD, 0.9)), f"training_parity:{_REWARD}", Level.TRAINING, 3, (),
        ),
        (
            "gradient-norm-moved", "statistics 7", "trainer", "the gradient is a quarter larger in one arm",
            RUNS, each_run(scale("train/grad_norm", 1.25)), "training_parity:train/grad_norm", Level.TRAINING, 3, (),
        ),
        (
            "collapses-in-one-arm", "statistics 7", "trainer", "every run of one arm collapses halfway",
            RUNS, each_run(scale(_REWARD, 0.05, 30)), f"collapse_rate:{_REWARD}", Level.TRAINING, 5, (_PARITY,),
        ),
        (
            "warm-up-requests", "sgl-project/sglang tokenizer_manager.py", "engine", "one request more for each group",
            RUNS, each_run(scale("perf/requests", 9 / 8)), "requests", Level.COST, 1, (),
        ),
    )
)  # fmt: skip

FAULTS = (*SAMPLING_FAULTS, *CURVE_FAULTS)
