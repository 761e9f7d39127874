"""Messages between a sandbox and its parent: four bytes of length, then fields, each four bytes of length and its bytes.

Nothing in it can be made to run anything: the parent reads what comes out of a sandbox.
"""

from __future__ import annotations

__all__ = ["pack", "pack_fields", "pairs", "unpack"]


def pack_fields(*fields: bytes) -> bytes:
    """Return fields as one."""
    return b"".join(part for field in fields for part in (len(field).to_bytes(4, "big"), field))


def pack(*fields: bytes) -> bytes:
    """Return a message."""
    body = pack_fields(*fields)
    return len(body).to_bytes(4, "big") + body


def unpack(body: bytes) -> list[bytes]:
    """Return the fields of a message, without its length; what is no such thing comes out as nonsense, and bounded."""
    fields: list[bytes] = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        fields.append(body[at + 4 : at + 4 + size])
        at += 4 + size
    return fields


def pairs(fields: list[bytes]) -> dict[bytes, bytes]:
    """Return names and values that follow each other."""
    return {fields[at]: fields[at + 1] for at in range(0, len(fields) - 1, 2)}
