"""Images in a request: data URLs only, measured by their headers, never fetched and never decoded here.

Knows base64 and the headers of four formats; knows nothing of messages or of what a model sees in an image.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import io
import re
import warnings
from dataclasses import dataclass

from jubako.boundary.reasons import too_many, unsupported
from jubako.errors import InvalidRequest
from jubako.vocabulary import Limits

_DATA_URL = re.compile(r"data:image/(png|jpeg|webp|gif);base64,")
_FORMATS = {"png": ("PNG",), "jpeg": ("JPEG", "MPO"), "webp": ("WEBP",), "gif": ("GIF",)}
"""A photograph with several frames is MPO to Pillow, and JPEG to everybody else."""


@dataclass(frozen=True, slots=True)
class Image:
    """What an image costs, and the name under which the engine may keep what it made of it."""

    pixels: int
    cache_key: str


def measure(url: str, limits: Limits, *, salt: str, param: str) -> Image:
    """Check one data URL; raises `InvalidRequest`.

    The cache key is a keyed digest of the content: the same image of one tenant has one key, and no two tenants ever
    share one.
    """
    start = _DATA_URL.match(url)
    if start is None:
        # One message for every other scheme, type and encoding: nothing is fetched, and nothing is guessed.
        raise unsupported(param, "Only data: URLs are taken: data:image/png, jpeg, webp or gif, followed by ;base64,")
    encoded_bytes = len(url) - start.end()
    if encoded_bytes * 3 // 4 - 2 > limits.image_bytes:
        raise too_many(param, "bytes of an image", limits.image_bytes, encoded_bytes * 3 // 4)
    try:
        content = base64.b64decode(url[start.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(f"{param}: The image is not valid base64.", param=param) from None
    if len(content) > limits.image_bytes:
        raise too_many(param, "bytes of an image", limits.image_bytes, len(content))
    pixels = _pixels(content, start.group(1), param)
    if pixels > limits.image_pixels:
        raise too_many(param, "pixels of an image", limits.image_pixels, pixels)
    digest = hmac.new(salt.encode(), hashlib.sha256(content).digest(), hashlib.sha256)
    return Image(pixels, digest.hexdigest())


def _pixels(content: bytes, kind: str, param: str) -> int:
    """Width times height as the header has it; opening a file with Pillow reads no pixels."""
    from PIL import Image as Pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warning of large images: our own limit is the lower one
            with Pillow.open(io.BytesIO(content), formats=_FORMATS[kind]) as image:
                width, height = image.size
    except Exception:  # noqa: BLE001 - a parser of hostile bytes: whatever it raises means the same
        width = height = 0
    if width < 1 or height < 1:
        raise InvalidRequest(f"{param}: The image's header is not that of a {kind} image.", param=param)
    return width * height
