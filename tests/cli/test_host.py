"""`parity host check` says what would happen before anything is started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from parity.cli import cli
from rollout_patch.hosts import engines, preflight
from rollout_patch.hosts.preflight import arguments_of


def run(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["host", "check", *words])
    error = result.exception if not isinstance(result.exception, SystemExit) else None
    return (2, str(error)) if error else (result.exit_code, result.output)


@pytest.fixture(autouse=True)
def known_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in which each host has one function, which is known."""
    for host in ("slime", "miles", "relax"):
        (tmp_path / host).mkdir()
        (tmp_path / host / "rollout.py").write_text("async def generate(args):\n    return await post(args)\n")
    bodies = {host: {f"{host}.rollout.generate": {}} for host in ("slime", "miles", "relax")}
    monkeypatch.setattr(preflight, "BODIES", bodies)
    found = preflight.bodies("slime", tmp_path)
    assert found == {"slime.rollout.generate": "unknown"}
    digest = preflight.fingerprint_of(preflight.ast.parse((tmp_path / "slime" / "rollout.py").read_text()).body[0])
    for host, functions in bodies.items():
        functions[f"{host}.rollout.generate"][digest] = f"{host} 1a2b3c4"
    return tmp_path


@pytest.mark.parametrize(
    ("host", "flags", "code", "said"),
    [
        ("slime", "--n-samples-per-prompt 8", 0, "go native"),
        ("slime", "--sglang-speculative-algorithm EAGLE", 1, "speculative_decoding"),
        ("slime", "--prefill-num-servers 1", 1, "disaggregated_prefill"),
        ("slime", "--rollout-function-path a.b", 1, "the plug-in is not called"),
        ("slime", "--sglang-enable-deterministic-inference", 1, "deterministic_inference"),
        ("miles", "--use-rollout-routing-replay", 0, "go native"),
        ("miles", "--use-rollout-indexer-replay", 1, "indexer_replay"),
        ("miles", "--lora-rank 8", 1, "lora_adapter"),
        ("miles", "--lora-rank 8 --lora-train-only", 0, "go native"),
        ("miles", "--fully-async", 1, "Miles refuses --fully-async"),
        ("relax", "--fully-async --use-opd", 0, "go native"),
        ("relax", "--lora-rank=8 --lora-adapter-mode", 1, "lora_adapter"),
        ("relax", "--use-agentic-rollout", 1, "another rollout function"),
    ],
)
def test_flags_say_which_way_groups_go(known_host: Path, host: str, flags: str, code: int, said: str) -> None:
    found, output = run(host, "--checkout", str(known_host), "--args", flags)
    assert (found, said in output) == (code, True)
    assert f"{host}.rollout.generate: {host} 1a2b3c4" in output


def test_options_of_the_plug_in_are_read_and_refused(known_host: Path, tmp_path: Path) -> None:
    checkout = ("slime", "--checkout", str(known_host))
    code, output = run(*checkout, "--set", "ROLLOUT_PATCH_ARM=batched", "--set", f"ROLLOUT_PATCH_RECORD={tmp_path}")
    assert (code, "go batched" in output, str(tmp_path) in output) == (0, True, True)
    code, output = run(*checkout, "--set", "ROLLOUT_PATCH_ARMS=batched")
    assert (code, "did you mean ROLLOUT_PATCH_ARM?" in output) == (2, True)
    assert run(*checkout, "--set", "nothing")[0] == 2


def test_options_in_the_hosts_yaml_are_read_and_refused(known_host: Path, tmp_path: Path) -> None:
    config = tmp_path / "my.yaml"
    given = ("slime", "--checkout", str(known_host), "--args", f"--custom-config-path {config}")
    config.write_text("rollout_patch_arm: batched  # and a comment\nrollout_patch_strict: true\nother: [1, 2]\n")
    code, output = run(*given)
    assert (code, "go batched" in output) == (0, True)
    for text, said in (
        ("rollout_patch_desing: probe", "did you mean rollout_patch_design?"),
        ("rollout_patch_share: 2", "no number between 0 and 1"),
        ("- a list", "cannot be read"),
        ("a: [", "cannot be read"),
    ):
        config.write_text(text)
        code, output = run(*given)
        assert (code, said in output) == (2, True)
    config.write_text("")
    assert run(*given)[0] == 0
    config.unlink()
    assert run(*given)[0] == 2
    code, output = run("miles", "--checkout", str(known_host), "--args", "--lora-rank '${RANK}'")
    assert (code, "a value of another kind" in output) == (2, True)


def test_an_unknown_body_is_refused_unless_it_is_allowed(known_host: Path) -> None:
    (known_host / "slime" / "rollout.py").write_text("async def generate(args):\n    return None\n")
    checkout = ("slime", "--checkout", str(known_host))
    code, output = run(*checkout)
    assert (code, "slime.rollout.generate: unknown" in output) == (1, True)
    assert run(*checkout, "--args", "--rollout-patch-allow-unknown-host 1")[0] == 0


def test_a_host_that_is_not_found_is_no_pass(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, output = run("slime", "--checkout", str(tmp_path / "empty"))
    assert (code, "was not found" in output) == (3, True)


def test_engines_are_asked(known_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def get(url: str) -> Any:
        if url.endswith("/workers"):
            return {"workers": [{"url": "http://a:1"}]}
        return {"version": "0.5.23", "disaggregation_mode": "prefill"}

    monkeypatch.setattr(preflight, "_get", get)
    code, output = run("slime", "--checkout", str(known_host), "--router", "http://router")
    assert (code, "disaggregated_prefill" in output, "0.5.23" in output) == (1, True, True)

    async def silent(url: str) -> Any:
        raise OSError("planted")

    monkeypatch.setattr(preflight, "_get", silent)
    assert run("slime", "--checkout", str(known_host), "--router", "http://router")[0] == 3
    assert engines.SECONDS_TO_ANSWER > 0


def test_a_command_line_is_read_as_a_host_reads_it() -> None:
    args = arguments_of(["--a-flag", "--number", "8", "--word=x", "--list", "1", "2", "--last"])
    assert vars(args) == {
        "a_flag": True,
        "number": 8,
        "word": "x",
        "list": 1,
        "last": True,
        "custom_generate_function_path": None,
    }


@pytest.mark.hosts
@pytest.mark.parametrize("host", ["slime", "miles", "relax"])
def test_a_checkout_is_known(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    variable = f"{host.upper()}_CHECKOUT"
    if not os.environ.get(variable):
        pytest.skip(f"{variable} names no checkout")
    code, output = run(host, "--checkout", os.environ[variable])
    assert (code, "unknown" in output) == (0, False)
