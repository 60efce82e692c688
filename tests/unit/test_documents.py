"""Documents: plain data with lines, and faults an operator can act on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from jubako import documents
from jubako.errors import StartupFault


class Inner(BaseModel):
    """A nested model."""

    model_config = ConfigDict(extra="forbid")
    timeout_seconds: float


class Outer(BaseModel):
    """A model with lists and mappings of models."""

    model_config = ConfigDict(extra="forbid")
    items: list[Inner] = []
    named: dict[str, Inner] = {}


def _read(tmp_path: Path, text: str) -> documents.Document:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    return documents.read(path)


def test_every_value_knows_its_line(tmp_path: Path) -> None:
    """Keys and list items have lines; a place that is absent has the line of what encloses it."""
    document = _read(tmp_path, "# head\na:\n  - x: 1\n  - x: 2\nb: 3\n")
    assert document.data == {"a": [{"x": 1}, {"x": 2}], "b": 3}
    assert [document.line_of(at) for at in [("a",), ("a", 1, "x"), ("b",), ("a", 1, "gone"), ("gone",)]] == [
        2,
        4,
        5,
        4,
        2,
    ]


def test_duplicate_keys_are_all_reported(tmp_path: Path) -> None:
    """A key given twice is an error, at any depth, with both lines."""
    with pytest.raises(StartupFault) as raised:
        _read(tmp_path, "a: 1\nb: {c: 1, c: 2}\na: 3\n")
    message = str(raised.value)
    assert ":3: a: the key is given twice (first on line 1)" in message
    assert ":2: b.c: the key is given twice (first on line 2)" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: !!python/object/apply:os.system [x]\n", "tag"),
        ("a: !env HOME\n", "tag"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("a: [1\n", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("? [1, 2]\n: x\n", "plain text"),
        ("a: {<<: {b: 1}}\n", "merge keys"),
        ("a: \x07\n", "not valid YAML"),
    ],
)
def test_anything_but_plain_data_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Tags, aliases, merge keys, several documents and malformed text end in one message with the file."""
    with pytest.raises(StartupFault, match=message) as raised:
        _read(tmp_path, text)
    assert "file.yaml" in str(raised.value)


def test_a_date_stays_text(tmp_path: Path) -> None:
    """YAML's dates are not turned into objects."""
    assert _read(tmp_path, "version: 2026-01-31\n").data == {"version": "2026-01-31"}


def test_an_empty_file_is_an_empty_mapping(tmp_path: Path) -> None:
    """Nothing written means nothing set."""
    assert _read(tmp_path, "").data == {}


def test_faults_name_line_key_and_nearest(tmp_path: Path) -> None:
    """Unknown keys, wrong types and missing keys are told in the order of the lines."""
    document = _read(tmp_path, "items:\n  - timeout_second: 3\nnamed:\n  x:\n    timeout_seconds: soon\nitem: 1\n")
    with pytest.raises(ValidationError) as raised:
        Outer.model_validate(document.data)
    lines = documents.faults(document, raised.value, Outer)
    path = document.path
    assert lines[0].startswith(f"{path}:2: items[0].timeout_second")
    assert f"{path}:2: items[0].timeout_second: unknown key (did you mean timeout_seconds?)" in lines
    assert any(line.startswith(f"{path}:5: named.x.timeout_seconds: ") and "'soon'" in line for line in lines)
    assert lines[-1] == f"{path}:6: item: unknown key (did you mean items?)"


def test_unreadable_files_are_faults(tmp_path: Path) -> None:
    """A missing file, a folder, a pipe and bytes that are not UTF-8 each give a message and never hang."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"a: \xff\n")
    for name, message in [
        ("none", "no such file"),
        (".", "not a regular"),
        ("pipe", "not a regular"),
        ("latin", "UTF-8"),
    ]:
        with pytest.raises(StartupFault, match=message):
            documents.read(tmp_path / name)
