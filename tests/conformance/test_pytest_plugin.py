"""The plug-in as a host's CI runs it: in a directory of its own, on the host's test file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas  # noqa: F401 - as pyarrow does. What a run in this process imports first, pytester throws away after it
import pytest
from toy_engine import toy_engine

import parity.commands.check
import parity.conformance  # noqa: F401 - see above

pytest_plugins = "pytester"

ROOT = Path(__file__).parents[2]
INI = """
[pytest]
addopts = --strict-markers
filterwarnings =
    error
    ignore:Module already imported:pytest.PytestAssertRewriteWarning
"""
PLUGIN = ("-p", "parity.pytest_plugin", "-ra", "-p", "no:cacheprovider")

ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
OUTCOMES = {"passed", "failed", "skipped", "errors"}

HOST = '''
import json
import os
import urllib.request

import pytest

from parity.records.samples import Sample

N, CAP, PROMPTS = 4, 8, ([40, 41, 42], [50, 51])


def rollout(url, arm):
    """A host's rollout: asks for each group, and writes its samples."""
    def ask(prompt, **more):
        params = {"max_new_tokens": CAP, "temperature": 1.0, **more}
        body = {"input_ids": prompt, "return_logprob": True, "sampling_params": params}
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(url + "/generate", json.dumps(body).encode(), kind)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def ask_for_group(prompt):
        if arm == "per-sample":
            return [ask(prompt) for _ in range(N)]
        return ask(prompt, n=N) if arm == "native" else ask([prompt] * N)

    for group, prompt in enumerate(PROMPTS):
        outputs = ask_for_group(prompt)
        if "LATE" in os.environ:  # the last request was answered first
            outputs.reverse()
        for slot, output in enumerate(outputs):
            meta = output["meta_info"]
            yield Sample(
                group, slot, 0, prompt, output["output_ids"], [row[0] for row in meta["output_token_logprobs"]],
                output["text"], meta["finish_reason"]["type"], reward=float(len(output["output_ids"]) % 2),
                response_length=len(output["output_ids"]), weight_versions=[meta["weight_version"]], max_new_tokens=CAP,
            )


@pytest.mark.parity(group_size=N, max_new_tokens=CAP, required=["samples_received", "rollout_log_probs_length"])
def test_rollout(parity_engine, parity_check, parity_baseline):
    samples = list(rollout(f"http://{parity_engine.host}:{parity_engine.port}", os.environ.get("ARM", "per-sample")))
    exec(os.environ.get("FAULT", ""))
    parity_check(samples)
    exec(os.environ.get("LATER_FAULT", ""))
    parity_baseline(samples)
'''


def run_pytest(directory, *options):
    (directory / "pytest.ini").write_text(INI)
    environment = {**os.environ, **ALONE, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", *PLUGIN, *options]
    run = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout


def counts(output):
    return {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|xfailed|error)", output)}


def test_each_case_is_a_test_and_what_may_not_be_touched_is_skipped(checked_engine, tmp_path):
    code, output = run_pytest(tmp_path, "--parity-url", checked_engine, "-k", "single_ids or native_2 or abort_single")
    assert (code, counts(output)) == (0, {"passed": 2, "skipped": 1})
    assert "--control" in output


def test_a_broken_rule_fails_with_its_finding_and_a_known_deviation_xfails(through, tmp_path):
    class Fault:
        def request(self, path, body):
            seeded = path == "/generate" and "sampling_seed" in body["sampling_params"]
            return (400, {"error": "no seeds"}) if seeded else body

        def response(self, path, body, status, answer):
            if path == "/server_info":
                return status, {"version": "0.5.23", "disable_radix_cache": False}
            return status, answer[:-1] if isinstance(answer, list) else answer

    with through(Fault()) as (url, _):
        code, output = run_pytest(tmp_path, "--parity-url", url, "-k", "single_ids or native_8 or seed_repeats")
    assert (code, counts(output)) == (1, {"failed": 1, "xfailed": 1, "passed": 1})
    assert "1 prompt with n = 8 answered by 7 outputs" in output
    assert "Traceback" not in output


def test_without_a_url_nothing_is_added(tmp_path):
    code, output = run_pytest(tmp_path)
    assert code == 5
    assert "no tests ran" in output


def test_where_nothing_listens_one_case_fails_by_its_name_and_the_rest_are_skipped(nowhere, tmp_path):
    code, output = run_pytest(tmp_path, "--parity-url", nowhere, "-k", "single_ids or native_2 or seed_repeats")
    assert (code, counts(output)) == (1, {"failed": 1, "skipped": 2})
    assert "Cannot connect" in output
    assert "Traceback" not in output


def test_without_any_option_an_engine_of_its_own_answers(tmp_path):
    (tmp_path / "test_host.py").write_text(HOST + TOKENIZER_TEST)
    code, output = run_pytest(tmp_path)
    assert (code, counts(output)) == (0, {"passed": 1, "skipped": 1}), output
    assert "--parity-baseline names no recordings" in output  # parity_check passed before it


TOKENIZER_TEST = """
def test_tokenizer(parity_engine, parity_checkpoint):
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(parity_checkpoint).encode("AB")
    (sample, *_) = rollout(parity_engine.url, "native")
    assert len(ids) == 2
    assert parity_engine.exchanges[0].request["sampling_params"]["n"] == N
"""


@pytest.fixture
def host(pytester, monkeypatch):
    """`host(options, **environment)` runs the host's test in this process: outcomes and output."""
    pytester.makeini(INI)
    pytester.makepyfile(test_host=HOST)

    def run(*options, **environment):
        with monkeypatch.context() as changed:
            for name, value in {**ALONE, **environment}.items():
                changed.setenv(name, value)
            result = pytester.runpytest_inprocess(*PLUGIN, "-m", "not parity_case", *options)
        outcomes = result.parseoutcomes()
        return {name: outcomes[name] for name in OUTCOMES & outcomes.keys()}, str(result.stdout)

    return run


@pytest.fixture
def recorded(host):
    """The same, once its test was recorded on an engine that is gone."""
    with toy_engine() as engine:
        outcomes, output = host("--parity-url", engine.url, "--parity-baseline", "base", "--parity-record")
    assert outcomes == {"skipped": 1}
    assert "recorded in base" in output
    return host


@pytest.mark.parametrize("environment", [{}, {"ARM": "native"}, {"LATE": "1"}, {"ARM": "batched"}])
def test_a_recording_answers_whatever_the_form_of_the_request_and_equal_samples_pass(recorded, environment):
    outcomes, output = recorded("--parity-baseline", "base", **environment)
    assert outcomes == {"passed": 1}, output


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("samples[1].logprobs[0] += 1e-12", "twin_logprobs"),
        ("samples[0].reward, samples[1].reward = 2.0, samples[0].reward", "twin_reward"),
        ("samples[2].finish_reason = None", "arms_finish_reasons"),
        ("del samples[3]", "arms_output_count"),
        ("for sample in samples: sample.logprobs = None", "arms_fields_present"),
    ],
)
def test_what_a_new_revision_makes_otherwise_of_the_same_answers_is_caught(recorded, fault, check):
    outcomes, output = recorded("--parity-baseline", "base", LATER_FAULT=fault)
    assert outcomes == {"failed": 1}
    assert f"{check}: " in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("samples[1].logprobs[0] -= 1", "samples_received"),
        (
            "samples[0].output_ids, samples[5].output_ids = samples[5].output_ids, samples[0].output_ids",
            "samples_received",
        ),
        ("samples[1].logprobs.pop()", "rollout_log_probs_length"),
        ("samples.pop()", "output_count"),
        ("for sample in samples: sample.logprobs = None", "rollout_log_probs_length: not compared, but required"),
    ],
)
def test_a_breach_of_the_contract_is_caught_on_a_live_engine_and_none_without(host, fault, check):
    with toy_engine() as engine:
        assert host("--parity-url", engine.url)[0] == {"skipped": 1}
        outcomes, output = host("--parity-url", engine.url, FAULT=fault)
    assert outcomes == {"failed": 1}
    assert check in output


def test_an_engine_that_loses_an_output_is_caught_though_the_samples_are_whole(pytester, host):
    pytester.makepyfile(test_host=HOST.replace("parity_check(samples)", "parity_check(required=[])"))
    with toy_engine() as engine:
        assert host("--parity-url", engine.url, ARM="native")[0] == {"skipped": 1}
    with toy_engine(lie=lambda payload, outputs: outputs.pop()) as engine:
        outcomes, output = host("--parity-url", engine.url, ARM="native")
    assert outcomes == {"failed": 1}
    assert "answered by 3 outputs" in output


def test_a_revision_that_asks_for_something_else_is_told(recorded, pytester):
    pytester.makepyfile(test_host=HOST.replace("[50, 51]", "[50, 52]"))
    outcomes, output = recorded("--parity-baseline", "base")
    assert outcomes == {"failed": 1, "errors": 1}
    assert "the recording has 0 outputs left for prompt" in output
    pytester.makepyfile(test_host=HOST.replace('"temperature": 1.0', '"temperature": 0.9'))
    outcomes, output = recorded("--parity-baseline", "base")
    assert outcomes == {"failed": 1}
    said, _summary = output.split("short test summary info")  # which repeats it, cut short only outside of CI
    assert said.count("arms_same_requests: the arms asked for") == 1  # both of its findings say the same


def test_a_recording_is_what_parity_check_reads(recorded, pytester):
    from parity.commands.check import check_sources
    from parity.findings import Verdict

    result = check_sources(["base"], group_size=4)
    assert result.verdict is Verdict.PASS
    assert result.counts == {"samples": 8, "groups": 2, "exchanges": 8, "files": 2}


def test_a_test_without_recording_fails_and_one_that_compares_nothing_too(host, pytester):
    outcomes, output = host("--parity-baseline", "base")
    assert outcomes == {"errors": 1}
    assert "--parity-record writes it" in output
    pytester.makepyfile(test_host="def test_nothing(parity_baseline):\n    pass\n")
    outcomes, output = host("--parity-baseline", "base")
    assert outcomes == {"failed": 1}
    assert "parity_baseline was not called" in output


def test_a_damaged_recording_is_named(recorded, pytester):
    (file,) = pytester.path.glob("base/**/engine.json")
    file.write_text(json.dumps({"model_path": None, "answers": {"GET /health": 200}}))
    outcomes, output = recorded("--parity-baseline", "base")
    assert outcomes == {"errors": 1}
    assert "engine.json: Expected `array`, got `int` - at `$.answers[...]`" in output


def test_a_shared_engine_is_not_changed_unless_allowed(host, pytester):
    pytester.makepyfile(
        test_host="""
        import urllib.request

        def test_abort(parity_engine):
            body = b'{"abort_all": true}'
            try:
                kind = {"Content-Type": "application/json"}
                urllib.request.urlopen(urllib.request.Request(parity_engine.url + "/abort_request", body, kind))
            except OSError:
                pass
        """
    )
    with toy_engine() as engine:
        outcomes, output = host("--parity-url", engine.url)
        assert outcomes == {"passed": 1, "errors": 1}
        assert "POST /abort_request changes the engine, which needs --parity-control" in output
        assert "/abort_request" not in engine.paths
        assert host("--parity-url", engine.url, "--parity-control")[0] == {"passed": 1}
        assert "/abort_request" in engine.paths


def test_a_hosts_own_dump_and_samples_are_read(pytester, host, valid_samples):
    import torch
    from host_forms import rollout_dump

    samples = valid_samples()
    torch.save(rollout_dump(samples, 4), pytester.path / "0.pt")
    pytester.makepyfile(
        test_host="""
        import pytest, torch

        class HostSample:
            def __init__(self, row):
                self.row = row

            def to_dict(self):
                return self.row

        @pytest.mark.parity(group_size=4)
        @pytest.mark.parametrize("lost", [0, 1])
        def test_dump(parity_check, parity_baseline, lost):
            rows = torch.load("0.pt", weights_only=False)["samples"]
            groups = [list(map(HostSample, rows[at : at + 4])) for at in range(0, len(rows), 4)]
            parity_check("0.pt")
            parity_check(groups if not lost else groups[:-1] + [groups[-1][1:]])
            parity_baseline("0.pt")
        """
    )
    options = ("--parity-baseline", "base")
    outcomes, output = host(*options, "--parity-record")
    assert outcomes == {"skipped": 1, "failed": 1}
    assert "output_count: " in output
    assert host(*options, "-k", "0")[0] == {"passed": 1}
    torch.save(rollout_dump(samples[:-1], 4), pytester.path / "0.pt")
    outcomes, output = host(*options, "-k", "0")
    assert outcomes == {"failed": 1}


def test_a_second_recording_replaces_the_first_whole(recorded, pytester):
    with toy_engine(seed=1) as engine:
        recorded("--parity-url", engine.url, "--parity-baseline", "base", "--parity-record")
    assert recorded("--parity-baseline", "base")[0] == {"passed": 1}
    assert [path.name for path in pytester.path.joinpath("base", "test_host.py").iterdir()] == ["test_rollout"]


def test_recording_needs_a_directory(pytester, monkeypatch):
    monkeypatch.setenv(*next(iter(ALONE.items())))
    result = pytester.runpytest_inprocess(*PLUGIN, "--parity-record")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--parity-record needs --parity-baseline DIR" in str(result.stderr)


RULES = """
import pytest

@pytest.mark.parity(group_size=2, {more})
def test_rules(parity_check):
    parity_check([])
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("groupsize=2", "there is no rule groupsize; "),
        ("required='output_count'", "required is 'output_count', not a list of checks"),
    ],
)
def test_a_misspelt_rule_is_named(host, pytester, more, said):
    pytester.makepyfile(test_host=RULES.format(more=more))
    outcomes, output = host()
    assert outcomes == {"failed": 1}
    assert said in output
    assert "Traceback" not in output
    assert "TypeError" not in output


def test_samples_that_cannot_be_read_are_named_without_the_code_that_read_them(host, pytester):
    (pytester.path / "a.samples.jsonl").write_text('{"group_index": 0, "index": 0, "prompt": "1+1="}\n')
    pytester.makepyfile(test_host="def test_saved(parity_check):\n    parity_check('a.samples.jsonl')\n")
    outcomes, output = host()
    assert outcomes == {"failed": 1}
    assert "unknown fields ['prompt']" in output
    assert "checking.py" not in output
    assert "another exception" not in output


def test_a_test_case_of_unittest_that_compares_nothing_fails_and_one_that_does_is_skipped(host, pytester):
    pytester.makepyfile(
        test_host="""
        import unittest
        import pytest

        class TestHost(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def of_the_plugin(self, parity_baseline):
                self.baseline = parity_baseline

            def test_forgotten(self):
                pass

            def test_called(self):
                self.baseline([])
        """
    )
    outcomes, output = host()
    assert outcomes == {"failed": 1, "skipped": 1}
    assert "parity_baseline was not called" in output


def test_an_engine_that_a_test_asks_for_late_is_checked_too(host, pytester):
    late = HOST.replace("(parity_engine, parity_check, ", "(request, parity_check, ").replace(
        "    samples = ", '    parity_engine = request.getfixturevalue("parity_engine")\n    samples = '
    )
    pytester.makepyfile(test_host=late)
    with toy_engine() as engine:
        assert host("--parity-url", engine.url)[0] == {"skipped": 1}
        outcomes, output = host("--parity-url", engine.url, FAULT="samples[1].logprobs[0] -= 1")
    assert outcomes == {"failed": 1}
    assert "samples_received: " in output


def test_a_test_with_any_name_has_a_recording_under_the_directory_given(host, pytester):
    pytester.makepyfile(
        test_host="""
        import pytest
        from parity.records.samples import Sample

        @pytest.mark.parametrize("name", ["x" * 300, "y" * 300, "a::..::..::..::..::b", "c/d"])
        def test_name(parity_baseline, name):
            parity_baseline([Sample(0, 0, 0, [1], [len(name), ord(name[0])])])
        """
    )
    assert host("--parity-baseline", "base", "--parity-record")[0] == {"skipped": 4}
    assert host("--parity-baseline", "base")[0] == {"passed": 4}
    assert len({path.parent for path in pytester.path.glob("base/**/rollout.parquet")}) == 4


def test_workers_do_not_change_an_engine_that_they_share(pytester, host, monkeypatch):
    monkeypatch.setenv(*next(iter(ALONE.items())))
    with toy_engine() as engine:
        told = ("--parity-url", engine.url, "--parity-control", "-p", "xdist.plugin", "-n", "2")
        result = pytester.runpytest_inprocess(*PLUGIN, *told)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "use -n 0" in str(result.stderr)


def test_tests_of_an_engine_that_is_gone_say_so_in_a_line(host, nowhere):
    outcomes, output = host("--parity-url", nowhere)
    assert outcomes == {"errors": 1}
    assert "Cannot connect" in output
    assert "server_info" in output
    assert "asyncio" not in output
