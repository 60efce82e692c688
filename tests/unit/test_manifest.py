"""The manifest: what it accepts, how it is read and written, and that its digest is its identity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from jubako.errors import StartupFault
from jubako.release import catalogue
from jubako.release.manifest import Manifest, dump, load
from tests.unit.conftest import fields


def test_dump_and_load_give_back_the_same_manifest(tmp_path: Path, manifest: Manifest) -> None:
    """A manifest written and read again is equal, digest included, and is written the same way again."""
    path = tmp_path / "manifest.yaml"
    path.write_text(dump(manifest))
    again = load(path)
    assert again == manifest
    assert again.digest == manifest.digest
    assert dump(again) == dump(manifest)


def test_digest_depends_on_content_only(tmp_path: Path, manifest: Manifest) -> None:
    """Key order, quoting, comments and flow style do not change the digest."""
    data = fields()
    reversed_keys = dict(reversed(list(data.items())))
    shapes = [
        yaml.safe_dump(data, sort_keys=True),
        "# a comment\n" + yaml.safe_dump(reversed_keys, sort_keys=False, default_style='"').replace('"1"', "'1'"),
        json.dumps(reversed_keys, indent=3),
    ]
    for number, text in enumerate(shapes):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text.replace("!!int ", "").replace("!!float ", ""))
        if number != 1:
            assert load(path).digest == manifest.digest
    unquoted = yaml.safe_dump(data).replace("'", '"')
    (tmp_path / "q.yaml").write_text(unquoted + "# the end\n")
    assert load(tmp_path / "q.yaml").digest == manifest.digest


def test_canonical_form_has_sorted_keys_and_no_whitespace(manifest: Manifest) -> None:
    """The canonical form is compact JSON with sorted keys, defaults included."""
    data = json.loads(manifest.canonical())
    assert manifest.canonical() == json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    assert data["quantization"] == "none"
    assert data["predecessor"] is None


def test_tag_is_name_and_first_digits_of_the_digest(manifest: Manifest) -> None:
    """The model tag carries the identity."""
    assert manifest.tag == f"tiny:{manifest.digest[:16]}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Tiny"}, "name"),
        ({"name": "tiny-"}, "name"),
        ({"version": "x" * 64}, "version"),
        ({"aliases": []}, "aliases"),
        ({"aliases": ["a", "a"]}, "alias given twice: a"),
        ({"aliases": ["tiny-lora"]}, "alias given twice: tiny-lora"),
        ({"source": {"kind": "hub", "repository": "a/b", "revision": "main", "requested": "main"}}, "revision"),
        ({"source": {"kind": "folder", "note": "x", "path": "/somewhere"}}, "path"),
        ({"tokenizer_sha256": "0" * 64}, "tokenizer_sha256 is not"),
        ({"files": list(reversed(fields()["files"]))}, "sorted by path"),
        ({"files": [*fields()["files"][:1], *fields()["files"]]}, "path given twice"),
        ({"files": [fields()["files"][0] | {"path": "../config.json"}]}, "plain relative path"),
        ({"files": [fields()["files"][0] | {"path": "/config.json"}]}, "plain relative path"),
        ({"files": [fields()["files"][0] | {"path": "a//b"}]}, "plain relative path"),
        ({"files": [fields()["files"][0] | {"path": "a\\b"}]}, "plain relative path"),
        ({"smoke": [{"name": "x", "max_tokens": 1, "expected": "y"}]}, "exactly one of messages and prompt"),
        ({"predecessor": "tiny/1"}, "this release itself"),
        ({"serving": {"chat_template": "other.jinja"}}, "not one of the pinned files"),
    ],
)
def test_manifest_refuses_what_makes_no_release(change: dict[str, Any], message: str) -> None:
    """Each rule of the manifest is enforced, and named in the message."""
    with pytest.raises(ValidationError, match=message):
        Manifest.model_validate(fields(**change))


def test_all_faults_are_reported_together_with_lines(tmp_path: Path) -> None:
    """Every fault has its file and line, unknown keys the nearest known one."""
    data = fields(version=1, licence={"spdx": "MIT", "decison": "approved", "reason": "x"})
    path = tmp_path / "manifest.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(StartupFault) as raised:
        load(path)
    lines = str(raised.value).splitlines()
    assert f"{path}:3: version: must be text: put 1 in quotes" in lines
    assert any("licence.decison: unknown key (did you mean decision?)" in line for line in lines)
    assert any("licence.decision: is required" in line for line in lines)
    assert len(lines) == 3


def test_unknown_key_inside_a_source_names_the_nearest(tmp_path: Path) -> None:
    """The nearest key is looked for in the kind of source that was given."""
    source = {"kind": "hub", "repository": "a/b", "revison": "0" * 40, "requested": "main"}
    path = tmp_path / "manifest.yaml"
    path.write_text(yaml.safe_dump(fields(source=source)))
    with pytest.raises(StartupFault, match=r"source\.revison: unknown key \(did you mean revision\?\)"):
        load(path)


def test_a_written_version_is_never_overwritten(tmp_path: Path, manifest: Manifest) -> None:
    """Writing the same version again is refused and leaves the first as it was."""
    path = catalogue.write_new(tmp_path, manifest)
    before = path.read_bytes()
    with pytest.raises(StartupFault, match="a change is a new version"):
        catalogue.write_new(tmp_path, manifest.model_copy(update={"dtype": "bfloat16"}))
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == ["manifest.yaml"]


def test_unknown_release_names_the_nearest(tmp_path: Path, manifest: Manifest) -> None:
    """A mistyped reference is answered with the one that was probably meant."""
    catalogue.write_new(tmp_path, manifest)
    with pytest.raises(StartupFault, match="did you mean tiny/1"):
        catalogue.load(tmp_path, "tinny/1")
    with pytest.raises(StartupFault, match="write name/version"):
        catalogue.load(tmp_path, "../../etc")


def test_a_manifest_in_the_wrong_folder_is_refused(tmp_path: Path, manifest: Manifest) -> None:
    """A manifest copied to another version's folder is not that version."""
    path = catalogue.write_new(tmp_path, manifest)
    other = path.parent.parent / "2"
    path.parent.rename(other)
    with pytest.raises(StartupFault, match="that of tiny/1, its folder that of tiny/2"):
        catalogue.load(tmp_path, "tiny/2")
