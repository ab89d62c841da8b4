"""The trainer: the same bits for the same input, resumable, and no gradient from what is not to be trained on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from parity.errors import InputError, TrainingError, UsageError
from parity.records.samples import Rollout, Sample
from parity.records.training_config import TrainingConfig
from parity.trainer.policy import build_policy, policy_config, save_policy
from parity.trainer.trainer import Trainer, make_batch

CONFIG = TrainingConfig(learning_rate=1e-2, threads=1)
SMALL = policy_config(hidden_size=32, intermediate_size=32, num_hidden_layers=1)
UNCLIPPED = 0
"""The one of `some_samples()` with a positive advantage."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_policy(build_policy(0, SMALL), tmp_path_factory.mktemp("trainer") / "checkpoint")


def some_samples(seed=0, count=4):
    """Samples of unequal lengths with log-probs that this policy would not give."""
    random = np.random.default_rng(seed)
    samples = []
    for index in range(count):
        prompt, output = (random.integers(2, 258, size=random.integers(1, 6)).tolist() for _ in range(2))
        sample = Sample(0, index, rollout_id=0, prompt_ids=prompt, output_ids=output, status="completed")
        sample.logprobs = (-random.random(len(output))).tolist()
        sample.loss_mask, sample.advantage = [1] * len(output), float(random.normal())
        samples.append(sample)
    return samples


def train(checkpoint, *steps, config=CONFIG, **kwargs):
    trainer = Trainer(checkpoint, config, **kwargs)
    metrics = [trainer.train(Rollout.from_samples(samples)) for samples in steps]
    return metrics, [parameter.detach().clone() for parameter in trainer.model.parameters()]


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.bits
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "change",
    [
        lambda sample: sample.logprobs.__setitem__(0, sample.logprobs[0] - 1e-3),
        lambda sample: sample.output_ids.__setitem__(0, 2 if sample.output_ids[0] != 2 else 3),
        lambda sample: sample.prompt_ids.__setitem__(0, 2 if sample.prompt_ids[0] != 2 else 3),
        lambda sample: sample.loss_mask.__setitem__(0, 0),
        lambda sample: setattr(sample, "advantage", sample.advantage * 1.001),
    ],
    ids=["logprobs", "output_ids", "prompt_ids", "loss_mask", "advantage"],
)
def test_identical_rollouts_give_identical_bits_and_another_one_does_not(checkpoint, change, threads):
    """A change far above rounding, in a sample that the loss does not clip: its gradient moves on any kernel."""
    config = replace(CONFIG, threads=threads)
    metrics, weights = train(checkpoint, some_samples(), config=config)
    again, same = train(checkpoint, some_samples(), config=config)
    assert metrics == again
    assert equal(weights, same)
    samples = some_samples()
    assert samples[UNCLIPPED].advantage > 0
    change(samples[UNCLIPPED])
    metrics_of_other, other = train(checkpoint, samples, config=config)
    assert metrics != metrics_of_other
    assert not equal(weights, other)


@pytest.mark.bits
@pytest.mark.parametrize("threads", [1, 2])
def test_a_log_prob_of_a_clipped_token_shows_in_a_metric_and_moves_no_weight(checkpoint, threads):
    """This policy gives far less than the log-probs say, so the ratios of negative advantages are below the clip."""
    config = replace(CONFIG, threads=threads)
    metrics, weights = train(checkpoint, some_samples(), config=config)
    samples = some_samples()
    clipped = [sample for sample in samples if sample.advantage < 0]
    for sample in clipped:
        sample.logprobs[0] -= 1e-2
    of_other, same = train(checkpoint, samples, config=config)
    assert len(clipped) == 3
    assert equal(weights, same)
    differing = {name for name in metrics[0] if metrics[0][name] != of_other[0][name]}
    assert differing == {"train/ppo_kl", "train/train_rollout_logprob_abs_diff"}


def test_one_unit_in_the_last_place_of_a_log_prob_reaches_the_batch():
    samples = some_samples()
    before = make_batch(Rollout.from_samples(samples), 0).rollout_log_probs
    samples[1].logprobs[0] = float(np.nextafter(np.float32(samples[1].logprobs[0]), np.float32(0)))
    after = make_batch(Rollout.from_samples(samples), 0).rollout_log_probs
    assert torch.nonzero(before != after).flatten().tolist() == [len(samples[0].output_ids)]


@pytest.mark.bits
def test_a_resumed_run_equals_one_without_a_break_bit_for_bit(checkpoint, tmp_path):
    steps = [some_samples(seed) for seed in range(4)]
    metrics, weights = train(checkpoint, *steps)
    first = Trainer(checkpoint, CONFIG)
    before = [first.train(Rollout.from_samples(samples)) for samples in steps[:2]]
    first.save(tmp_path / "saved")
    second = Trainer(tmp_path / "saved", CONFIG)
    assert second.step == 2
    after = [second.train(Rollout.from_samples(samples)) for samples in steps[2:]]
    assert before + after == metrics
    assert equal(weights, second.model.parameters())


@pytest.mark.bits
def test_a_fresh_optimizer_would_have_shown_in_the_resumed_run(checkpoint, tmp_path):
    steps = [some_samples(seed) for seed in range(3)]
    trainer = Trainer(checkpoint, CONFIG)
    trainer.train(Rollout.from_samples(steps[0]))
    trainer.save(tmp_path / "saved")
    (tmp_path / "saved" / "trainer.json").unlink()
    forgetful = Trainer(tmp_path / "saved", CONFIG)
    for samples in steps[1:]:
        forgetful.train(Rollout.from_samples(samples))
    assert not equal(forgetful.model.parameters(), train(checkpoint, *steps)[1])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("trainer.json", b"{"),
        ("trainer.json", b"[]"),
        ("trainer.json", b"{}"),
        ("optimizer.pt", b""),
        ("optimizer.pt", b"garbage"),
        ("optimizer.pt", b"PK\x03\x04 half an archive"),
    ],
)
def test_a_broken_checkpoint_is_an_input_error_that_names_it(checkpoint, tmp_path, name, content):
    Trainer(checkpoint, CONFIG).save(tmp_path / "saved")
    (tmp_path / "saved" / name).write_bytes(content)
    with pytest.raises(InputError, match="saved: "):
        Trainer(tmp_path / "saved", CONFIG)


def test_the_loss_is_the_hand_written_formula_on_one_sample_at_a_time(checkpoint):
    samples = some_samples()
    trainer = Trainer(checkpoint, replace(CONFIG, updates_per_step=1))
    expected = 0.0
    for sample in samples:  # unpadded: one forward pass a sample
        logits = trainer.model(torch.tensor([sample.prompt_ids + sample.output_ids])).logits[0].detach()
        log_probs = torch.log_softmax(logits[len(sample.prompt_ids) - 1 : -1].double(), dim=-1)
        ratios = [
            float(torch.exp(log_probs[at, token] - sample.logprobs[at])) for at, token in enumerate(sample.output_ids)
        ]
        terms = [min(r * sample.advantage, min(max(r, 0.8), 1.28) * sample.advantage) for r in ratios]
        expected -= sum(terms) / len(terms) / len(samples)
    metrics = trainer.train(Rollout.from_samples(samples))
    assert metrics["train/loss"] == metrics["train/pg_loss"] == pytest.approx(expected, rel=1e-5)


def test_the_gradient_norm_is_that_of_finite_differences_along_the_gradient(checkpoint):
    samples = Rollout.from_samples(some_samples())
    config = replace(CONFIG, updates_per_step=1, max_grad_norm=1e9)
    trainer = Trainer(checkpoint, config)
    start = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    norm = trainer.train(samples)["train/grad_norm"]
    gradients = [parameter.grad for parameter in trainer.model.parameters()]
    losses = []
    for sign in (1, -1):
        moved = Trainer(checkpoint, config)
        with torch.no_grad():
            for parameter, value, gradient in zip(moved.model.parameters(), start, gradients, strict=True):
                parameter.copy_(value + sign * 1e-3 * gradient / norm)
        losses.append(moved.train(samples)["train/loss"])
    assert (losses[0] - losses[1]) / 2e-3 == pytest.approx(norm, rel=2e-2)


@pytest.mark.parametrize("change", [{"status": "aborted"}, {"output_ids": [], "logprobs": [], "loss_mask": []}, {}])
def test_aborted_and_empty_samples_give_no_gradient(checkpoint, change):
    samples = [replace(sample, advantage=0.0) for sample in some_samples()]
    samples[2] = replace(samples[2], advantage=3.0, **change)
    norm = train(checkpoint, samples)[0][0]["train/grad_norm"]
    assert (norm == 0) == bool(change)


def test_masked_tokens_give_no_gradient(checkpoint):
    samples = some_samples()
    masked = [replace(sample, loss_mask=[0] * len(sample.output_ids)) for sample in samples]
    assert train(checkpoint, masked)[0][0]["train/grad_norm"] == 0


def test_a_rollout_without_a_token_to_train_on_is_an_error(checkpoint):
    with pytest.raises(TrainingError, match=r"step 0: .* 4 samples"):
        train(checkpoint, [replace(sample, status="aborted") for sample in some_samples()])


@pytest.mark.parametrize("name", ["advantage", "logprobs"])
def test_a_nan_is_an_error_that_names_step_place_and_field(checkpoint, name):
    samples = some_samples()
    bad = float("nan") if name == "advantage" else [float("nan")] * len(samples[1].output_ids)
    samples[1] = replace(samples[1], **{name: bad})
    with pytest.raises(TrainingError, match=f"step 0, group 0, slot 1: {name} .*nan"):
        train(checkpoint, samples)


def test_a_loss_that_is_not_finite_is_an_error_that_names_step_and_metric_and_changes_nothing(checkpoint):
    trainer = Trainer(checkpoint, CONFIG)
    trainer.train(Rollout.from_samples(some_samples()))
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    far_off = [replace(sample, logprobs=[-200.0] * len(sample.output_ids)) for sample in some_samples()]
    with pytest.raises(TrainingError, match=r"step 1: train/loss .*(inf|nan)"):
        trainer.train(Rollout.from_samples(far_off))
    assert equal(before, trainer.model.parameters())


def test_lengths_that_disagree_are_an_error_with_place_and_numbers(checkpoint):
    samples = some_samples()
    samples[3].logprobs.append(-1.0)
    length = len(samples[3].output_ids)
    message = f"step 0, group 0, slot 3: logprobs .*{length + 1} .* {length} "
    with pytest.raises(InputError, match=message):
        train(checkpoint, samples)


def test_the_kl_to_a_reference_is_zero_at_it_and_then_part_of_the_loss(checkpoint):
    config = replace(CONFIG, kl_coefficient=0.5, updates_per_step=1)
    metrics, _ = train(checkpoint, some_samples(), some_samples(), config=config, reference=checkpoint)
    assert metrics[0]["train/kl_loss"] == 0
    assert metrics[1]["train/kl_loss"] > 0
    expected = metrics[1]["train/pg_loss"] + 0.5 * metrics[1]["train/kl_loss"]
    assert metrics[1]["train/loss"] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(UsageError, match="reference"):
        Trainer(checkpoint, config)


def test_at_the_weights_that_sampled_the_log_prob_difference_is_rounding_alone(checkpoint):
    samples = some_samples()
    model = Trainer(checkpoint, CONFIG).model
    for sample in samples:
        logits = model(torch.tensor([sample.prompt_ids + sample.output_ids])).logits[0, len(sample.prompt_ids) - 1 : -1]
        log_probs = torch.log_softmax(logits.double(), dim=-1)
        sample.logprobs = [log_probs[at, token].item() for at, token in enumerate(sample.output_ids)]
    metrics = train(checkpoint, samples, config=replace(CONFIG, updates_per_step=1))[0][0]
    assert metrics["train/train_rollout_logprob_abs_diff"] < 1e-5
    assert metrics["train/pg_clipfrac"] == 0
    mean_advantage = sum(sample.advantage for sample in samples) / len(samples)
    assert metrics["train/pg_loss"] == pytest.approx(-mean_advantage, rel=1e-4)


@pytest.mark.parametrize("setting", [{"group_size": 1}, {"learning_rate": 0.0}, {"kl_coefficient": -1.0}])
def test_settings_out_of_range_are_refused_by_name(setting):
    with pytest.raises(UsageError, match=next(iter(setting))):
        TrainingConfig(**setting)
