"""Evidence from inside runs: recordings whose groups were drawn to an arm, followed while they grow."""

from __future__ import annotations

import base64
import gzip
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from parity.cli import cli, main
from parity.commands.check import check_sources
from parity.commands.watch import RecordingFollower, Watch, WatchedStep, follow, watch
from parity.commands.watch_report import reports_of
from parity.errors import InputError, UsageError
from parity.evidence.sampling.trajectory import GroupBounds, Trajectory, drawn_groups, trajectory_findings
from parity.findings import Finding, Status, Verdict
from parity.records.exchanges import Exchange
from parity.records.samples import Rollout, Sample

ARMS = ("per-sample", "native")
GROUPS, SIZE = 16, 4
BOUNDS = GroupBounds()

Drawn = Callable[..., list[Sample]]


@pytest.fixture
def drawn(valid_samples: Callable[..., list[Sample]]) -> Drawn:
    """One rollout of a probe (every prompt in both arms) or of a switchback, with a fault in the native arm at will."""

    def build(step: int, policy: str = "probe", spoil: Callable[[list[Sample]], None] | None = None) -> list[Sample]:
        coin = random.Random(f"{policy}-{step}")
        both: dict[str, list[Sample]] = {}
        for number, arm in enumerate(ARMS):
            samples = valid_samples(seed=1000 * step + number, groups=GROUPS, n=SIZE, arm=arm)
            both[arm] = [replace(one, rollout_id=step, weight_versions=[f"v{step}"]) for one in samples]
        if spoil:
            spoil(both["native"])
        chosen = [coin.choice(ARMS) for _ in range(GROUPS)]
        every = []
        for arm, samples in both.items():
            for sample in samples:
                trained = chosen[sample.group_index] == arm
                assignment = {"policy": policy, "arm": arm, "probability": 0.5, "trained": trained}
                sample.extra = {**sample.extra, "assignment": assignment}
                sample.prompt_ids = next(
                    one.prompt_ids for one in both["per-sample"] if one.group_index == sample.group_index
                )
                sample.prompt_tokens, sample.cached_tokens = len(sample.prompt_ids), 0
                if trained or policy == "probe":
                    every.append(sample)
        return every

    return build


def lower_reward(samples: list[Sample]) -> None:
    for sample in samples:
        if sample.index == 0:
            sample.reward = 0.0


def clones(samples: list[Sample]) -> None:
    """Slot 1 becomes a copy of slot 0 in every group: each sample by itself is distributed as it should be."""
    for first, second in zip(samples[::SIZE], samples[1::SIZE], strict=True):
        for name in ("output_ids", "logprobs", "text", "finish_reason", "status", "loss_mask", "reward"):
            setattr(second, name, getattr(first, name))
        second.response_length = first.response_length


def evidence(drawn: Drawn, steps: int, policy: str = "probe", **changes: Any) -> Trajectory:
    trajectory = Trajectory(policy, ARMS)
    for step in range(steps):
        groups, undrawn = drawn_groups(Rollout.from_samples(drawn(step, policy, **changes)), BOUNDS)
        assert undrawn == 0
        trajectory = trajectory.update(groups)
    return trajectory


def different(trajectory: Trajectory) -> set[str]:
    return {
        str(finding.where.field)
        for finding in trajectory_findings(trajectory)
        if finding.fails and finding.check == "trajectory_difference"
    }


@pytest.mark.parametrize("policy", ["probe", "switchback"])
def test_arms_that_sample_alike_are_not_called_different(drawn: Drawn, policy: str) -> None:
    trajectory = evidence(drawn, 15, policy)
    assert trajectory.groups == 15 * GROUPS
    assert trajectory.verdict is not Verdict.DIFFERENT
    assert not different(trajectory)


@pytest.mark.parametrize("policy", ["probe", "switchback"])
def test_a_lower_reward_in_one_arm_is_found_and_named_and_nothing_else_is(drawn: Drawn, policy: str) -> None:
    trajectory = evidence(drawn, 40, policy, spoil=lower_reward)
    assert trajectory.verdict is Verdict.DIFFERENT
    assert "rollout/raw_reward" in different(trajectory)
    assert different(trajectory) <= {"rollout/raw_reward", "rollout/group_reward_std"}
    low, high = trajectory.means["rollout/raw_reward"].interval
    assert low < -0.125 < high < 0  # one of four samples, of which half had reward 1, has 0


def test_clones_are_found_as_duplicates_and_not_as_a_shift(drawn: Drawn) -> None:
    found = different(evidence(drawn, 12, spoil=clones))
    assert "rollout/duplicate_pairs" in found
    assert not found & {"rollout/raw_reward", "rollout/response_len/mean", "rollout/rollout_log_probs"}


def test_which_arm_a_switchback_drew_decides_and_not_which_the_group_fell_back_to(drawn: Drawn) -> None:
    samples = drawn(0, "switchback")
    for sample in samples:
        sample.arm = "per-sample"
    groups, _ = drawn_groups(Rollout.from_samples(samples), BOUNDS)
    assert {group.arm for group in groups} == set(ARMS)


def test_groups_that_were_not_drawn_are_counted_and_not_compared(drawn: Drawn) -> None:
    samples = drawn(0)
    for sample in samples:
        if sample.group_index < 3:
            sample.extra["assignment"] = {"policy": "probe", "arm": "per-sample", "probability": 1, "trained": True}
        if sample.group_index == 3:
            sample.extra = {}
    groups, undrawn = drawn_groups(Rollout.from_samples(samples), BOUNDS)
    assert undrawn == 4
    assert len(groups) == 2 * (GROUPS - 4)


def lose_reward(samples: Sequence[Sample], groups: int) -> None:
    for sample in samples:
        if sample.arm == "native" and sample.group_index < groups:
            sample.reward = None


def seen_from(steps: Sequence[Sequence[Sample]], policy: str = "probe", margin: float = 0.1) -> Trajectory:
    trajectory = Trajectory(policy, ARMS, {"rollout/raw_reward": margin})
    for samples in steps:
        trajectory = trajectory.update(drawn_groups(Rollout.from_samples(samples), BOUNDS)[0])
    return trajectory


def left_out(trajectory: Trajectory) -> Finding:
    (finding,) = [one for one in trajectory_findings(trajectory) if one.check == "trajectory_left_out"]
    return finding


def test_a_few_groups_of_which_one_arm_is_missing_are_left_out_with_a_warning(drawn: Drawn) -> None:
    steps = [drawn(step) for step in range(5)]
    steps[0] = [one for one in steps[0] if (one.group_index, one.arm) != (2, "native")]
    lose_reward(steps[1], 1)
    trajectory = seen_from(steps)
    assert trajectory.groups == 5 * GROUPS - 2
    warning = left_out(trajectory)
    assert warning.status is Status.FAIL and not warning.fails
    assert warning.evidence == {"native": 1, "one_arm_only": 2, "drawn": {"per-sample": 80, "native": 79}}


def test_many_groups_that_one_arm_lost_leave_no_parity_among_the_others(drawn: Drawn) -> None:
    sound, lost = ([drawn(step) for step in range(12)] for _ in range(2))
    for samples in lost:
        lose_reward(samples, 4)
    whole, selected = (seen_from(steps, margin=0.6) for steps in (sound, lost))
    assert whole.verdict is Verdict.PARITY
    assert selected.verdict is Verdict.INCONCLUSIVE
    assert left_out(selected).status is Status.INCONCLUSIVE


def test_a_switchback_that_loses_groups_of_one_arm_shows_it_by_its_coin(drawn: Drawn) -> None:
    steps = [drawn(step, "switchback") for step in range(30)]
    survivors = [[one for one in samples if one.arm != "native" or one.group_index % 2] for samples in steps]
    whole, selected = (seen_from(one, "switchback", margin=0.9) for one in (steps, survivors))
    assert (whole.selected, selected.selected) == (False, True)
    assert selected.verdict is Verdict.INCONCLUSIVE
    counted = left_out(selected)
    assert counted.status is Status.INCONCLUSIVE
    assert counted.evidence["drawn"] == {"per-sample": 240, "native": 118}, "not one in two"
    assert "trajectory_left_out" not in {one.check for one in trajectory_findings(whole)}


def test_a_probed_group_of_one_run_has_no_counterpart_in_another(drawn: Drawn) -> None:
    """Two runs count the same steps; a half that one of them lost is not made up by the other's."""
    torn = [one for one in drawn(0) if (one.group_index, one.arm) != (3, "native")]
    trajectory = seen_from([torn, drawn(0)])
    assert (trajectory.groups, trajectory.alone) == (2 * GROUPS - 1, 1)


@pytest.mark.parametrize("lost", [None, float("nan")])
def test_a_first_group_without_reward_does_not_keep_rewards_from_being_watched(
    drawn: Drawn, lost: float | None
) -> None:
    steps = [drawn(step, spoil=lower_reward) for step in range(40)]
    for sample in steps[0]:
        if sample.group_index == 0:
            sample.reward = lost
    trajectory = seen_from(steps)
    assert trajectory.left_out == {"per-sample": 1, "native": 1}
    assert trajectory.verdict is Verdict.DIFFERENT
    assert different(trajectory) == {"rollout/raw_reward"}


def test_a_reward_outside_its_bounds_is_refused_with_the_option_that_widens_them(drawn: Drawn) -> None:
    samples = drawn(3)
    samples[0].reward = 1.5
    with pytest.raises(InputError, match=r"step 3, group 0: rollout/raw_reward 1.5 .*--reward-range"):
        drawn_groups(Rollout.from_samples(samples), BOUNDS)
    drawn_groups(Rollout.from_samples(samples), GroupBounds((0.0, 2.0)))


@pytest.mark.parametrize("assignment", ["native", {"policy": "coin", "arm": "native"}, {"policy": "probe"}])
def test_an_assignment_that_cannot_be_read_is_refused(drawn: Drawn, assignment: Any) -> None:
    samples = drawn(0)
    samples[0].extra["assignment"] = assignment
    with pytest.raises(InputError, match="group 0"):
        drawn_groups(Rollout.from_samples(samples), BOUNDS)


def with_ids_of(step: int, trained: bool, row: dict[str, Any]) -> dict[str, Any]:
    """The exchange with ids that no other has, as an engine gives them."""
    outputs = row["response"] if isinstance(row["response"], list) else [row["response"]]
    for output in outputs:
        output["meta_info"]["id"] = f"{step}-{trained}-{output['meta_info']['id']}"
    return row


Recorded = Callable[[Path, int, Sequence[Sample]], None]


@pytest.fixture
def record(valid_exchanges: Callable[[Sequence[Sample]], list[Exchange]]) -> Recorded:
    """Appends a rollout as a host's recorder does: what is trained on, and beside it what is only compared."""

    def append(directory: Path, step: int, samples: Sequence[Sample]) -> None:
        for folder, trained in ((directory, True), (directory / "compared", False)):
            of_folder = [one for one in samples if one.extra["assignment"]["trained"] is trained]
            of_folder.sort(key=lambda one: (one.group_index, one.index))
            folder.mkdir(exist_ok=True, parents=True)
            exchanges = [] if not of_folder else valid_exchanges(of_folder)
            rows = {
                "rollout.exchanges.jsonl": [with_ids_of(step, trained, exchange.to_json()) for exchange in exchanges],
                "rollout.samples.jsonl": [sample.to_json() for sample in of_folder],
            }
            for name, lines in rows.items():
                with (folder / name).open("ab") as file:
                    file.writelines(orjson.dumps(line) + b"\n" for line in lines)

    return append


def test_a_recording_that_grows_is_followed_rollout_by_rollout(tmp_path: Path, drawn: Drawn, record: Recorded) -> None:
    record(tmp_path, 0, drawn(0))
    follower = follow(tmp_path)
    assert list(follower.poll()) == []  # more of rollout 0 may come
    record(tmp_path, 1, drawn(1))
    with (tmp_path / "rollout.samples.jsonl").open("ab") as file:
        file.write(b'{"rollout_id": 2, "group_in')  # being written
    (step,) = follower.poll()
    assert (step.step, [len(rollout) for rollout in step.rollouts]) == (0, [GROUPS * SIZE, GROUPS * SIZE])
    assert [one.step for one in follower.rest()] == [1]


def test_a_rollout_that_comes_again_is_refused_with_what_to_do(tmp_path: Path, drawn: Drawn, record: Recorded) -> None:
    follower = RecordingFollower(tmp_path)
    for step in range(3):
        record(tmp_path, step, drawn(step))
        list(follower.poll())
    record(tmp_path, 1, drawn(1))
    with pytest.raises(InputError, match=r"rollout 1 "):
        list(follower.poll())


def test_a_watcher_that_is_started_again_comes_to_the_same_evidence(
    tmp_path: Path, drawn: Drawn, record: Recorded
) -> None:
    live = RecordingFollower(tmp_path)
    seen = Watch(BOUNDS)
    for step in range(6):
        record(tmp_path, step, drawn(step))
        for whole in live.poll():
            seen = seen.update(whole)
    for whole in live.rest():
        seen = seen.update(whole)
    *_, again = watch(RecordingFollower(tmp_path), Watch(BOUNDS), once=True)
    first, second = (one.trajectories["probe"] for one in (seen, again))
    assert first.groups == second.groups == 6 * GROUPS
    assert first.largest == second.largest
    assert [mean.smallest_margin for mean in first.means.values()] == [
        mean.smallest_margin for mean in second.means.values()
    ]


def test_watching_stops_at_the_step_that_decides(drawn: Drawn) -> None:
    class Endless:
        def poll(self):  # type: ignore[no-untyped-def]
            for step in range(1000):
                yield WatchedStep("run", step, (Rollout.from_samples(drawn(step, spoil=lower_reward)),), ())

        def ended(self) -> bool:
            return False

        def rest(self):  # type: ignore[no-untyped-def]
            return iter(())

    states = list(watch(Endless(), Watch(BOUNDS), once=False))
    assert states[-1].verdict is Verdict.DIFFERENT
    assert all(one.verdict is Verdict.INCONCLUSIVE for one in states[:-1])
    assert len(states) < 100


@pytest.mark.parametrize(("spoil", "code"), [(None, 3), (lower_reward, 1)])
def test_the_command_judges_a_recording(
    tmp_path: Path,
    drawn: Drawn,
    record: Recorded,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spoil: Any,
    code: int,
) -> None:
    for step in range(30 if spoil else 3):
        record(tmp_path, step, drawn(step, spoil=spoil))
    monkeypatch.setattr("sys.argv", ["parity", "watch", str(tmp_path), "--once", "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    result = orjson.loads(capsys.readouterr().out)
    assert end.value.code == code
    assert result["verdict"] == {3: "INCONCLUSIVE", 1: "DIFFERENT"}[code]
    assert not [one for one in result["findings"] if one["level"] == "contract" and one["status"] == "fail"]
    written = {path.name: path for path in (tmp_path / "report").iterdir()}
    assert {"report.html", "report.md", "comment.md", "report.json", "junit.xml", "curves-probe.png"} <= set(written)
    assert orjson.loads(written["report.json"].read_bytes()) == result
    steps = 30 if spoil else 3
    assert (result["scope"]["steps"], result["scope"]["groups"]) == (steps, 2 * GROUPS * steps)
    assert result["scope"]["margins"]["rollout/raw_reward"] == 0.1
    rows = {row["name"]: row for row in result["table"]}
    assert rows["output count"]["baseline"] == rows["output count"]["experiment"] == {"total": steps * GROUPS * SIZE}
    assert rows["reward"]["findings"][-1]["check"] == "trajectory_difference"
    # The report is no part of the recording: it is checked and watched again as before.
    again = check_sources([str(tmp_path)])
    assert {one.reason for one in again.omissions} <= {"a report of parity itself"}


def page_of(directory: Path) -> dict[str, Any]:
    page = (directory / "report" / "report.html").read_text()
    packed = re.findall(r'id="samples-probe-0-0">([^<]*)<', page)
    return orjson.loads(gzip.decompress(base64.b64decode(packed[0])))  # type: ignore[no-any-return]


def test_the_page_shows_both_arms_of_a_recording_with_their_rows_on_disk(
    tmp_path: Path, drawn: Drawn, record: Recorded
) -> None:
    for step in range(2):
        record(tmp_path, step, drawn(step))
    with pytest.raises(SystemExit):
        cli.main(["watch", str(tmp_path), "--once", "--quiet"], standalone_mode=False)
    page = page_of(tmp_path)
    for side, arm in (("baseline", "per-sample"), ("experiment", "native")):
        parts = page[side]
        assert sum(len(part["row"]) for part in parts) == GROUPS * SIZE
        for part in parts:
            lines = [orjson.loads(line) for line in Path(part["file"]).read_bytes().splitlines()]
            of_side = [lines[row] for row in part["row"]]
            assert {one["arm"] for one in of_side} == {arm}
            if "group_index" in part:
                assert [one["group_index"] for one in of_side] == part["group_index"]
    assert {request[-1] for request in page["requests"][0]} == set(ARMS), "requests of both arms"


def test_a_recording_in_which_no_arm_was_drawn_says_so_and_shows_its_samples(
    tmp_path: Path, drawn: Drawn, record: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = [one for one in drawn(0, "switchback") if one.arm == "native"]
    for one in samples:
        one.extra = {**one.extra, "assignment": {"policy": "fixed", "arm": "native", "probability": 1, "trained": True}}
    record(tmp_path, 0, samples)
    with pytest.raises(SystemExit) as end:
        cli.main(["watch", str(tmp_path), "--once", "--json"], standalone_mode=False)
    result = orjson.loads(capsys.readouterr().out)
    assert end.value.code == 3
    assert (result["verdict"], result["experiment"]) == ("INCONCLUSIVE", "")
    assert "assign groups by probe or switchback" in result["headline"]


def without_scores(directory: Path, step: int) -> None:
    """The answers of a rollout's group 1 are there, and its samples are not."""
    for path in directory.rglob("rollout.samples.jsonl"):
        rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        kept = [row for row in rows if (row["rollout_id"], row["group_index"]) != (step, 1)]
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in kept))


def break_off(directory: Path, step: int) -> None:
    with (directory / "rollout.samples.jsonl").open("ab") as file:
        file.write(b'{"rollout_id": %d, "group_in' % step)


@pytest.mark.parametrize(
    ("spoil", "step", "verdict"),
    [
        (without_scores, 2, Verdict.INCONCLUSIVE),  # rollout 2 is the last one, and goes on
        (without_scores, 1, Verdict.DIFFERENT),
        (break_off, 3, Verdict.INCONCLUSIVE),
    ],
)
def test_a_recording_that_is_being_written_is_not_called_different_for_it(
    tmp_path: Path, drawn: Drawn, record: Recorded, spoil: Callable[[Path, int], None], step: int, verdict: Verdict
) -> None:
    for number in range(3):
        record(tmp_path, number, drawn(number))
    spoil(tmp_path, step)
    *_, seen = watch(RecordingFollower(tmp_path), Watch(BOUNDS), once=True)
    assert reports_of(tmp_path, seen, "")[0][0].verdict.verdict is verdict


@pytest.mark.parametrize("bounds", [("1", "0"), ("1", "1"), ("nan", "1"), ("0", "inf")])
def test_a_range_of_rewards_that_is_none_is_refused(
    tmp_path: Path, drawn: Drawn, record: Recorded, bounds: tuple[str, str]
) -> None:
    record(tmp_path, 0, drawn(0))
    with pytest.raises(UsageError, match="--reward-range"):
        cli.main(["watch", str(tmp_path), "--once", "--reward-range", *bounds], standalone_mode=False)


def test_a_recording_that_has_not_begun_is_waited_for(
    tmp_path: Path, drawn: Drawn, record: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by a watcher that is started beside the training, or before it: step by step the recorder's folder appears."""
    folder = tmp_path / "record"
    begins: list[Callable[[], object]] = [
        folder.mkdir,
        (folder / "rollout.groups.jsonl").touch,
        (folder / "compared").mkdir,
    ]
    begins += [partial(record, folder, step, drawn(step, spoil=lower_reward)) for step in range(30)]
    monkeypatch.setattr("time.sleep", lambda _: begins.pop(0)())
    with pytest.raises(SystemExit) as end:
        cli.main(["watch", str(folder), "--quiet"], standalone_mode=False)
    assert end.value.code == 1
    assert "record: nothing is there yet, waiting for it" in capsys.readouterr().err


def test_a_folder_of_something_else_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "train.log").touch()
    with pytest.raises(InputError, match="give the --out of `parity run`"):
        cli.main(["watch", str(tmp_path)], standalone_mode=False)


def test_a_directory_that_is_neither_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give the --out of `parity run`"):
        follow(tmp_path)
