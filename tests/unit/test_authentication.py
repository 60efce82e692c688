"""Who is let in, and which key files are refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from jubako.errors import StartupFault, Unauthenticated
from jubako.gate.authentication import KeyAuthenticator, ensure_key, read_key

KEY = "a-key-of-enough-length"


@pytest.mark.parametrize("value", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER   {KEY} "])
def test_the_key_is_let_in(value: str) -> None:
    """As a bearer, in any case and with any spaces around."""
    assert KeyAuthenticator(KEY).authenticate(value).tenant == "default"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        KEY,
        f"Basic {KEY}",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        "Bearer \xff\x00",
        f"Bearer\t{KEY}",
    ],
)
def test_anything_else_is_an_invalid_key(value: str) -> None:
    """The refusal does not repeat what was sent."""
    with pytest.raises(Unauthenticated) as raised:
        KeyAuthenticator(KEY).authenticate(value)
    assert raised.value.code == "invalid_api_key"
    assert KEY not in raised.value.message


def test_no_header_is_a_missing_key() -> None:
    """It has a code of its own, and the message says how to send one."""
    with pytest.raises(Unauthenticated, match="Bearer") as raised:
        KeyAuthenticator(KEY).authenticate(None)
    assert raised.value.code == "missing_api_key"


def test_the_key_cannot_be_read_from_what_is_kept() -> None:
    """Neither the authenticator nor the principal's public id holds it."""
    authenticator = KeyAuthenticator(KEY)
    principal = authenticator.authenticate(f"Bearer {KEY}")
    assert KEY not in repr(vars(authenticator)) + repr(principal)
    assert principal.key_id == KeyAuthenticator(KEY).authenticate(f"Bearer {KEY}").key_id
    assert principal.key_id != KeyAuthenticator(KEY + "x").authenticate(f"Bearer {KEY}x").key_id


def test_a_new_key_is_made_once(tmp_path: Path) -> None:
    """Only its owner may read it, and a second start leaves it as it is."""
    path = tmp_path / "deep" / "dev.key"
    assert ensure_key(path)
    key = read_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert not ensure_key(path)
    assert read_key(path) == key
    assert KeyAuthenticator(key).authenticate(f"Bearer {key}").key_id


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "shorter than"),
        (b"short\n", "shorter than"),
        (b"one-key-of-enough-length\nanother-one\n", "one line"),
        (b"\xff\xfe a key that is no text", "ASCII"),
        ("schlüssel-mit-umlaut-darin".encode(), "ASCII"),
        (b"a key with a \x00 in its middle", "printable"),
        (b"x" * 2000, "one line"),
    ],
)
def test_a_malformed_key_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """With its path and advice, and never its content."""
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(StartupFault, match=message) as raised:
        read_key(path)
    assert str(path) in str(raised.value)
    assert "enough-length" not in str(raised.value)


@pytest.mark.parametrize("place", ["none", "."])
def test_a_key_file_that_cannot_be_read_is_refused(tmp_path: Path, place: str) -> None:
    """Missing, or a folder."""
    with pytest.raises(StartupFault, match="JUBAKO__AUTHENTICATION__KEY_FILE"):
        read_key(tmp_path / place)


@pytest.mark.parametrize(("mode", "refused"), [(0o600, False), (0o444, False), (0o666, True), (0o602, True)])
def test_a_key_file_that_all_may_write_is_refused(tmp_path: Path, mode: int, *, refused: bool) -> None:
    """Readable by all is how secrets are often mounted; writable by all is how they are replaced."""
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(mode)
    if not refused:
        assert read_key(path) == KEY
        return
    with pytest.raises(StartupFault, match="chmod 600"):
        read_key(path)


def test_a_key_that_cannot_be_made_is_a_fault(tmp_path: Path) -> None:
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupFault, match="cannot create"):
        ensure_key(tmp_path / "file" / "dev.key")
