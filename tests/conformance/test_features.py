"""The case of images over a weight update: a stale store fails it, and the weights from before come back."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from parity.conformance import check_engine, features
from parity.conformance.checkpoints import ENCODER, LAYERS, with_reversed_rows
from parity.conformance.probe import NotCompared
from parity.findings import Severity, Status
from parity.trainer.policy import build_policy, image_policy_config, policy_config, save_policy


class Wire:
    """A proxy that takes the images out of requests, where it is told to, and keeps what is asked of weights."""

    def __init__(self, blind=False):
        self._blind = blind
        self.updates, self.told = [], []

    def request(self, path, body):
        if path == "/update_weights_from_disk":
            self.updates.append(body["model_path"])
        blind = self._blind and path == "/generate"
        return {name: value for name, value in body.items() if name != "image_data"} if blind else body

    def response(self, path, body, status, answer):
        if path == "/model_info":
            self.told.append((answer["model_path"], answer["weight_version"]))
        return status, answer


def checked(url):
    (finding,) = check_engine(url, cases=features.CASES, control=True)
    return finding


@pytest.mark.timeout(300)
def test_features_that_outlive_new_weights_fail(stale_engine, seeing_engine):
    stale, right = checked(stale_engine), checked(seeing_engine)
    assert (stale.status, stale.severity, right.status) == (Status.FAIL, Severity.ERROR, Status.PASS)
    assert stale.observed == pytest.approx(1, abs=0.1), "the answer of the old weights, as far as from the new ones"


def test_an_answer_that_does_not_depend_on_the_encoder_is_not_compared(through_seeing):
    with through_seeing(Wire(blind=True)) as (url, _):
        finding = checked(url)
    assert finding.status is Status.NOT_COMPARED


def test_it_is_not_compared_without_leave_or_where_no_images_are_taken(seeing_engine, checked_engine):
    (finding,) = check_engine(seeing_engine, cases=features.CASES)
    assert (finding.status, "--control" in finding.message) == (Status.NOT_COMPARED, True)
    finding = checked(checked_engine)
    assert finding.status is Status.NOT_COMPARED


def test_the_weights_and_their_version_are_those_from_before(through_seeing):
    wire = Wire()
    with through_seeing(wire) as (url, _):
        assert checked(url).status is Status.PASS
        check_engine(url, cases=[])
    first, *_, last = wire.told
    assert first == last
    assert [path == first[0] for path in wire.updates] == [False, True]


@pytest.fixture
def checkpoint(tmp_path):
    return save_policy(build_policy(1, image_policy_config()), tmp_path / "policy")


def weights(path):
    return {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_another_encoder_has_its_rows_reversed_and_the_same_text_model(checkpoint, tmp_path):
    whole = weights(checkpoint)
    encoder = {name: tensor.bfloat16() for name, tensor in whole.items() if name.startswith("visual.")}
    text = {name: tensor for name, tensor in whole.items() if name not in encoder}
    (checkpoint / "model.safetensors").unlink()
    save_file(encoder, checkpoint / "model-1.safetensors")
    save_file(text, checkpoint / "model-2.safetensors")
    with_reversed_rows(checkpoint, tmp_path / "other", ENCODER)
    made = weights(tmp_path / "other")
    for name, tensor in (encoder | text).items():
        turned = name in encoder and tensor.dim() > 1
        assert torch.equal(made[name], tensor.flip(0) if turned else tensor), name
    assert any(not torch.equal(made[name], encoder[name]) for name in encoder)
    assert (tmp_path / "other" / "model-2.safetensors").is_symlink()
    served = weights(checkpoint)
    assert all(torch.equal(served[name], tensor) for name, tensor in (encoder | text).items()), "as it was"


def test_a_checkpoint_without_an_encoder_makes_no_other(tmp_path):
    text = save_policy(build_policy(1, policy_config()), tmp_path / "text")
    with pytest.raises(NotCompared, match=re.escape(str(text))):
        with_reversed_rows(text, tmp_path / "other", ENCODER)
    (text / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + json.dumps({}).encode())
    with pytest.raises(NotCompared, match=re.escape(str(text))):
        with_reversed_rows(text, tmp_path / "another", ENCODER)


def test_layers_of_the_language_model_alone_are_changed_in_as_many_files_as_allowed(checkpoint, tmp_path):
    whole = weights(checkpoint)
    (checkpoint / "model.safetensors").unlink()
    halves = [dict(list(whole.items())[part::2]) for part in range(2)]
    for number, half in enumerate(halves):
        save_file(half, checkpoint / f"model-{number}.safetensors")
    with_reversed_rows(checkpoint, tmp_path / "other", LAYERS, most_files=1)
    made = weights(tmp_path / "other")
    changed = {name for name in whole if not torch.equal(made[name], whole[name])}
    assert changed
    assert all(name.startswith("model.layers.") and whole[name].dim() > 1 for name in changed)
    assert changed <= halves[0].keys()
    assert (tmp_path / "other" / "model-1.safetensors").is_symlink()
