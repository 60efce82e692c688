"""Images: measured by their headers, never fetched, named by the server."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from jubako.boundary import images, limits
from jubako.errors import InvalidRequest
from jubako.vocabulary import Route
from tests.boundary_limits import configured, limited
from tests.hostile import data_url, image, png

KINDS = {"png": "PNG", "jpeg": "JPEG", "webp": "WEBP", "gif": "GIF"}


def picture(kind: str, width: int = 20, height: int = 10) -> bytes:
    """A real image."""
    held = io.BytesIO()
    Image.new("RGB", (width, height)).save(held, KINDS[kind])
    return held.getvalue()


def measure(url: str, *, salt: str = "salt", **changes: int) -> images.Image:
    """What is found out about one image."""
    return images.measure(url, limited(**changes), salt=salt, param="url")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_size_is_read_from_the_header(kind: str) -> None:
    """Of each kind that is taken."""
    assert measure(data_url(picture(kind), f"image/{kind}")).pixels == 200


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_cut_file_is_refused_or_measured(kind: str) -> None:
    """Wherever it is cut."""
    whole = picture(kind)
    for length in range(len(whole)):
        try:
            assert measure(data_url(whole[:length], f"image/{kind}")).pixels == 200
        except InvalidRequest:
            assert length < len(whole)


def test_pixels_are_limited_before_any_is_decoded() -> None:
    """A file of a few bytes can claim any size."""
    assert measure(data_url(png(64, 64)), image_pixels=4096).pixels == 4096
    with pytest.raises(InvalidRequest, match="at most 4096 pixels of an image may be sent; found 4160"):
        measure(data_url(png(65, 64)), image_pixels=4096)
    with pytest.raises(InvalidRequest):
        measure(data_url(png(2**31 - 1, 2**31 - 1)))


def test_bytes_are_limited_before_they_are_decoded() -> None:
    """At the limit, and one above."""
    content = picture("png")
    assert measure(data_url(content), image_bytes=len(content)).pixels == 200
    for less in (1, 2, 3, 10):
        with pytest.raises(InvalidRequest, match="bytes of an image"):
            measure(data_url(content), image_bytes=len(content) - less)


@given(st.binary(max_size=200), st.sampled_from(sorted(KINDS)))
def test_no_bytes_break_the_reading_of_a_header(content: bytes, kind: str) -> None:
    """They are measured or refused."""
    magic = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "webp": b"RIFF\0\0\0\0WEBPVP8 ", "gif": b"GIF89a"}
    for start in (b"", magic[kind]):
        try:
            assert measure(data_url(start + content, f"image/{kind}")).pixels > 0
        except InvalidRequest as refused:
            assert refused.param == "url"  # noqa: PT017 - either is right


def test_two_tenants_share_no_name_of_an_image() -> None:
    """The name is the key of the engine's media cache: equal for one tenant's equal images, and for nothing else."""
    one, other = data_url(picture("png")), data_url(picture("png", 21))
    assert measure(one).cache_key == measure(one).cache_key
    assert len({measure(url, salt=salt).cache_key for url in (one, other) for salt in ("a", "b")}) == 4


def test_a_caller_does_not_name_an_image() -> None:
    """What it sends as `uuid` is replaced."""
    url = data_url(picture("png"))
    parts = []
    for more in ({}, {"uuid": "another's"}, {"uuid": None}):
        body, _ = limits.check(Route.CHAT, {"messages": image(url, **more)}, configured(), media_salt="a")
        parts += body["messages"][0]["content"]
    assert parts[0] == parts[1] == parts[2]
    assert parts[0] == {"type": "image_url", "image_url": {"url": url}, "uuid": measure(url, salt="a").cache_key}


def test_images_are_counted_over_all_messages() -> None:
    """At the limit, and one above."""
    one = image(data_url(picture("png")))
    small = limited(images=3)
    _, demand = limits.check(Route.CHAT, {"messages": one * 3}, small, media_salt="a")
    assert demand.prompt_tokens >= 3
    with pytest.raises(InvalidRequest, match="at most 3 images may be sent; found 4"):
        limits.check(Route.CHAT, {"messages": one * 4}, small, media_salt="a")


@pytest.mark.parametrize("url", ["http://localhost/a.png", "https://x/", "file:///a", "ftp://x/", "blob:x", ""])
def test_no_url_is_ever_fetched(url: str) -> None:
    """Every other scheme is refused by what is taken instead."""
    with pytest.raises(InvalidRequest, match="Only data: URLs") as raised:
        measure(url)
    assert raised.value.code == "unsupported_value"
