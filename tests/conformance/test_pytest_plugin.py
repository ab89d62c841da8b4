"""The plug-in as a host's CI runs it: in a directory without tests, in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_pytest(directory, *options):
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "parity.pytest_plugin", "-ra", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([*command, *options], cwd=directory, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout


def counts(output):
    return {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|xfailed)", output)}


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
    assert "1 prompts with n = 8 answered by 7 outputs" in output
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
