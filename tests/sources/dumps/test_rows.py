"""What a source says wrongly is refused with the record, the field and the value; nothing is cut to fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from host_forms import host_sample, rank_dump, relax_row, rollout_dump, save_torch, verl_row, write_lines

from parity.commands.check import check_paths
from parity.contract_checks import Rules
from parity.errors import InputError, NotRecognised, UsageError
from parity.findings import Status
from parity.records.samples import Rollout, Sample
from parity.sources.dumps.rows import rollout_of
from parity.sources.registry import open_source

N = 4


def read(path: Path, group_size: int | None = N) -> Rollout:
    source = open_source(path, group_size)
    assert source.samples is not None
    return Rollout.concatenate(list(source.samples()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("output_ids", [1.5]),
        ("output_ids", ["1"]),
        ("output_ids", [[1]]),
        ("output_ids", 7),
        ("output_ids", [2**31]),
        ("output_ids", "12"),
        ("logprobs", [-0.1, "x"]),
        ("logprobs", {"0": 1}),
        ("loss_mask", [300]),
        ("loss_mask", [0.5]),
        ("reward", "1.0"),
        ("reward", [1.0]),
        ("response_length", 1.5),
        ("response_length", 2**64),
        ("response_length", "3"),
        ("status", 3),
        ("text", ["a"]),
        ("text", "\ud800"),
        ("weight_versions", "v1"),
        ("weight_versions", [1.5]),
        ("media_sha256", [1]),
        ("top_k", True + 0.5),
        ("top_k", True),
        ("temperature", True),
        ("advantage", False),
        ("prompt_tokens", True),
        ("output_ids", [True]),
        ("logprobs", [False]),
        ("extra", {"a": object()}),
        ("extra", {"a": 2**64}),
        ("extra", {"a": "\ud800"}),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_place(field: str, value: Any) -> None:
    sound: dict[str, Any] = {"group_index": 0, "index": 0}
    with pytest.raises(InputError, match=rf"^row 2: field '{field}' "):
        rollout_of([sound, sound, {**sound, field: value}, sound], lambda row: f"row {row}")


def test_values_of_alike_types_are_kept() -> None:
    rows: list[dict[str, Any]] = [
        {"group_index": 0, "index": 0, "reward": True, "output_ids": [1, 2], "logprobs": [-1, -0.5]},
        {"group_index": 0, "index": 1, "reward": 0.5, "output_ids": np.array([3, 4]), "logprobs": [float("nan"), None]},
        {"group_index": 0, "index": 2, "reward": 2, "output_ids": [], "weight_versions": [7, 8]},
        {"group_index": 0, "index": 3, "output_ids": [5.0], "weight_versions": ["v1"], "loss_mask": [True, False]},
    ]
    one, two, three, four = rollout_of(rows, str).samples()
    assert (one.reward, two.reward, three.reward, four.reward) == (1.0, 0.5, 2.0, None)
    assert (one.output_ids, two.output_ids, three.output_ids, four.output_ids) == ([1, 2], [3, 4], [], [5])
    assert one.logprobs == [-1.0, -0.5]
    assert two.logprobs is not None
    assert np.isnan(two.logprobs[0])
    assert two.logprobs[1] is None
    assert (three.weight_versions, four.weight_versions) == (["7", "8"], ["v1"])
    assert four.loss_mask == [1, 0]


def test_a_required_field_that_is_missing_is_named() -> None:
    with pytest.raises(InputError, match=r"^row 1: .*'index'"):
        rollout_of([{"group_index": 0, "index": 0}, {"group_index": 0}], lambda row: f"row {row}")


@pytest.fixture
def samples(valid_samples: Any) -> list[Sample]:
    return list(valid_samples(groups=3, n=N))


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("response_length", None, r"samples\[5\]: field 'response_length' is None, not an integer"),
        ("response_length", 2.5, r"samples\[5\]: field 'response_length' is 2.5"),
        ("tokens", None, r"samples\[5\]: field 'tokens' is NoneType, not a list"),
        ("tokens", ["a"] * 60, r"samples\[5\]: field 'prompt_ids' is no list of int32"),
        ("group_index", None, r"samples\[5\]: field 'group_index' is None"),
        ("index", "5", r"samples\[5\]: field 'index' is '5'"),
        ("rollout_log_probs", ["x"], r"samples\[5\]: field 'logprobs' is no list of double"),
    ],
)
def test_a_bad_sample_of_a_dump_is_named(
    field: str, value: Any, said: str, samples: list[Sample], tmp_path: Path
) -> None:
    content = rollout_dump(samples, N)
    content["samples"][5][field] = value
    with pytest.raises(InputError, match=said):
        read(save_torch(tmp_path / "0.pt", content))


def test_a_sample_that_is_no_mapping_is_named(samples: list[Sample], tmp_path: Path) -> None:
    content = rollout_dump(samples, N)
    content["samples"][3] = [1, 2]
    with pytest.raises(InputError, match=r"samples\[3\]: .*list"):
        read(save_torch(tmp_path / "0.pt", content))


def test_a_response_longer_than_its_tokens_is_read_and_found(samples: list[Sample], tmp_path: Path) -> None:
    content = rollout_dump(samples, N)
    content["samples"][5]["response_length"] += 1000
    findings = check_paths([save_torch(tmp_path / "0.pt", content)], Rules()).findings
    assert ("response_length", 1, 1) in {
        (one.check, one.where.group_index, one.where.index) for one in findings if one.fails
    }


def test_an_aborted_sample_that_was_restored_passes(samples: list[Sample], tmp_path: Path) -> None:
    content = rollout_dump(samples, N)
    content["samples"][5] |= {"tokens": [], "response": "", "response_length": 0, "rollout_log_probs": None}
    content["samples"][5] |= {"loss_mask": None, "reward": None, "status": "aborted", "weight_versions": []}
    content["samples"][5] |= {"prefix_cache_info": {"cached_tokens": 0, "total_prompt_tokens": 0}}
    result = check_paths([save_torch(tmp_path / "0.pt", content)], Rules(group_size=N))
    assert [one.message for one in result.findings if one.fails] == []


def test_a_number_that_two_samples_of_a_group_share_is_found(samples: list[Sample], tmp_path: Path) -> None:
    content = rollout_dump(samples, N)
    content["samples"][5]["index"] = content["samples"][6]["index"]
    findings = check_paths([save_torch(tmp_path / "0.pt", content)], Rules()).findings
    assert ("slot_index", 1) in {(one.check, one.where.group_index) for one in findings if one.fails}


def test_a_reward_may_be_true_or_false_and_so_may_a_mask(samples: list[Sample], tmp_path: Path) -> None:
    """As of a verifier: slime and Miles make a float tensor of rewards, and verl takes the float of a boolean score."""
    truth = [number % 3 == 0 for number in range(len(samples))]
    plain, mapped, lines, scores = rollout_dump(samples, N), rollout_dump(samples, N), [], []
    for number, one in enumerate(samples):
        plain["samples"][number]["reward"] = truth[number]
        plain["samples"][number]["loss_mask"] = [True] * len(plain["samples"][number]["loss_mask"] or [])
        mapped["samples"][number]["reward"] = {"score": truth[number], "acc": truth[number]}
        lines.append({**one.to_json(), "reward": truth[number]})
        scores.append({**verl_row(one), "score": truth[number]})
    train = rank_dump(samples, N, samples)
    train["rollout_data"]["raw_reward"] = truth
    table = Rollout.from_samples(samples).table
    table = table.set_column(table.column_names.index("reward"), "reward", pa.array(truth))
    pq.write_table(table, tmp_path / "own.parquet")
    paths = [
        save_torch(tmp_path / "0.pt", plain),
        save_torch(tmp_path / "mapped.pt", mapped),
        save_torch(tmp_path / "0_0.pt", train),
        write_lines(tmp_path / "own.samples.jsonl", lines),
        write_lines(tmp_path / "0.jsonl", scores),
        tmp_path / "own.parquet",
    ]
    for path in paths:
        assert read(path).numbers("reward")[0].tolist() == [float(one) for one in truth], path
    assert set(read(paths[0]).ragged("loss_mask").values.tolist()) == {1}


def test_a_column_of_truth_values_is_no_column_of_numbers(samples: list[Sample], tmp_path: Path) -> None:
    table = Rollout.from_samples(samples).table
    for name, kind in (("temperature", pa.bool_()), ("output_ids", pa.list_(pa.bool_()))):
        value = [[True]] if name == "output_ids" else [True]
        other = table.set_column(table.column_names.index(name), name, pa.array(value * len(table), kind))
        pq.write_table(other, tmp_path / "own.parquet")
        with pytest.raises(InputError, match=rf"own\.parquet, row group 0: column '{name}' "):
            read(tmp_path / "own.parquet")


def test_dumps_of_early_versions_are_read(samples: list[Sample], tmp_path: Path) -> None:
    early = [host_sample(one, N) for one in samples]
    for one in early:
        for field in ("group_index", "weight_versions", "session_id", "spec_info", "prefix_cache_info", "loss_mask"):
            del one[field]
    for name, content in {"3.pt": early, "4.pt": {"samples": early}}.items():
        path = save_torch(tmp_path / name, content)
        rollout = read(path)
        assert rollout.integers("group_index").tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert set(rollout.integers("rollout_id")) == {int(path.stem)}
        with pytest.raises(UsageError, match="--group-size"):
            read(path, None)


def test_rewards_that_are_mappings_count_by_their_score(samples: list[Sample], tmp_path: Path) -> None:
    content = rollout_dump(samples, N)
    for number, one in enumerate(content["samples"]):
        one["reward"] = {"score": number, "accuracy": 1}
    rollout = read(save_torch(tmp_path / "0.pt", content))
    assert rollout.numbers("reward")[0].tolist() == list(range(12))
    assert rollout.extra(3)["reward"] == {"score": 3, "accuracy": 1}


def test_encoded_media_in_a_dump_are_found(samples: list[Sample], tmp_path: Path) -> None:
    content = rollout_dump(samples, N)
    content["samples"][5]["metadata"] = {"image": "data:image/png;base64," + "A" * 100}
    findings = check_paths([save_torch(tmp_path / "0.pt", content)], Rules()).findings
    assert "encoded_media" in {one.check for one in findings if one.fails}


def test_the_media_of_a_group_are_compared(samples: list[Sample], tmp_path: Path) -> None:
    content = rollout_dump(samples, N)
    for one in content["samples"]:
        one["multimodal_inputs"] = {"images": [f"picture of group {one['group_index']}"]}
    assert not [one for one in check_paths([save_torch(tmp_path / "0.pt", content)], Rules()).findings if one.fails]
    content["samples"][5]["multimodal_inputs"] = {"images": ["another picture"]}
    findings = check_paths([save_torch(tmp_path / "0.pt", content)], Rules()).findings
    assert {(one.check, one.where.group_index) for one in findings if one.fails} == {("group_media", 1)}


def test_a_file_of_another_step_than_its_name_says_is_refused(samples: list[Sample], tmp_path: Path) -> None:
    said = "named after step 7, but holds rollout 0"
    with pytest.raises(InputError, match=said):
        read(save_torch(tmp_path / "7.pt", rollout_dump(samples, N)))
    with pytest.raises(InputError, match=said):
        read(write_lines(tmp_path / "7.jsonl", [relax_row(one, 0) for one in samples]))
    with pytest.raises(InputError, match=said):
        read(write_lines(tmp_path / "7.jsonl.gz", [verl_row(one) for one in samples]))


def test_lines_of_mixed_steps_are_refused(valid_samples: Any, tmp_path: Path) -> None:
    mixed = valid_samples(steps=2, groups=1, n=2)
    with pytest.raises(InputError, match=r"relax\.jsonl:3: rollout 1 .*rollout 0"):
        read(write_lines(tmp_path / "relax.jsonl", [relax_row(one, 0) for one in mixed]))
    with pytest.raises(InputError, match=r"verl\.jsonl:3: step 1 .*step 0"):
        read(write_lines(tmp_path / "verl.jsonl", [verl_row(one) for one in mixed]))


def test_relax_results_stand_by_group_whatever_order_they_finished_in(samples: list[Sample], tmp_path: Path) -> None:
    rows = [relax_row(one, row) for row, one in enumerate(samples)]
    rollout = read(write_lines(tmp_path / "0.jsonl", rows[::3] + rows[1::3] + rows[2::3]))
    assert rollout.integers("group_index").tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert rollout.integers("index").tolist() == [0, 1, 2, 3] * 3


def test_verl_rows_without_uid_are_grouped_by_their_input(samples: list[Sample], tmp_path: Path) -> None:
    rows = [{name: value for name, value in verl_row(one).items() if name != "uid"} for one in samples]
    rollout = read(write_lines(tmp_path / "0.jsonl", rows[::2] + rows[1::2]))
    assert rollout.integers("group_index").tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize(("group_size", "draws"), [(None, 1), (3, 1), (None, 2)])
def test_a_prompt_that_verl_drew_twice_in_a_step_is_two_groups(
    group_size: int | None, draws: int, tmp_path: Path
) -> None:
    """Eleven inputs of three lines each, and one of three lines a draw."""
    inputs = [f"question {number}" for number in range(11) for _ in range(3)] + ["again"] * (3 * draws)
    rows = [{"input": text, "output": f"answer {k}", "score": 0.0, "step": 1} for k, text in enumerate(inputs)]
    rollout = read(write_lines(tmp_path / "1.jsonl", rows), group_size)
    assert np.bincount(rollout.integers("group_index")).tolist() == [3] * (11 + draws)


def test_inputs_that_all_have_too_many_lines_are_not_parted(tmp_path: Path) -> None:
    rows = [{"input": f"q{k // 6}", "output": str(k), "score": 0.0, "step": 1} for k in range(24)]
    rollout = read(write_lines(tmp_path / "1.jsonl", rows), 3)
    assert np.bincount(rollout.integers("group_index")).tolist() == [6] * 4


def test_the_trainers_log_probs_and_the_lengths_of_other_lists_are_kept(samples: list[Sample], tmp_path: Path) -> None:
    content = rank_dump(samples, N, samples)
    columns = content["rollout_data"]
    columns["log_probs"] = [[value - 0.01 for value in values] for values in columns["rollout_log_probs"]]
    columns["returns"] = [[0.0] * (len(values) + (row == 3)) for row, values in enumerate(columns["log_probs"])]
    result = check_paths([save_torch(tmp_path / "0_0.pt", content)], Rules(group_size=N))
    found = {finding.check: finding for finding in result.findings}
    assert found["trainer_engine_gap"].evidence["abs"]["mean"] == pytest.approx(0.01, rel=1e-3)
    assert found["token_arrays"].status is Status.FAIL
    assert found["token_arrays"].evidence["failed"] == 1


def test_what_ranks_share_of_a_train_dump_is_left_unknown(samples: list[Sample], tmp_path: Path) -> None:
    content = {**rank_dump(samples, N, samples), "cp_size": 2}
    rollout = read(save_torch(tmp_path / "0_0.pt", content))
    assert not rollout.has("logprobs")
    assert not rollout.has("advantage")
    assert rollout.has("output_ids")


def test_advantages_that_differ_by_token_are_no_advantage_of_the_response(
    samples: list[Sample], tmp_path: Path
) -> None:
    content = rank_dump(samples, N, samples)
    advantages = content["rollout_data"]["advantages"]
    advantages[0][0] += 1
    rollout = read(save_torch(tmp_path / "0_0.pt", content))
    assert rollout.table.column("advantage").null_count == 1


def test_a_train_dump_without_tokens_is_named(samples: list[Sample], tmp_path: Path) -> None:
    content = rank_dump(samples, N, samples)
    del content["rollout_data"]["tokens"]
    with pytest.raises(InputError, match=r"0_0\.pt: .*'tokens'.*NoneType"):
        read(save_torch(tmp_path / "0_0.pt", content))


@pytest.mark.parametrize("content", [{"model": {}}, [1, 2], 3, {"samples": 4}, {"samples": [{"a": 1}]}])
def test_another_pytorch_file_is_not_recognised(content: Any, tmp_path: Path) -> None:
    with pytest.raises(NotRecognised, match=r"0\.pt: "):
        read(save_torch(tmp_path / "0.pt", content))


@pytest.mark.parametrize(
    "content", [b"", b"text", b"\x89PNG\r\n", b'{\n "a": 1\n}', b'{"a": 1}\n', b"PAR1", b"PAR1" * 9, b"\x1f\x8b\x08"]
)
def test_another_file_is_not_recognised(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(InputError, match=rf"{tmp_path / 'file'}: "):
        open_source(tmp_path / "file")


def test_an_unknown_field_of_a_sample_is_named(samples: list[Sample], tmp_path: Path) -> None:
    rows = [one.to_json() for one in samples]
    rows[2]["rewards"] = 1.0
    with pytest.raises(InputError, match=r"run\.samples\.jsonl:3: .*\['rewards'\]"):
        read(write_lines(tmp_path / "run.samples.jsonl", rows))


def test_metrics_of_a_run_and_of_events_are_curves(tmp_path: Path) -> None:
    run = write_lines(tmp_path / "run" / "metrics.jsonl", [{"step": step, "train/loss": 0.5 * step} for step in (0, 1)])
    metrics = [{"train/loss": 0.0}, {"train/grad_norm": 2.0}, {"train/loss": 0.5, "train/note": "text"}]
    steps = [0, 0, 1]
    events = [
        {"timestamp": "t", "source": {}, "type": "metric", "metrics": {**one, "train/step": step}}
        for one, step in zip(metrics, steps, strict=True)
    ]
    other = {"timestamp": "t", "source": {}, "type": "cell_reconfigure", "rollout_id": 0}
    log = write_lines(tmp_path / "trainer.jsonl", [other, *events])
    for path in (run, log):
        source = open_source(path)
        assert source.runs is not None
        (recorded,) = source.runs()
        loss = recorded.curves["train/loss"]
        assert (loss.run, loss.steps.tolist(), loss.values.tolist()) == (str(path), [0, 1], [0.0, 0.5])
