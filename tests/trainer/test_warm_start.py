"""The warm start: trained once, found again by its settings."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from parity.errors import UsageError
from parity.trainer import warm_start as module
from parity.trainer.policy import build_policy, load_policy
from parity.trainer.tasks import Arithmetic
from parity.trainer.warm_start import WarmStartSettings, prepare_policy, warm_start

BRIEF = WarmStartSettings(steps=3, careful_steps=2, batch_size=4, threads=1)


def test_it_trains_once_and_is_found_again(tmp_path):
    ticks = []
    path = warm_start(Arithmetic(), tmp_path, lambda *tick: ticks.append(tick), BRIEF)
    assert ticks == [(done, 3, "arithmetic") for done in (1, 2, 3)]
    assert warm_start(Arithmetic(), tmp_path, lambda *tick: ticks.append(tick), BRIEF) == path
    assert len(ticks) == 3
    assert not torch.equal(load_policy(path).lm_head.weight, build_policy(BRIEF.seed).lm_head.weight)


def test_who_waits_for_it_is_told_where_it_is_kept_how_far_it_is_and_what_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WarmStartSettings", lambda: replace(BRIEF, steps=20))
    first, again = [], []
    path = prepare_policy(Arithmetic(), tmp_path, first.append)
    assert prepare_policy(Arithmetic(), tmp_path, again.append) == path
    where = f"policy: warm start on arithmetic, trained once and kept in {tmp_path}"
    assert again == [where]
    assert first[0] == where
    assert [text.split(",")[0] for text in first[1:]] == [f"policy: step {step} of 20" for step in range(2, 21, 2)]
    assert first[-1].endswith(", 0 s left")


@pytest.mark.bits
def test_the_same_settings_give_the_same_bits_and_others_another_place(tmp_path):
    path, same = (warm_start(Arithmetic(), tmp_path / name, settings=BRIEF) for name in ("one", "other"))
    assert path.name == same.name
    assert (path / "model.safetensors").read_bytes() == (same / "model.safetensors").read_bytes()
    others = [
        warm_start(Arithmetic(), tmp_path / "one", settings=replace(BRIEF, seed=1)),
        warm_start(Arithmetic(slip=0.1), tmp_path / "one", settings=BRIEF),
    ]
    assert len({path.name, *(other.name for other in others)}) == 3


def test_two_at_once_train_it_once_and_neither_replaces_what_the_other_reads(tmp_path):
    ticks = []
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(warm_start, Arithmetic(), tmp_path, lambda *tick: ticks.append(tick), BRIEF) for _ in range(2)
        ]
    first, second = (future.result() for future in asked)
    assert first == second
    assert ticks == [(done, 3, "arithmetic") for done in (1, 2, 3)]


def test_a_cache_that_cannot_be_written_is_said_before_any_training(tmp_path):
    (tmp_path / "file").write_text("in the way")
    ticks = []
    with pytest.raises(UsageError, match="file/cache: "):
        warm_start(Arithmetic(), tmp_path / "file" / "cache", lambda *tick: ticks.append(tick), BRIEF)
    assert ticks == []
