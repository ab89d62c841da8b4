"""The documentation: its links lead somewhere, its commands are commands, and its reference is the code's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import orjson
import pytest
import yaml
from documentation import MARKDOWN, PAGES, ROOT, commands_named, documented, tokens
from toy_engine import toy_engine

from parity.cli import cli
from parity.conformance import CASES, VLLM_CASES
from parity.contract_checks import CHECKS
from parity.faults import CONTROLS, FAULTS

HOST_TEST = ROOT / "docs" / "workflows" / "test_rollout_contract.py"
GOLDEN = ROOT / "tests" / "data" / "sglang-0.5.23-cpu.exchanges.jsonl"
SHELL_ENDS = ("|", "||", "&", "&&", ";", ">")


def links(page: Path) -> Iterator[str]:
    for token in tokens(page.read_text()):
        if target := token.attrs.get("href") or token.attrs.get("src"):
            yield str(target)


@cache
def anchors(page: Path) -> list[str]:
    """The anchors of headings, as GitHub makes them: lower case, no punctuation, spaces as hyphens."""
    stream = MARKDOWN.parse(page.read_text())
    headings = [inline for opening, inline in pairwise(stream) if opening.type == "heading_open"]
    words = ("".join(part.content for part in inline.children or ()) for inline in headings)
    return [re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in words]


def broken(page: Path) -> list[str]:
    found = []
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_anchors_lead_somewhere(page):
    assert broken(page) == []


def test_a_link_to_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b` (c)\n\n[one](#a-b-c) [two](#a-b-d) [three](page.md#a-b-c) ![four](gone.png)\n")
    assert broken(page) == ["#a-b-d", "gone.png"]


def test_headings_that_are_linked_to_have_one_meaning():
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        assert len(set(anchors(page))) == len(anchors(page)), page


def test_links_of_the_site_stay_in_the_site():
    for page in (ROOT / "docs").rglob("*.md"):
        outside = [link for link in links(page) if not link.startswith(("https://", "#")) and link.count("../") > 1]
        assert outside == [], page


def shown_in(navigation) -> Iterator[str]:
    for entry in navigation:
        for value in entry.values():
            yield from shown_in(value) if isinstance(value, list) else (value,)


def test_the_site_shows_every_page():
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert set(shown_in(navigation)) == pages


def reference(page: str) -> dict[str, str]:
    """The text below each heading of the third level; the second level groups them, and the first is the title's."""
    text = (ROOT / "docs" / "reference" / page).read_text()
    levels = [token.tag for token in MARKDOWN.parse(text) if token.type == "heading_open"]
    headings = re.findall(r"^(#+) (.*)$", text, re.MULTILINE)
    assert [f"h{len(marks)}" for marks, _ in headings] == levels
    assert levels.count("h1") == 1 and not any(title.startswith("#") for _, title in headings)
    entries = [entry.partition("\n") for entry in re.split(r"^### |^## .*$", text, flags=re.MULTILINE)[1:]]
    return {title: below.strip() for title, _, below in entries if title}


def test_the_reference_has_every_check_and_its_faults():
    """Up to date by `python tools/reference.py`."""
    entries = reference("checks.md")
    assert sorted(entries) == sorted(check.name for check in CHECKS)
    for check in CHECKS:
        assert entries[check.name].startswith(f"{check.rule}. *({check.severity.value})*")
        caught = re.findall(r"\]\(faults\.md#([\w-]+)\)", entries[check.name])
        assert caught == [name for name, fault in FAULTS.items() if fault.check == check.name], check.name


def test_the_reference_has_every_fault_with_its_check_and_its_origin():
    entries = reference("faults.md")
    assert sorted(entries) == sorted(FAULTS)
    for name, fault in FAULTS.items():
        check = fault.check.partition(":")[0]
        rung = f"{fault.level.rung} {fault.level.value}"
        for part in (fault.description, f"Caught by [{check}](", rung, fault.origin):
            assert part in entries[name], name
        assert (f"--plant {name}@" in entries[name]) == bool(fault.in_run), name


def test_the_reference_has_every_control_and_every_case():
    for page, known in (
        ("faults.md", CONTROLS),
        ("cases.md", {case.name: case for case in (*CASES, *VLLM_CASES)}.values()),
    ):
        text = (ROOT / "docs" / "reference" / page).read_text()
        listed = dict(re.findall(r"^- \*\*([\w-]+)\*\*: (.*)$", text, re.MULTILINE))
        said = {item.name: getattr(item, "rule", None) or item.description for item in known}
        assert list(listed) == list(said)
        assert all(listed[name].startswith(sentence) for name, sentence in said.items())


def parse(line: str) -> click.Context:
    """Parses a command line by the command's own parser; files that it names are made, below the current directory."""
    words = shlex.split(line, comments=True)
    end = next((place for place, word in enumerate(words) if word in SHELL_ENDS), len(words))
    words = [word.removeprefix("/").replace("<arm>", "native") for word in words[1:end]]
    for word in words[1:]:
        path = Path(word)
        if not word.startswith("-") and "://" not in word and "=" not in word and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("") if path.suffix else path.mkdir()
    name, command, rest = cli.resolve_command(click.Context(cli), words)
    return command.make_context(name, rest)


def test_documented_commands_are_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = {line: place for line, place in documented().items() if line.startswith("parity ")}
    assert len(commands) > 50
    for line, place in commands.items():
        try:
            parse(line)
        except click.ClickException as error:
            pytest.fail(f"{place}: {line}: {error.format_message()}")


def test_commands_that_are_named_exist():
    for page in PAGES:
        assert set(commands_named(page.read_text())) <= set(cli.commands), page


@pytest.mark.parametrize("line", ["parity chekc dumps", "parity run --arms native", "parity report --lang fr DIR"])
def test_a_command_that_does_not_parse_is_found(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.UsageError):
        parse(line)


def recording(directory: Path, lose_last: bool) -> Path:
    """A native request of 8 samples as the real engine answered it, or with its last output lost."""
    (exchange,) = (row for row in map(orjson.loads, GOLDEN.read_bytes().splitlines()) if row.get("case") == "native-n8")
    if lose_last:
        exchange["response"].pop()
    directory.mkdir()
    (directory / "rollout.exchanges.jsonl").write_bytes(orjson.dumps(exchange) + b"\n")
    return directory


MY_TRAINER = """
import json, urllib.request

def roll_out(host, port, tokenizer, save):
    params = {"n": 8, "max_new_tokens": 20, "temperature": 1.0}
    body = {"input_ids": [11, 12], "sampling_params": params, "return_logprob": True}
    with urllib.request.urlopen(f"http://{host}:{port}/generate", json.dumps(body).encode()) as answer:
        outputs = json.load(answer)
    with (save / "rollout.samples.jsonl").open("w") as file:
        for slot, output in enumerate(outputs):
            logprobs = [row[0] for row in output["meta_info"]["output_token_logprobs"]]
            row = {"group_index": 0, "index": slot, "prompt_ids": [11, 12], "logprobs": logprobs}
            print(json.dumps({**row, "output_ids": output["output_ids"]}), file=file)
"""


def run_host_test(directory: Path, *options: str, **environment: str) -> tuple[int, str]:
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / HOST_TEST.name).write_text(HOST_TEST.read_text())
    (directory / "my_trainer.py").write_text(MY_TRAINER)
    command = [sys.executable, "-m", "pytest", "-p", "parity.pytest_plugin", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
    done = subprocess.run([*command, HOST_TEST.name], cwd=directory, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_the_example_for_hosts_passes_what_the_engine_sent(tmp_path):
    dumps = str(recording(tmp_path / "dumps", lose_last=False))
    code, output = run_host_test(tmp_path, "-k", "saved", ROLLOUT_DUMPS=dumps)
    assert (code, "1 passed" in output) == (0, True), output


def test_the_example_for_hosts_records_and_compares(tmp_path):
    options = ("-m", "not parity_case", "-rs", "--parity-baseline", "base")
    with toy_engine() as engine:
        code, output = run_host_test(tmp_path, *options, "--parity-url", engine.url, "--parity-record")
    assert (code, "recorded in base" in output) == (0, True), output
    code, output = run_host_test(tmp_path, *options)
    assert (code, "1 passed, 1 skipped" in output) == (0, True), output


def test_the_example_for_hosts_fails_where_an_output_is_lost(tmp_path):
    dumps = str(recording(tmp_path / "dumps", lose_last=True))
    code, output = run_host_test(tmp_path, "-k", "saved", ROLLOUT_DUMPS=dumps)
    assert (code, "output_count" in output) == (1, True), output


def test_the_example_for_hosts_fails_where_nothing_was_saved(tmp_path):
    (tmp_path / "dumps").mkdir()
    code, output = run_host_test(tmp_path, "-k", "saved", ROLLOUT_DUMPS="dumps")
    assert code == 1, output
