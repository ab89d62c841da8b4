"""What the documentation shows: its pages, its links' tokens, and every command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from parity.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
WORKFLOW = ROOT / "docs" / "workflows" / "rollout-parity.yml"
MARKDOWN = MarkdownIt("gfm-like", {"linkify": False})
COMMAND = re.compile(r"([A-Z_]+=\S+ )*(parity|make|pytest|python|pip|source|clearml-task|wandb|apt-get) \S")


def tokens(text: str) -> Iterator[Token]:
    for token in MARKDOWN.parse(text):
        yield token
        yield from token.children or ()


def commands_in(text: str) -> Iterator[str]:
    """Lines of code that begin with a command, and inline code that is more than a command's name."""
    for token in tokens(text):
        inline = token.type == "code_inline" and len(token.content.split()) > (2 if "parity " in token.content else 1)
        if inline or token.type in ("fence", "code_block"):
            yield from shell_commands(token.content)


def commands_named(text: str) -> Iterator[str]:
    for token in tokens(text):
        if token.type == "code_inline" and token.content.startswith("parity "):
            yield token.content.split()[1]


def shell_commands(code: str) -> Iterator[str]:
    for line in code.replace("\\\n", " ").splitlines():
        if COMMAND.match(line.strip()):
            words = re.sub(r" {2,}", " ", line.strip().partition(" #")[0]).split()
            yield " ".join(words[:2] if words[0] == "make" else words)


def documented() -> dict[str, str]:
    """Every command line that is documented, without its comment, and where."""
    found = {command: page.name for page in PAGES for command in commands_in(page.read_text())}
    for name, command in cli.commands.items():
        text = f"{command.help}\n{command.epilog}"
        found |= {line: f"{name} --help" for line in shell_commands(text)}
    for job in yaml.safe_load(WORKFLOW.read_text())["jobs"].values():
        runs = "\n".join(step.get("run", "") for step in job["steps"])
        found |= {line: WORKFLOW.name for line in shell_commands(runs)}
    return found
