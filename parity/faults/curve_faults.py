"""Faults that no single sample shows: in groups sampled at fixed weights, a tracker's metrics, curves of whole runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from parity.faults.clean import CAP, SIZE, clean_rollout
from parity.faults.edits import Plant
from parity.faults.scenes import Draws, Runs, Scene
from parity.records.samples import Rollout

Records = list[dict[str, Any]]
REWARD = "rollout/raw_reward"

# --- groups sampled at fixed weights


def _at(*temperatures: float) -> Plant:
    """The experiment samples at other temperatures, one for all slots or one a slot; its samples do not record it."""

    def plant(draws: Draws) -> None:
        slots = list(temperatures) * (SIZE if len(temperatures) == 1 else 1)
        draws.experiment = clean_rollout(draws.rng, draws.prompts, temperatures=slots)

    return plant


def _replace(draws: Draws, name: str, values: Any) -> None:
    """Replaces a column of the experiment's samples."""
    table = draws.experiment.table
    place = table.column_names.index(name)
    draws.experiment = Rollout(table.set_column(place, table.schema.field(place), pa.array(values)))


def _redraw_long(draws: Draws) -> None:
    """Most of the responses that reach the cap are drawn again."""
    again = clean_rollout(draws.rng, draws.prompts)
    long = draws.experiment.numbers("response_length")[0] == CAP
    redrawn = long & (draws.rng.random(len(long)) < 0.6)
    rows = np.where(redrawn, len(long) + np.arange(len(long)), np.arange(len(long)))
    draws.experiment = Rollout(Rollout.concatenate([draws.experiment, again]).table.take(pa.array(rows)))


def _unscale(draws: Draws) -> None:
    """Log-probs come from the logits before the temperature, as if that had been 0.7."""
    ragged = draws.experiment.ragged("logprobs")
    scaled = pa.array(ragged.values * 0.7)
    _replace(draws, "logprobs", pa.ListArray.from_arrays(pa.array(ragged.offsets, pa.int32()), scaled))


def _reward_first_slot(draws: Draws) -> None:
    rewards = draws.experiment.numbers("reward")[0]
    lucky = (draws.experiment.integers("index") == 0) & (draws.rng.random(len(rewards)) < 0.4)
    _replace(draws, "reward", np.where(lucky, 1.0, rewards))


def _clone_last_pair(draws: Draws) -> None:
    """The last two slots of every group hold one response."""
    slots = draws.experiment.integers("index")
    rows = np.arange(len(slots)) - (slots == SIZE - 1)
    draws.experiment = Rollout(draws.experiment.table.take(pa.array(rows)))
    _replace(draws, "index", slots)


def _reward_more(draws: Draws) -> None:
    """One unrewarded sample in five is rewarded."""
    rewards = draws.experiment.numbers("reward")[0]
    _replace(draws, "reward", np.where(draws.rng.random(len(rewards)) < 0.2, 1.0, rewards))


def _reward_whole_groups(draws: Draws) -> None:
    """Half of the groups get equal rewards; the mean reward stays the same."""
    groups = draws.experiment.numbers("reward")[0].reshape(-1, SIZE)
    equal = draws.rng.random((len(groups), 1)) < 0.5
    whole = np.repeat(draws.rng.random((len(groups), 1)) < groups.mean(axis=1, keepdims=True), SIZE, axis=1)
    _replace(draws, "reward", np.where(equal, whole, groups).ravel())


def _lose_some_rewards(draws: Draws) -> None:
    """The reward of one sample in every fiftieth group is missing."""
    rewards = draws.experiment.numbers("reward")[0]
    lost = np.arange(len(rewards)) % (50 * SIZE) == 0
    _replace(draws, "reward", pa.array(rewards, mask=lost))


# --- a tracker's metrics


def _shift(scene: Scene) -> None:
    """Metrics of step k - 1 are logged at step k."""
    steps = [record["step"] for record in scene.records]
    scene.records.pop()
    for step, record in zip(steps[1:], scene.records, strict=True):
        record["step"] = step


def _first_rewards(scene: Scene) -> list[float]:
    return [sample.reward for sample in scene.samples if sample.rollout_id == 0 and sample.reward is not None]


def _divide_by_all(scene: Scene) -> None:
    """A mean over finished samples divides by the number of all samples."""
    scene.samples[1].reward = scene.samples[2].reward = None
    known = _first_rewards(scene)
    scene.records[0][REWARD] = sum(known) / (len(known) + 2)


def _count_twice(scene: Scene) -> None:
    """A rewarded sample of two trajectories counts twice."""
    rewards = _first_rewards(scene)
    scene.records[0][REWARD] = float(np.mean([*rewards, max(rewards)]))


def _count_per_output(scene: Scene) -> None:
    scene.records[0]["rollout/avg_cached_tokens_per_sample"] *= SIZE


# --- curves


def each_run(change: Callable[[Records], object]) -> Plant:
    """Changes the records of every run of the experiment."""
    return lambda runs: [change(records) for records in runs.experiment]


def both_arms(change: Callable[[Records], object]) -> Plant:
    """Changes the records of every run of both arms."""
    return lambda runs: [change(records) for records in (*runs.baseline, *runs.experiment)]


def scale(metric: str, factor: float, start: int = 0) -> Callable[[Sequence[dict[str, Any]]], None]:
    """Multiplies a metric from a step on."""

    def change(records: Sequence[dict[str, Any]]) -> None:
        for record in records[start:]:
            record[metric] *= factor

    return change


def _resume_late(records: Records) -> None:
    """After a restart, a tracker adds its last step to the trainer's step."""
    for record in records[30:]:
        record["step"] += 30


def _repeat_steps(records: Records) -> None:
    """A restart logs steps 20 to 29 again, with other values."""
    records[30:30] = [{**record, REWARD: record[REWARD] * 1.01} for record in records[20:30]]


def _remove(metric: str, start: int, end: int) -> Callable[[Records], None]:
    """Removes a metric from some steps."""

    def change(records: Records) -> None:
        for record in records[start:end]:
            del record[metric]

    return change


def _logged_when_counted(runs: Runs) -> None:
    """Groups of zero deviation are counted where there are any, and by value: at some steps, or at all but one."""
    for number, records in enumerate((*runs.baseline, *runs.experiment)):
        for step, record in enumerate(records):
            if (step + number) % 3:
                record["rollout/zero_std/count_1.0"] = 1.0
            if (step * step + number) % 7 < 2:
                record["diagnostics/overlong"] = 1.0
            if step != 10 + number:
                record["rollout/zero_std/count_0.0"] = 2.0


def _climb(factor: float) -> Plant:
    """The gap of trainer and engine grows by so many times itself over a run."""

    def change(records: Records) -> None:
        for step, record in enumerate(records):
            record[GAP] *= 1 + factor * step / len(records)

    return each_run(change)


GAP = "train/train_rollout_logprob_abs_diff"

PLANTS: Mapping[str, Plant] = {
    "temperature-dropped": _at(0.7),
    "temperature-a-little-off": _at(0.9),
    "logprobs-unscaled": _unscale,
    "first-slot-greedy": _at(0.1, *[1.0] * (SIZE - 1)),
    "only-first-sensible": _at(1.0, *[1.6] * (SIZE - 1)),
    "stale-image-cache": _at(*[1.0] * 2, *[1.3] * (SIZE - 2)),
    "slot-rewarded": _reward_first_slot,
    "pairs-drawn-once": _clone_last_pair,
    "long-ones-aborted": _redraw_long,
    "rewarded-more": _reward_more,
    "rewarded-by-group": _reward_whole_groups,
    "rewards-lost": _lose_some_rewards,
    "logged-a-step-late": _shift,
    "denominator-of-all": _divide_by_all,
    "trajectory-counted-twice": _count_twice,
    "children-counted": _count_per_output,
    "steps-jump": each_run(_resume_late),
    "titles-cut": each_run(_remove("rollout/group_reward_std", 0, 60)),
    "downsampled": each_run(lambda records: records.__setitem__(slice(20, None), records[20::3])),
    "end-not-flushed": each_run(lambda records: records.__delitem__(slice(-3, None))),
    "step-dropped": each_run(lambda records: records.pop(3)),
    "overlap-kept": each_run(_repeat_steps),
    "tag-purged": each_run(_remove("train/grad_norm", 20, 30)),
    "nan-logged": each_run(lambda records: records[40].update({"train/loss": float("nan")})),
    "temperature-forgotten-in-trainer": each_run(scale(GAP, 200.0)),
    "processed-before-logprobs": each_run(scale(GAP, 100.0, 10)),
    "engine-version-moved": each_run(scale(REWARD, 0.9)),
    "gradient-norm-moved": each_run(scale("train/grad_norm", 1.25)),
    "collapses-in-one-arm": each_run(scale(REWARD, 0.05, 30)),
    "warm-up-requests": each_run(scale("perf/requests", 9 / 8)),
    "collapse-in-both": both_arms(scale(REWARD, 0.05, 30)),
    "fewer-requests": each_run(scale("perf/requests", 1 / 8)),
    "gap-climbs": _climb(40.0),
    "gap-doubles": _climb(1.0),
    "logged-rarely": both_arms(lambda records: [record.update({"eval/reward": 0.5}) for record in records[::10]]),
    "counted-when-it-happens": _logged_when_counted,
}
"""By name, what plants each fault, and each control of curves, in its scene."""
