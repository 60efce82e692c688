"""The documents list the table of errors, and the table lists what the code can raise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.contract.error_table import TABLE
from tests.project import REPOSITORY


def test_the_table_lists_what_the_rooms_can_raise() -> None:
    """No code more and none fewer."""
    assert codes_in(REPOSITORY / "src" / "jubako") == TABLE.keys()


def test_the_document_of_errors_lists_the_table() -> None:
    """Status, type, code and advice."""
    found = {}
    for status, kind, code, _, retry in rows(REPOSITORY / "docs" / "ERRORS.md", columns=5):
        assert code.strip("`") not in found
        found[code.strip("`")] = (int(status), kind.strip("`"), retry.partition(" ")[0].rstrip(","))
    assert found == {code: row[:3] for code, row in TABLE.items()}


def test_the_readme_lists_the_table() -> None:
    """The same codes under the same statuses."""
    found = {}
    for statuses, codes, retry in rows(REPOSITORY / "README.md", columns=3):
        for code in re.findall(r"`(\w+)`", codes):
            found[code] = retry.partition(" ")[0].rstrip(",")
            assert str(TABLE[code][0]) in statuses.split(", ")
    assert found == {code: row[2] for code, row in TABLE.items()}


def rows(file: Path, *, columns: int) -> Iterator[list[str]]:
    """The rows of a document's table of errors: those that begin with a status."""
    for line in file.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == columns and re.fullmatch(r"[45]\d\d(, [45]\d\d)*", cells[0]):
            yield cells


def codes_in(folder: Path) -> set[str]:
    """Every code that a refusal is given: by keyword, by the name of a constant, or as its class's own."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob("*.py"))]
    constants = {
        name: value for tree in trees for name, value in assigned(tree.body) if isinstance(value, ast.Constant)
    }
    given: list[ast.expr | None] = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.keyword) and node.arg == "code":
            given.append(node.value)
        elif isinstance(node, ast.arguments):
            defaults = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            given.extend(default for argument, default in defaults if argument.arg == "code")
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            given.extend(value for name, value in assigned(node.body) if name in {"code", "default_code"})
    return {code for value in given for code in texts(value, constants)}


def assigned(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """Names that are assigned to, with their values."""
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement.value
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement.value


def texts(value: ast.expr | None, constants: dict[str, ast.Constant]) -> Iterator[str]:
    """The texts that an expression can be."""
    if isinstance(value, ast.IfExp):
        yield from texts(value.body, constants)
        yield from texts(value.orelse, constants)
    elif isinstance(value, ast.Name):
        yield from texts(constants.get(value.id), constants)
    elif isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
