"""Every code that a refusal can have is one that the metrics know."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from jubako import errors
from jubako.telemetry.metrics import CODES
from tests.project import REPOSITORY


def _refusals(kind: type[errors.Refusal] = errors.Refusal) -> list[type[errors.Refusal]]:
    return [kind, *(found for below in kind.__subclasses__() for found in _refusals(below))]


def _texts(node: ast.expr | None, constants: dict[str, str]) -> list[str]:
    """The texts that an expression can be, as far as they are written out in its module."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.Name) and node.id in constants:
        return [constants[node.id]]
    if isinstance(node, ast.IfExp):
        return _texts(node.body, constants) + _texts(node.orelse, constants)
    return []


def _codes_in(path: Path) -> set[str]:
    """What is passed as `code=…`, is its default, or is assigned to a variable or attribute of that name."""
    found: list[str] = []
    module = ast.parse(path.read_text())
    constants = {
        target.id: node.value.value
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.keyword) and node.arg == "code":
            found += _texts(node.value, constants)
        elif isinstance(node, ast.arguments):
            pairs = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            found += [text for arg, default in pairs if arg.arg == "code" for text in _texts(default, constants)]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {getattr(target, "id", getattr(target, "attr", "")) for target in targets}
            if names & {"code", "default_code"}:
                found += _texts(node.value, constants)
    return {code for code in found if code}


def test_every_code_that_can_be_told_is_listed() -> None:
    """A code that the metrics do not know would be counted as `other`: list it in `telemetry.metrics.CODES`."""
    said = {refusal.default_code for refusal in _refusals()}
    for path in (REPOSITORY / "src").rglob("*.py"):
        said |= _codes_in(path)
    assert not said - set(CODES)
    assert list(CODES) == sorted(set(CODES))
    assert all(re.fullmatch(r"[a-z_]{3,40}", code) for code in CODES)


def test_the_search_for_codes_finds_the_ways_they_are_written(tmp_path: Path) -> None:
    """Else the test above would pass for the wrong reason."""
    source = tmp_path / "source.py"
    source.write_text(
        "FIVE = 'five'\nraise Busy('', code='one')\ncode = 'two' if x else 'three'\n"
        "class A:\n    default_code: str = 'four'\ndef f(*, code=FIVE): ...\n"
    )
    assert _codes_in(source) == {"one", "two", "three", "four", "five"}
    assert "engine_unavailable" in _codes_in(REPOSITORY / "src/jubako/life.py")
