"""Pictures for engines, made without an image library: PNG (ISO/IEC 15948) by zlib, as data URLs."""

from __future__ import annotations

import base64
import random
import struct
import zlib


def png(width: int, height: int, seed: int = 0) -> bytes:
    """A picture of random colours, eight by eight pixels each."""
    rng = random.Random(seed)
    rows = []
    for y in range(height):
        if y % 8 == 0:
            cells = [rng.randbytes(3) for _ in range((width + 7) // 8)]
            line = b"\0" + b"".join(cell * 8 for cell in cells)[: 3 * width]
        rows.append(line)
    return png_of(width, height, zlib.compress(b"".join(rows)))


def png_of(width: int, height: int, content: bytes) -> bytes:
    """A PNG whose header says this size, whatever its compressed content is."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", content) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def data_url(picture: bytes) -> str:
    """The picture as it goes over the wire."""
    return "data:image/png;base64," + base64.b64encode(picture).decode()
