"""Brings the catalogues of messages up to date: `python tools/messages.py`, after a message was added or translated.

Every `Message("…")`, `say("…")` and `quantity(n, "…")` of `parity/` becomes an entry of ``parity.po``, without a
translation where it had none; an entry that nothing uses goes. Then ``parity.mo``, which reports read, is written.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po, write_po

from parity.contract_checks import CHECKS
from parity.report import comparison, document, html, plots, text
from parity.report.scope import REFERENCE_TRAINER
from parity.report.words import TERMS, UNITS

PACKAGE = Path(__file__).parents[1] / "parity"
LOCALE = PACKAGE / "report" / "locale"
DEFINING = {PACKAGE / "findings.py", PACKAGE / "report" / "words.py"}
"""Where a template may be a variable: in the functions that make messages of them."""

ENGLISH = PACKAGE / "conformance"
"""What is said of an engine's protocol is printed and never translated: no command writes it in another language."""


def templates() -> dict[str, list[tuple[str, int]]]:
    """Every template of the package, with the file and line of each of its places.

    Raises:
        SystemExit: The template of a `Message` is not written out where it is made, so that no catalogue can have it.
    """
    places: dict[str, list[tuple[str, int]]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, template in () if ENGLISH in path.parents else _of_file(path):
            if not template:  # the catalogue's own header has this id
                continue
            places.setdefault(template, []).append((str(path.relative_to(PACKAGE.parent)), line))
    for template in (*html.texts(), *_named()):
        if template:
            places.setdefault(template, [])
    return places


def _of_file(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text("utf-8"))
    constants = _variables(tree)
    for node in filter(_is_scope, ast.walk(tree)):
        yield from _of_calls(path, node, constants | _variables(node))


def _of_calls(path: Path, scope: ast.AST, variables: Mapping[str, Sequence[str]]) -> Iterator[tuple[int, str]]:
    for call in _inside(scope):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        name, texts = call.func.id, [_texts(argument, variables) for argument in call.args]
        if name in ("Message", "say"):
            templates = texts[0]
            if not templates and name == "Message" and path not in DEFINING:
                raise SystemExit(f"{path}, line {call.lineno}: the template of a Message must be written out here")
        elif name == "quantity":
            templates = [f"{{number:,}} {unit}" for unit in texts[1]]
        else:
            templates = ([", "] if len(texts) == 1 else texts[1]) if name == "listed" else []
        yield from ((call.lineno, template) for template in templates)


def _is_scope(node: ast.AST) -> bool:
    return isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef))


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """What is in a module or function, without what is in the functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not _is_scope(node):
            yield from _inside(node)


def _variables(scope: ast.AST) -> dict[str, list[str]]:
    """The texts that variables of a module or function are given."""
    variables: dict[str, list[str]] = {}
    for node in _inside(scope):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            variables.setdefault(node.targets[0].id, []).extend(_texts(node.value, variables))
    return variables


def _texts(node: ast.expr, variables: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """The texts that an expression may be: a literal, one of two, a variable or an entry of a table."""
    match node:
        case ast.Constant(str(text)):
            return [text]
        case ast.IfExp(body=first, orelse=second):
            return [*_texts(first, variables), *_texts(second, variables)]
        case ast.Dict(values=values):
            return [text for value in values for text in _texts(value, variables)]
        case ast.Name(name) | ast.Subscript(value=ast.Name(name)):
            return variables.get(name, [])
    return []


def _named() -> Iterator[str]:
    """Words of tables that the report translates by name."""
    yield from (*TERMS, *UNITS, *(f"{{number:,}} {unit}" for unit in UNITS))
    yield from (check.rule for check in CHECKS)
    for columns in (text.COLUMNS, text.TESTED_COLUMNS, text.OUTCOME_COLUMNS, comparison.COLUMNS):
        yield from columns
    yield from text.QUESTIONS.values()
    yield REFERENCE_TRAINER
    for row in document.ROW_RULES:
        yield row.name
        yield from (check.replace("_", " ") for check in row.checks)
    for name in (document.BALANCE, *(name for name, _ in document.COST_METRICS)):
        yield from (name, name.partition(" a step")[0])
    yield from (label for _, label in (*plots.CURVE_PANELS, *plots.COST_PANELS))


def updated(catalogue: Catalog) -> Catalog:
    """The catalogue of a language with the templates that there are now."""
    new = Catalog(
        catalogue.locale,
        header_comment=catalogue.header_comment,
        project="rollout-parity",
        creation_date=catalogue.creation_date,
        revision_date=catalogue.revision_date,
        fuzzy=False,
    )
    for template, places in templates().items():
        known = catalogue.get(template)
        new.add(template, known.string if known else "", places)
    return new


def main() -> None:
    """Updates each language, and prints what lacks a translation."""
    for path in sorted(LOCALE.glob("*/LC_MESSAGES/parity.po")):
        with path.open("rb") as file:
            catalogue = updated(read_po(file, locale=path.parts[-3]))
        with path.open("wb") as file:
            write_po(file, catalogue, width=0, sort_by_file=True, include_lineno=False)
        with path.with_suffix(".mo").open("wb") as file:
            write_mo(file, catalogue)
        missing = [str(message.id) for message in catalogue if message.id and not message.string]
        print(f"{path}: {len(catalogue) - len(missing)} of {len(catalogue)} templates are translated", file=sys.stderr)
        for template in missing:
            print(template)


if __name__ == "__main__":
    main()
