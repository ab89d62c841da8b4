"""How often the evidence is wrong, how much it takes, and what it does not see, by simulation; a table for the docs.

    python benchmarks/error_rates.py [--repetitions 200] [--seconds 120] [--only PREFIX] [--write]

Each repetition of a scenario is a line of the output file, with a seed of its own, so that a run which is cut off goes
on where it stopped, and a longer one keeps what is there. `--write` puts the table into docs/error-rates.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from zlib import crc32

import numpy as np
from scipy import stats

from parity.evidence.sampling.trajectory import DrawnGroup
from parity.evidence.values import RunValues
from parity.findings import Status, Verdict
from parity.metrics import AlignedRuns, Curve, curves_of_run
from parity.records.margins import SAMPLING_MEANS
from parity.stats import (
    Evidence,
    Floats,
    InsideMargin,
    Mean,
    Trajectory,
    compare_runs,
    detect_collapse,
    paired_log_ratio,
    training_findings,
)

N, BLOCK, CAP = 8, 32, 4096
ARMS = ("per-sample", "native")
REWARD, LENGTH = "rollout/raw_reward", "rollout/response_len/mean"
STATUS = {Status.PASS: "PARITY", Status.FAIL: "DIFFERENT"}
PAGE = Path(__file__).parents[1] / "docs" / "error-rates.md"

Outcome = Mapping[str, float | str]
Scenario = Callable[[np.random.Generator], Outcome]
Table = tuple[Floats, Floats]


def draw(rng: np.random.Generator, groups: int, **changed: float) -> tuple[dict[str, Table], np.ndarray]:
    """A block of both arms by metric, (K, 8) each, and codes of responses (K, 16): the experiment's law is changed.

    Rewards of 0 or 1 with prompts that are mostly easy or hard, lengths that depend on them, and likelihoods.
    """
    chances, scale = rng.beta(0.25, 0.22, groups), rng.normal(5.3, 0.55, groups)
    levels = np.exp(rng.normal(np.log(0.35), 0.35, groups))
    arms = []
    for changes in ({}, changed):
        # The mean of chances times their rest is 0.0796, so that this moves the mean reward by what is asked for.
        shift = changes.get("reward", 0) * chances * (1 - chances) / 0.0796
        u, z, y = rng.random((groups, N)), rng.standard_normal((groups, N)), rng.standard_normal((groups, N))
        copied = rng.random(groups) < changes.get("copies", 0)
        for drawn in (u, z, y):
            drawn[copied, N // 2 :] = drawn[copied, : N // 2]
        if "balanced" in changes:
            u[:, N // 2 :], z[:, N // 2 :] = 1 - u[:, : N // 2], -z[:, : N // 2]
        rewards = (u < np.clip(chances + shift, 0, 1)[:, None]).astype(np.float64)
        spread = 0.5 * changes.get("spread", 1)
        lengths = np.exp(scale[:, None] + 0.15 * (1 - rewards) + spread * z - (spread**2 - 0.25) / 2)
        lengths *= 1 + changes.get("length", 0)
        if "tail" in changes:  # above the 99th percentile alone
            lengths = np.where(lengths > 1500, 1500 + changes["tail"] * (lengths - 1500), lengths)
        lengths = np.clip(np.round(lengths), 1, CAP)
        if changes.get("sorted") or changed.get("sorted in both"):
            lengths = np.sort(lengths, axis=1)
        truncated = (rng.random((groups, N)) < 0.014 + changes.get("truncated", 0)).astype(np.float64)
        likelihoods = levels[:, None] * (1 + changes.get("likelihood", 0)) * np.exp(0.12 * y)
        arms.append((rewards, lengths, likelihoods, truncated, (rng.random((groups, N)) < 0.01).astype(np.float64)))
    values: dict[str, Table] = {name: (arms[0][place], arms[1][place]) for place, name in enumerate(SAMPLING_MEANS)}
    first, second = values["reward"]
    constant = [(np.ptp(table, axis=1, keepdims=True) == 0).astype(np.float64) for table in (first, second)]
    values["constant_reward"] = (constant[0], constant[1])
    deviations = [table.std(axis=1, ddof=1, keepdims=True) for table in (first, second)]
    values["group_reward_std"] = (deviations[0], deviations[1])
    codes = np.arange(groups * 2 * N).reshape(groups, 2 * N)
    cloned = rng.random(groups) < changed.get("clones", 0)
    codes[cloned, N + 1] = codes[cloned, N]
    return values, codes


def sample(limit: int, **changed: float) -> Scenario:
    """All hypotheses of `parity sample`, looked at after every 32 groups."""

    def scenario(rng: np.random.Generator) -> Outcome:
        evidence = Evidence.start(SAMPLING_MEANS, max_new_tokens=CAP)
        for groups in range(BLOCK, limit + 1, BLOCK):
            values, codes = draw(rng, BLOCK, **changed)
            evidence = evidence.update_values(values, {"output_ids": codes}, BLOCK, N, rng)
            findings = evidence.findings()
            failing = [finding for finding in findings if finding.fails]
            if failing:
                return {"verdict": "DIFFERENT", "groups": groups, "by": failing[0].check}
            if all(finding.status in (Status.PASS, Status.NOT_COMPARED) for finding in findings):
                return {"verdict": "PARITY", "groups": groups}
        return {"verdict": "INCONCLUSIVE", "groups": limit}

    return scenario


def watched(found: Mean, block: Callable[[], Table], limit: int) -> Outcome:
    """A mean watched block by block until it decides, its difference corrected for 19 hypotheses."""
    for groups in range(BLOCK, limit + 1, BLOCK):
        found = found.update(*block())
        verdict = found.verdict(float(found.difference.log_e) - float(np.log(19)))
        if verdict is not Verdict.INCONCLUSIVE:
            return {"verdict": verdict.value, "groups": groups}
    return {"verdict": "INCONCLUSIVE", "groups": limit}


def mean(metric: str, times: float, limit: int = 4096) -> Scenario:
    """One metric of the same draws, at so many times its margin."""
    margin = SAMPLING_MEANS[metric]
    changes = {"response_length": "length", "negative_log_likelihood": "likelihood"}

    def scenario(rng: np.random.Generator) -> Outcome:
        relative = metric in changes
        bound = {"reward": 1.0, "truncated": 1.0, "response_length": float(CAP)}.get(metric)
        found = Mean(margin, relative, bound)
        change = {changes.get(metric, metric): times * margin}

        def block() -> Table:
            baseline, experiment = draw(rng, BLOCK, **change)[0][metric]
            return baseline.mean(axis=1), experiment.mean(axis=1)

        return watched(found, block, limit)

    return scenario


def hard_prompts(share: float) -> Scenario:
    """Likelihoods of which a share is 60 times as unlikely; these alone differ, by the margin in all."""

    def scenario(rng: np.random.Generator) -> Outcome:
        found = Mean(0.05, True, None)
        total = share * 12.0 + (1 - share) * 0.2
        for groups in range(BLOCK, 2049, BLOCK):
            hard = rng.random(BLOCK) < share
            level, noise = np.where(hard, 12.0, 0.2), rng.lognormal(0, 0.1, (2, BLOCK))
            more = np.where(hard, 1 + 0.05 * total / (share * 12.0), 1.0)
            found = found.update(level * noise[0], level * noise[1] * more)
            if found.is_parity:
                return {"verdict": "PARITY", "groups": groups}
        return {"verdict": "INCONCLUSIVE", "groups": 2048}

    return scenario


def wide_reward(limit: int = 2048) -> Scenario:
    """A reward whose range is 100 times its spread, and which differs by 0.2 of that, twice the margin."""

    def scenario(rng: np.random.Generator) -> Outcome:
        found = Mean(0.1, bound=100.0)
        return watched(found, lambda: (np.zeros(BLOCK), rng.normal(0.2, 1, BLOCK)), limit)

    return scenario


def fixed(groups: int) -> Scenario:
    """All means of `parity sample` together, looked at once: its floor of 256 groups holds for what has no margin."""

    def scenario(rng: np.random.Generator) -> Outcome:
        evidence = Evidence.start(SAMPLING_MEANS, max_new_tokens=CAP, horizon=groups)
        for start in range(0, groups, BLOCK):
            size = min(BLOCK, groups - start)
            values, codes = draw(rng, size)
            evidence = evidence.update_values(values, {"output_ids": codes}, size, N, rng)
        statuses = {finding.status for finding in evidence.findings()} - {Status.NOT_COMPARED}
        return {"verdict": "PARITY" if statuses == {Status.PASS} else "INCONCLUSIVE"}

    return scenario


def fixed_mean(metric: str, groups: int) -> Scenario:
    """One metric whose means differ by the margin, in a design of set size: rare events, or rewards mostly constant."""

    def scenario(rng: np.random.Generator) -> Outcome:
        margin = SAMPLING_MEANS[metric]
        found = Mean(margin, inside=InsideMargin(horizon=groups))
        if metric == "truncated":
            experiment = rng.binomial(N, margin, groups) / N
        else:
            varied = rng.random(groups) < 0.1
            experiment = np.where(varied, rng.normal(10 * margin, 0.25, groups).clip(-1, 1), 0.0)
        found = found.update(np.zeros(groups), experiment)
        return {"verdict": "PARITY" if found.is_parity else "INCONCLUSIVE"}

    return scenario


def mixed(policy: str, steps: int, shift: float, margin: float, speed: float = 1.0, count: int = 256) -> Scenario:
    """A probe or a switchback of 64 groups a step over so many prompts, recorded as groups finish."""

    def scenario(rng: np.random.Generator) -> Outcome:
        chances = rng.beta(0.4, 0.4, count)
        trajectory = Trajectory(policy, ARMS, {REWARD: margin})
        for step in range(steps):
            if step % (count // 64) == 0:
                order = rng.permutation(count)
            prompts = order[step % (count // 64) * 64 :][:64]
            coin = rng.random(64) < 0.5
            groups, seconds = [], []
            for arm in (False, True):
                q = np.clip(chances[prompts] + shift * arm * 4 * chances[prompts] * (1 - chances[prompts]), 0, 1)
                rewards = rng.binomial(N, q) / N
                for index in range(64):
                    if policy == "probe" or coin[index] == arm:
                        value, name = {REWARD: float(rewards[index])}, ARMS[int(arm)]
                        prompt = prompts[index].tobytes()
                        groups.append(DrawnGroup(step, index, policy, name, value, {REWARD: 1.0}, prompt))
                        seconds.append((1 - 0.6 * rewards[index]) * (speed if arm else 1.0))
            trajectory = trajectory.update(groups[place] for place in np.argsort(seconds))
            if trajectory.verdict is not Verdict.INCONCLUSIVE:
                break
        return {"verdict": trajectory.verdict.value, "groups": trajectory.groups}

    return scenario


def runs(count: int, difference: float, ratio: float = 1.0, margin: float = 2.0) -> Scenario:
    """Runs that vary by 1, in the other arm by `ratio`."""

    def scenario(rng: np.random.Generator) -> Outcome:
        names = tuple(map(str, range(count)))
        first = RunValues("m", names, rng.normal(0, 1, count))
        second = RunValues("m", names, rng.normal(difference, ratio, count))
        found = compare_runs(first, second, margin)
        low, high = found.ci95 or (np.nan, np.nan)
        p = found.p_difference or 1.0
        return {"verdict": found.verdict.value, "covered": float(low <= difference <= high), "p below 0.05": p < 0.05}

    return scenario


def bootstrapped(first: Floats, second: Floats, rng: np.random.Generator) -> tuple[float, float]:
    """The 95 % interval of rliable on the difference of interquartile means: the percentile bootstrap of runs.

    The formula of `aggregate_iqm` and `get_interval_estimates` of rliable 1.2.0 (Agarwal et al. 2021), which gives the
    same up to its resampling; the package itself fails with pandas 3.
    """
    means = [stats.trim_mean(arm[rng.integers(0, len(arm), (2000, len(arm)))], 0.25, axis=1) for arm in (first, second)]
    low, high = np.percentile(means[1] - means[0], [2.5, 97.5])
    return float(low), float(high)


def whole_runs(kind: str, count: int, difference: float) -> Scenario:
    """Runs of 200 steps whose means vary by 0.05, with a margin of 0.1, and what happens to some of them."""

    def curve(rng: np.random.Generator, name: str, level: float, place: int) -> Curve:
        values = level + rng.normal(0, 0.03, 200)
        if kind == "collapses" and rng.random() < 0.3:
            values[100:] = 0.02 + rng.normal(0, 0.01, 100)
        rows = [{"step": step, REWARD: float(value)} for step, value in enumerate(values)]
        if kind == "one run cut" and place == 0:
            rows = rows[:120]
        if kind == "resumed":  # 20 steps of an attempt whose weights were not kept
            rows[80:80] = [{"step": step, REWARD: float(level + rng.normal(-0.2, 0.03))} for step in range(80, 100)]
        return curves_of_run(name, iter(rows))[REWARD]

    def scenario(rng: np.random.Generator) -> Outcome:
        arms = []
        for arm, shift in (("b", 0.0), ("e", difference)):
            spread = 0.2 if kind == "unequal spread" and arm == "e" else 0.05
            levels = 0.5 + shift + rng.normal(0, spread, count)
            arms.append([curve(rng, f"{arm}{k}", float(level), k) for k, level in enumerate(levels)])
        baseline, experiment = ([{REWARD: run} for run in arm] for arm in arms)
        (found,) = training_findings(baseline, experiment, {REWARD: 0.1})
        late = [np.array([one.values[len(one.values) // 2 :].mean() for one in arm]) for arm in arms]
        truth = difference * (0.7 if kind == "collapses" else 1.0)
        low, high = found.evidence.get("ci95") or (np.nan, np.nan)
        low_b, high_b = bootstrapped(late[0], late[1], rng)
        return {
            "verdict": STATUS.get(found.status, "INCONCLUSIVE"),
            "covered": float(low <= truth <= high),
            "rliable covered": float(low_b <= truth <= high_b),
        }

    return scenario


def cut_run(count: int, fall: float) -> Scenario:
    """A baseline run cut at step 40 of 200, and a fall of the experiment from step 60 on."""

    def curve(rng: np.random.Generator, name: str, steps: int, amount: float) -> dict[str, Curve]:
        values = 0.6 + rng.normal(0, 0.02) + rng.normal(0, 0.03, 200) - amount * (np.arange(200) >= 60)
        return {REWARD: Curve(name, REWARD, np.arange(steps), values[:steps])}

    def scenario(rng: np.random.Generator) -> Outcome:
        baseline = [curve(rng, f"b{k}", 40 if k == 0 else 200, 0.0) for k in range(count)]
        experiment = [curve(rng, f"e{k}", 200, fall) for k in range(count)]
        (found,) = training_findings(baseline, experiment, {REWARD: 0.1})
        return {"verdict": STATUS.get(found.status, "INCONCLUSIVE")}

    return scenario


def collapse(samples: int, rate: float, after: float | None) -> Scenario:
    """200 steps at one rate, or 100 and then 20 at another."""

    def scenario(rng: np.random.Generator) -> Outcome:
        rates = np.full(200, rate) if after is None else np.repeat([rate, after], [100, 20])
        values = rng.binomial(samples, rates) / samples
        return {
            "collapsed": float(detect_collapse(Curve("r", REWARD, np.arange(len(rates)), values)).onset is not None)
        }

    return scenario


def cost(steps: int, correlation: float) -> Scenario:
    """The log ratio of interleaved steps as a first-order autoregression."""

    def scenario(rng: np.random.Generator) -> Outcome:
        series = np.zeros(steps + 100)
        for step, shock in enumerate(rng.standard_normal(steps + 99), start=1):
            series[step] = correlation * series[step - 1] + shock
        values = np.exp(np.stack([np.zeros(steps), 0.05 * series[100:]]))
        pair = AlignedRuns("t", ("b", "e"), np.arange(steps), values, (0, steps - 1), {}, {}, {}, {})
        low, high = paired_log_ratio([pair]).ci95 or (np.nan, np.nan)
        return {"covered": float(low <= 1 <= high)}

    return scenario


SCENARIOS: dict[str, Scenario] = {
    **{
        f"mean of {metric}, {times:g} x margin": mean(metric, times)
        for metric in ("reward", "truncated", "negative_log_likelihood", "response_length")
        for times in (0.0, 0.5, 1.0, 2.0)
    },
    **{f"likelihood at margin, {share:.0%} hard prompts": hard_prompts(share) for share in (0.2, 0.1, 0.05, 0.02)},
    **{f"fixed, truncated at the margin, {n} groups": fixed_mean("truncated", n) for n in (16, 64, 256, 1024)},
    **{
        f"fixed, reward of 90 % constant groups at the margin, {n} groups": fixed_mean("reward", n)
        for n in (64, 256, 1024)
    },
    "sample, null": sample(4096),
    "sample, slots sorted in both arms": sample(2048, **{"sorted in both": 1}),
    "sample, slots sorted in one arm": sample(2048, sorted=1),
    "sample, tokens cloned in 5 % of groups": sample(2048, clones=0.05),
    "sample, rewards and lengths copied in every group": sample(2048, copies=1),
    "sample, rewards and lengths copied in 20 % of groups": sample(2048, copies=0.2),
    "sample, balanced rewards and lengths": sample(2048, balanced=1),
    "sample, spread of lengths x 1.3": sample(2048, spread=1.3),
    "sample, spread of lengths x 0.7": sample(2048, spread=0.7),
    "sample, lengths above the 99th percentile x 2": sample(4096, tail=2.0),
    **{
        f"switchback, null, one arm x {speed:g} time": mixed("switchback", 8, 0, 0.05, speed) for speed in (1, 0.8, 0.6)
    },
    "reward of a range 100 x its spread, 2 x margin": wide_reward(),
    "switchback, equal, margin 0.05": mixed("switchback", 40, 0.0, 0.05),
    "switchback, equal, margin 0.05, 128 prompts": mixed("switchback", 40, 0.0, 0.05, count=128),
    "switchback, half the margin": mixed("switchback", 40, 0.056, 0.05),
    "switchback, at the margin": mixed("switchback", 40, 0.1125, 0.05),
    "probe, half the margin": mixed("probe", 20, 0.056, 0.05),
    "probe, at the margin": mixed("probe", 20, 0.1125, 0.05),
    "probe, equal, margin 0.05": mixed("probe", 20, 0.0, 0.05),
    "runs, 3 + 3, equal, spread x 10": runs(3, 0.0, 10.0),
    **{f"runs, {n} + {n}, equal": runs(n, 0.0) for n in (3, 5, 8)},
    **{f"runs, {n} + {n}, at the margin": runs(n, 2.0) for n in (3, 5, 8)},
    **{
        f"compare, {n} + {n}, {kind}, {'equal' if shift == 0 else 'at the margin'}": whole_runs(kind, n, shift)
        for kind in ("whole runs", "unequal spread", "one run cut", "resumed", "collapses")
        for n in (3, 5, 8)
        for shift in (0.0, 0.1)
    },
    **{f"compare, {n} + {n}, one run cut, a later fall of 0.2": cut_run(n, 0.2) for n in (3, 5)},
    **{f"collapse, {s} samples a step, rate {p:g}": collapse(s, p, None) for s in (8, 64) for p in (0.05, 0.5, 0.95)},
    **{f"collapse, {s} samples a step, 0.5 falls to 0.05": collapse(s, 0.5, 0.05) for s in (8, 64)},
    **{f"cost, {t} steps, correlation {r:g}": cost(t, r) for t in (40, 100) for r in (0, 0.6, 0.8, 0.9)},
}


def done(path: Path) -> dict[str, list[dict[str, float | str]]]:
    """What is there, by scenario; a line that was cut off is left out."""
    found: dict[str, list[dict[str, float | str]]] = {name: [] for name in SCENARIOS}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if row["scenario"] in found:
            found[row["scenario"]].append(row["outcome"])
    return found


def summary(outcomes: list[dict[str, float | str]]) -> str:
    """Shares with their standard errors, and groups of those that ended."""
    count = len(outcomes)
    parts = []
    shares = {
        name: float(np.mean([outcome["verdict"] == name for outcome in outcomes]))
        for name in ("PARITY", "DIFFERENT", "INCONCLUSIVE")
        if any(outcome.get("verdict") == name for outcome in outcomes)
    }
    for name in ("covered", "rliable covered", "p below 0.05", "collapsed"):
        if name in outcomes[0]:
            shares[name] = float(np.mean([float(outcome[name]) for outcome in outcomes]))
    for name, share in shares.items():
        parts.append(f"{name} {share:.3f} ({np.sqrt(max(share * (1 - share), 1 / (4 * count)) / count):.3f})")
    ended = [
        float(outcome["groups"])
        for outcome in outcomes
        if "groups" in outcome and outcome.get("verdict") in ("PARITY", "DIFFERENT")
    ]
    if ended:
        parts.append(f"{np.mean(ended):,.0f} groups until it ended")
    return ", ".join(parts)


def written(mark: str, table: str) -> None:
    """Puts a table into the docs, between its marks."""
    head, _, rest = PAGE.read_text().partition(f"<!-- {mark} -->\n")
    PAGE.write_text(
        f"{head}<!-- {mark} -->\n{table}\n<!-- end of {mark} -->{rest.partition(f'<!-- end of {mark} -->')[2]}"
    )


def main() -> None:
    """Simulates what is asked for and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200, help="of each scenario in all")
    parser.add_argument("--seconds", type=float, default=120.0, help="processor time after which it stops")
    parser.add_argument("--only", default="", help="scenarios whose name begins so")
    parser.add_argument("--out", type=Path, default=Path("error-rates.jsonl"))
    parser.add_argument("--write", action="store_true", help="put the table into docs/error-rates.md")
    options = parser.parse_args()
    found, begin = done(options.out), time.process_time()
    with options.out.open("a") as lines:
        # One repetition of each in turn, so that a run that is cut off has some of all.
        for repetition in range(options.repetitions):
            for name, scenario in SCENARIOS.items():
                if (
                    len(found[name]) > repetition
                    or not name.startswith(options.only)
                    or time.process_time() - begin > options.seconds
                ):
                    continue
                outcome = dict(scenario(np.random.default_rng([crc32(name.encode()), repetition])))
                found[name].append(outcome)
                lines.write(json.dumps({"scenario": name, "outcome": outcome}) + "\n")
    rows = [f"| {name} | {len(of)} | {summary(of)} |" for name, of in found.items() if of]
    table = "\n".join(["| scenario | repetitions | shares (standard error) |", "|---|---|---|", *rows])
    print(table)
    print(f"{time.process_time() - begin:.0f} s of processor time")
    if options.write:
        written("table", table)


if __name__ == "__main__":
    main()
