"""Every command line that the documentation shows is run: here where it is cheap, else by the test that is named."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from documentation import ROOT, documented
from documented_files import write_files
from toy_engine import toy_engine

from parity.cli import main

SHELL_ENDS = ("|", "||", "&", "&&", ";", ">")
CHECK, COMPARE = "parity check", "parity compare --baseline logs/stock-*.log --experiment logs/native-*.log"
SAMPLE = "parity sample --engine {} --prompts train.jsonl --max-new-tokens 1024 --reward my_task.py:reward"
LOCALHOST, LOOPBACK = "http://localhost:30000", "http://127.0.0.1:30000"

RUN = {
    # the recorded rollouts are sound
    f"{CHECK} rollout_data/*.pt recordings/ --group-size 8": 0,
    f"{CHECK} rollout_data/*.pt recordings/ --group-size 8 --temperature 1": 0,
    f"{CHECK} recordings/": 0,
    f"{CHECK} recordings/ --group-size 8": 0,
    f"{CHECK} rollout_data --group-size 8 --advantage grpo": 0,
    f"{CHECK} rollout_data --group-size 8 --junit parity.xml": 0,
    f"{CHECK} rollout_data --group-size 8 --require output_count slot_index --html samples.html": 0,
    f"{CHECK} before/ after/ --html side-by-side.html": 0,
    f"{CHECK} /path/to/record --group-size 8": 0,
    f"{CHECK} /path/to/dumps --group-size 8": 0,
    f"{CHECK} /shared/recording --group-size 8": 0,
    f"{CHECK} /path/to/dump-details --group-size 8": 0,
    f"{CHECK} /path/to/results/train --group-size 8": 0,
    f"{CHECK} DIR": 0,
    f"{CHECK} parity-out/mine": 0,
    f"{CHECK} parity-out/20260101-120000": 0,
    f"{CHECK} dumps/rollout_data --group-size 8 --temperature 1": 0,
    f"{CHECK} run.samples.jsonl.gz run.exchanges.jsonl.gz --max-new-tokens 4096 --stop-token-ids 151645": 0,
    f"{CHECK} relax-results/train --group-size 8 --reward my_task.py:reward --junit parity.xml": 0,
    # the toy engine lacks parts of the protocol
    f"{CHECK} {LOCALHOST}": 1,
    f"{CHECK} {LOOPBACK}": 1,
    f"{CHECK} URL": 1,
    f"{CHECK} URL --control": 1,
    f"{CHECK} http://router": 1,
    # three runs an arm, and few groups, show little
    COMPARE: 3,
    f"{COMPARE} --clearml": 3,
    f"{COMPARE} --margin reward=0.03": 3,
    f"{COMPARE} --margin reward=0.03 --margin response_length=0.05": 3,
    f"{COMPARE} --out parity-out/curves": 3,
    f"{COMPARE} || [ $? -eq 3 ]": 3,
    "parity compare --baseline stock.log --experiment native.log --ended native.log=oom": 3,
    "parity compare --baseline stock.log --experiment native.log --history old/*.log --ended native.log=oom": 3,
    "parity compare --baseline tb/base1 tb/base2 --experiment tb/native1 tb/native2 "
    "--margin reward=0.03 --margin response_length=0.05": 3,
    "parity compare --baseline parity-out/mine --experiment parity-out/mine --json": 3,
    SAMPLE.format(LOCALHOST): 3,
    f"{SAMPLE.format(LOOPBACK)} --margin reward=0.02": 3,
    "parity sample --baseline-engine http://a:30000 --experiment-engine http://b:30000 --prompts train.jsonl "
    "--max-new-tokens 1024 --reward my_task.py:reward": 3,
    "parity watch recordings/": 3,
    "parity watch recordings/ --baseline native": 3,
    "parity watch recordings/ --reward-range -1 1 --max-new-tokens 8192": 3,
    "parity watch recordings/ --margin reward=0.02 --once": 3,
    'parity watch recordings/ --quiet || kill "$TRAINER"': 3,
    "parity watch /path/to/record": 3,
    # the recorded experiment has rewards that are not its task's
    "parity report DIR --lang zh": 1,
    "parity report parity-out/mine --clearml --tensorboard tensorboard_log --wandb": 1,
    "parity report parity-out/twin --json": 1,
    "parity report parity-out/20260101-120000": 1,
    "parity report parity-out/20260101-120000 --lang zh": 1,
    "parity report parity-out/20260101-120000 --clearml --tensorboard tensorboard_log": 1,
    "parity report --diff A B": 0,
    "parity report --diff parity-out/yesterday parity-out/today": 0,
    "parity plan --margin reward=0.02": 0,
    "parity plan --margin reward=0.02 --sigma reward=0.185": 0,
    "parity plan --margin reward=0.02 --sigma reward=0.185 --sigma-run reward=0.035": 0,
    "parity plan --margin reward=0.02 --history parity-out/mine": 0,
    "parity plan --margin reward=0.04 --reward-range -1 1": 0,
    "parity plan --margin reward=0.02 --margin response_length=0.02 --history parity-out/mine": 0,
    "parity plan --margin reward=0.02 --history dumps/*.pt --seconds-per-step 180 --gpus 16 --groups-per-step 64": 0,
}
"""Lines that are run here, and their exit codes on the files of `documented_files`."""

REPLACED = {"151645": "2", "<time>": "mine"}
ADDED = {"parity sample": ("--max-groups", "16", "--quiet"), "parity watch": ("--once",)}
"""What makes a line small: numbers in it, and options added to it."""

TRAINING = "trains for minutes"
NATIVE = "parity run --baseline --experiment native"
ELSEWHERE = {
    ("changes the shell", "tests/cli/test_completion.py::test_a_real_bash_completes"): (
        "source <(parity completion bash)",
    ),
    ("needs zsh", "tests/cli/test_completion.py::test_a_real_zsh_completes"): ("source <(parity completion zsh)",),
    ("needs fish", "tests/cli/test_completion.py::test_a_real_fish_completes"): ("parity completion fish | source",),
    (TRAINING, "tests/runner/test_run.py::test_a_twin_of_a_sound_patch_is_equal_bit_for_bit"): (
        f"{NATIVE} --design twin",
        f"{NATIVE} --margin reward=0.03 --margin response_length=0.05",
        f"{NATIVE} --design twin --out parity-out/twin",
    ),
    (TRAINING, "tests/runner/test_run.py::test_free_pairs_and_a_replay_of_them"): (
        NATIVE,
        f"{NATIVE} --out mine",
        "parity run --baseline batched --experiment native --seeds 5 --steps 60",
        "parity run --experiment <arm>",
    ),
    (TRAINING, "tests/runner/test_mixed.py::test_a_probe_asks_every_prompt_in_both_arms_and_trains_on_one"): (
        f"{NATIVE} --design probe --seeds 1",
    ),
    ("needs a mixed run", "tests/runner/test_mixed.py::test_watching_it_afterwards_says_the_same"): (
        "parity watch DIR",
        "parity watch parity-out/20260101-120000",
    ),
    (TRAINING, "tests/runner/test_arms.py::test_three_arms_on_two_engines_are_twins"): (
        "parity run --arms arms.toml",
        "parity run --arms docs/examples/chunks.toml --design twin",
        "parity run --arms docs/examples/workers.toml --design twin",
    ),
    (TRAINING, "tests/runner/test_arms.py::test_engines_that_part_are_no_twins_and_what_parts_them_is_named"): (
        "parity run --baseline-engine embedded --experiment-engine sglang",
        "parity run --baseline-engine embedded --experiment-engine sglang --design probe",
    ),
    (
        "starts engines",
        "tests/commands/sample/test_live.py::test_three_arms_are_each_compared_with_the_baseline",
    ): (
        "parity sample --arms arms.toml",
        "parity sample --arms docs/examples/radix.toml",
        "parity sample --arms docs/examples/int8.toml",
        "parity sample --arms docs/examples/cooler.toml",
        "parity sample --baseline-engine embedded --experiment-engine sglang",
        "parity sample --baseline-engine http://127.0.0.1:30000 --experiment-engine http://127.0.0.1:30001",
    ),
    (
        "starts engines",
        "tests/commands/bench/test_command.py::test_arms_are_measured_by_name",
    ): ("parity bench --arms arms.toml",),
    (
        "simulates for minutes",
        "tests/evidence/test_over_arms.py::test_watched_arms_rarely_have_a_wrong_statement_among_them",
    ): ("python benchmarks/several_arms.py",),
    (TRAINING, "tests/runner/test_recovery.py::test_killed_runners_resume_to_the_same_curves"): (
        "parity run --out parity-out/<time> --resume",
        "parity run --out parity-out/mine --resume",
    ),
    (TRAINING, "tests/runner/test_recovery.py::test_a_worker_and_the_router_may_die_on_the_way"): (
        f"{NATIVE} --workers 3 --router cache_aware",
        "parity sample --workers 2 --router round_robin",
    ),
    (TRAINING, "tests/report/trackers/test_clearml.py::test_a_server_that_is_not_there_leaves_zips"): (
        f"{NATIVE} --clearml",
    ),
    (
        f"{TRAINING}; each fault is planted by the self-test too",
        "tests/runner/test_run.py::test_outputs_exchanged_after_scoring_are_found_at_their_step_group_and_slot",
    ): tuple(
        f"{NATIVE} --plant {fault}@7"
        for fault in (
            "copied-siblings",
            "exchanged-outputs",
            "exchanged-rewards",
            "logprobs-missing-in-arm",
            "shifted-logprobs",
            "truncated-zeroes-all",
        )
    ),
    (
        TRAINING,
        "tests/trainer/test_images.py::test_identical_rollouts_give_identical_bits_and_another_image_does_not",
    ): (
        f"{NATIVE} --task digits",
        f"{NATIVE} --task digits --plant media-of-other-group@7",
    ),
    (
        "needs the real engine",
        "tests/engines/vllm/test_vllm.py::test_a_twin_is_equal_bit_for_bit_and_shows_where_a_fault_was_planted",
    ): (f"{NATIVE} --engine vllm",),
    ("needs the real engine", "tests/engines/sglang/test_run.py::test_paired_training_on_the_real_engine"): (
        f"{NATIVE} --engine sglang --steps 30",
        "parity sample --engine sglang --fixed 256",
        "parity sample --baseline-engine embedded --experiment-engine sglang --fixed 64",
        "parity sample --engine sglang --workers 2 --router round_robin",
    ),
    (
        "samples for minutes",
        "tests/commands/sample/test_live.py::test_the_embedded_engine_is_at_parity_and_the_report_says_so",
    ): (
        "parity sample --baseline --experiment native",
        "parity sample --baseline --experiment native --fixed 256",
    ),
    (
        "goes on with what was sampled",
        "tests/commands/sample/test_sampling.py::test_a_sampling_that_was_cut_off_goes_on_as_if_nothing_had_happened",
    ): ("parity sample --out parity-out/sample-1 --resume --max-groups 8192",),
    (
        "needs a server",
        "tests/sources/curves/test_files.py::test_a_task_and_a_run_of_servers_are_asked_for_every_value",
    ): ("parity compare --baseline wandb:me/grpo/a1b2 --experiment offline-session.zip --names names.toml",),
    (
        "does not end",
        "tests/engines/embedded/test_control.py::test_the_command_serves_says_its_port_and_ends_on_sigterm",
    ): (
        "parity serve",
        "parity serve --model-path my-qwen2 --port 30001",
    ),
    ("starts jobs", "tests/launch/test_command.py::test_both_arms_and_every_seed_are_run_and_judged"): (
        "parity launch experiment.toml",
        "parity launch experiment.toml --out parity-out/mine",
        "parity launch experiment.toml --out parity-out/mine --status",
    ),
    ("prints a file", "tests/launch/test_templates.py::test_a_template_is_a_launch_file"): (
        "parity launch --init slime > experiment.toml",
    ),
    ("needs a launch file", "tests/launch/test_command.py::test_a_dry_run_prints_every_command_and_starts_nothing"): (
        "parity launch experiment.toml --dry-run",
    ),
    (
        "ends jobs",
        "tests/launch/test_driver.py::test_stopping_ends_the_jobs_and_what_is_stopped_is_not_started_again",
    ): ("parity launch experiment.toml --out parity-out/mine --stop",),
    ("does not end", "tests/engines/test_chaos.py::"): (
        "parity serve --chaos 0.2,seed=7,hold=5",
        "parity serve --chaos 0.2,seed=7",
    ),
    ("does not end", "tests/engines/embedded/test_faults.py::"): ("parity serve --fault int8-weights",),
    ("does not end", "tests/engines/test_vllm.py::"): ("parity serve --dialect vllm",),
    ("needs a deployment", "tests/conformance/test_vllm.py::"): ("parity check http://127.0.0.1:8000",),
    ("needs a deployment", "tests/commands/bench/test_vllm.py::"): (
        "parity bench http://127.0.0.1:8000 --control --mode per-sample --mode native --groups 8 --prompt-tokens 16 "
        "--new-tokens 32 --repeats 2",
    ),
    ("takes no --max-groups", "tests/commands/sample/test_dumped.py::"): (
        "parity sample --from before/ --from after/",
    ),
    ("needs an engine whose seeds hold", "tests/conformance/test_determinism.py::"): (
        f"{CHECK} {LOOPBACK} --determinism --control",
    ),
    ("starts engines for minutes", "tests/engines/embedded/test_faults.py::"): ("python benchmarks/engine_faults.py",),
    ("simulates for minutes", "tests/evidence/sampling/test_segments.py::"): ("python benchmarks/segments.py",),
    ("simulates for minutes", "tests/evidence/test_planning.py::"): (
        "python benchmarks/plan_against_observed.py --repetitions 24 --write",
    ),
    ("are tests", ".ci/run"): ("pytest tests/hosts/test_trl.py", "pytest tests/hosts/test_trl_vllm.py"),
    ("trains for minutes", "tests/hosts/test_trl.py::test_what_the_page_shows_trains"): (
        "python docs/examples/trl/groups.py --output_dir out --arm native --steps 100",
    ),
    ("trains for minutes", "tests/launch/test_trl.py::"): ("parity launch docs/examples/trl/groups.toml",),
    ("draws more points", "tests/runner/test_crashes.py::"): ("make crashes",),
    ("simulates for minutes", "tests/evidence/sampling/test_margin.py::"): (
        "python benchmarks/error_rates.py --repetitions 60 --seconds 100000 --write",
    ),
    ("is refused where an option is a file", "tests/cli/test_ending.py::"): ("parity check *",),
    ("takes a minute", "tests/commands/test_selftest.py::test_the_command_prints_a_line_for_each_and_exits_0"): (
        "parity selftest",
    ),
    ("takes a minute", "tests/commands/test_selftest.py::test_quiet_prints_the_verdict_and_what_went_wrong_alone"): (
        "parity selftest --quiet",
    ),
    ("takes a minute", "tests/commands/test_selftest.py::test_json_holds_every_trial_in_the_envelope"): (
        "parity selftest --json > selftest.json",
    ),
    (
        "measures for minutes",
        "tests/commands/bench/test_command.py::test_a_url_is_measured_and_everything_is_written",
    ): (
        f"parity bench {LOOPBACK}",
        f"parity bench {LOOPBACK} --mode per-sample --mode native --mode chunk=4 --repeats 10",
        f"parity bench {LOOPBACK} --mode per-sample native chunk=4 --repeats 10",
        "parity bench http://router:30000 --preset text-256x4x256 --counts http://router:29000/metrics",
    ),
    (
        "measures for minutes",
        "tests/commands/bench/test_command.py::test_a_benchmark_is_compared_with_an_earlier_one",
    ): (f"parity bench {LOOPBACK} --compare parity-out/bench-before/bench.json",),
    ("needs logs of a router", "tests/commands/bench/test_command.py::test_logs_and_counters_alone_are_counted"): (
        "parity bench --counts worker-0.log worker-1.log worker-2.log",
    ),
    (
        "measures for minutes",
        "tests/commands/bench/test_command.py::test_engines_behind_real_routers_are_started_once_measured_and_counted",
    ): (
        "parity bench --engine embedded --workers 3 --router cache_aware --router round_robin --shared-prefix part",
        "parity bench --engine embedded --workers 3 --router cache_aware round_robin --shared-prefix part",
    ),
    ("is pytest itself", "tests/conformance/test_pytest_plugin.py::test_a_second_recording_replaces_the_first_whole"): (
        "pytest --parity-baseline tests/parity",
        "pytest --parity-baseline tests/parity --parity-record",
    ),
    (
        "is pytest itself",
        "tests/conformance/test_pytest_plugin.py::test_each_case_is_a_test_and_what_may_not_be_touched_is_skipped",
    ): (
        "pytest --parity-url",
        f"pytest --parity-url {LOOPBACK}",
        f'pytest --parity-url {LOOPBACK} -k "parity and native"',
        f'pytest --parity-url {LOOPBACK} -m "not parity_case"',
    ),
    ("is pytest itself", "tests/docs/test_docs.py::test_the_example_for_hosts_passes_what_the_engine_sent"): (
        "ROLLOUT_DUMPS=rollout_data pytest test_rollout_contract.py",
    ),
    ("needs a checkout", "tests/cli/test_host.py::test_flags_say_which_way_groups_go"): (
        "parity host check slime --args '--n-samples-per-prompt 8 …'",
        "parity host check slime --args '--custom-config-path file.yaml …'",
    ),
    ("needs a checkout", "tools/hosts/revision_table.py::main"): (
        "python tools/hosts/revision_table.py slime=/path/to/slime miles=/path/to/miles relax=/path/to/Relax",
    ),
    ("needs a checkout", "tools/hosts/launch_scripts.py::main"): (
        "python tools/hosts/launch_scripts.py slime=/path/to/slime --list",
    ),
    ("needs a checkout", "tests/launch/test_templates.py::"): (
        "SLIME_CHECKOUT=/path/to/slime python -m pytest tests/launch/test_templates.py",
    ),
    ("starts clusters of Ray", "tests/launch/test_ray.py::"): ("python -m pytest tests/launch/test_ray.py",),
    ("reads for long", "tests/commands/test_file_by_file.py::"): (
        "parity check /shared/run/rollout_data --group-size 8 --processes 16",
        "parity check /shared/run/rollout_data --group-size 8 --ray auto",
    ),
    ("measures for minutes", "benchmarks/check_files.py"): ("python benchmarks/check_files.py --files 8 16 32",),
    ("needs a checkout", "tests/hosts/test_relax_code.py::"): (
        "RELAX_CHECKOUT=/path/to/Relax python -m pytest tests/hosts/test_relax_code.py",
        "SGLANG_NATIVE_GROUP_SAMPLING=1 python -m rollout_patch.hosts.relax",
        "python -m pytest tests/rollout_patch/hosts/test_relax.py",
        "python -m rollout_patch.hosts.relax",
    ),
    ("needs a checkout", "tests/hosts/test_slime.py::"): (
        "SLIME_CHECKOUT=/path/to/slime python -m pytest tests/hosts/test_slime*.py",
    ),
    ("needs SGLang", "tests/engines/sglang/test_features_with_n.py::"): (
        "python -m pytest tests/engines/sglang/test_features_with_n.py",
    ),
    ("needs a checkout", "tests/hosts/test_miles.py::"): (
        "MILES_CHECKOUT=/path/to/miles python -m pytest tests/hosts/test_miles.py",
    ),
    ("its import is tested", "tests/report/trackers/test_clearml.py::"): (
        "clearml-task --import-offline-session parity-out/mine/report/clearml/00-mine_native-seed1.zip",
    ),
    ("uploads", "tests/report/trackers/test_files.py::test_wandb_reads_back"): ("wandb sync DIRECTORY",),
    (
        "what it writes is compared with the code",
        "tests/docs/test_docs.py::test_the_reference_has_every_check_and_its_faults",
    ): ("python tools/reference.py",),
    ("installs", ".ci/run"): (
        *("make sglang", "make vllm", "make check", "make test", "make test-engines", "make bits"),
        "apt-get install chromium",
    ),
    (
        "what it writes is held to the code",
        "tests/report/test_words.py::test_what_reports_read_is_what_translators_write",
    ): ("make messages",),
    ("installs", "Makefile"): (
        "make audit",
        "make docs",
        "make quick",
        "make run",
        "pip install .",
        "pip install '.[clearml]'",
        "pip install '.[train]'",
        "python -m build",
        "pip install 'rollout-parity[router]'",
        'pip install "rollout-parity[compare] @ $PARITY"',
        'pip install "rollout-parity[train] @ $PARITY"',
        'pip install "rollout-parity[train] @ $PARITY" YOUR_PYTHON_DEPENDENCIES',
        "pip install --no-deps /path/to/rollout-parity",
        "source .venv/bin/activate",
    ),
}
"""Lines that are not run here: why, and where what they do is run (or what runs it)."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("documented")
    write_files(directory)
    return directory


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    with toy_engine() as one:
        yield one.url


def test_every_line_is_run_here_or_elsewhere():
    lines = [*RUN, *(line for several in ELSEWHERE.values() for line in several)]
    unlisted = {line: page for line, page in documented().items() if line not in lines}
    assert unlisted == {}, "a line that is documented belongs into RUN, or into ELSEWHERE with the test that runs it"
    assert set(lines) - documented().keys() == set(), "no page shows these any more"
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize("place", [place for _, place in ELSEWHERE])
def test_elsewhere_is_a_place(place):
    path, _, name = place.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text() if name else (ROOT / path).exists()


def words_of(line: str, engine: str) -> Iterator[str]:
    """A line as a shell gives it to the command, with this engine for any other."""
    words = shlex.split(line)
    end = next((place for place, word in enumerate(words) if word in SHELL_ENDS), len(words))
    for word in words[:end]:
        if "*" in word:
            yield from sorted(map(str, Path().glob(word)))
        else:
            yield engine if "://" in word or word == "URL" else REPLACED.get(word, word).removeprefix("/")
    yield from next((more for start, more in ADDED.items() if line.startswith(start) and more[0] not in words), ())


@pytest.mark.parametrize("line", RUN)
def test_a_documented_line_works(line, files, engine, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setenv("CLEARML_OFFLINE_MODE", "1")
    monkeypatch.setattr(sys, "argv", list(words_of(line, engine)))
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == RUN[line]
