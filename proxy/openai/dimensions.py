"""Embeddings of fewer dimensions than the model has, which its child does not cut. Pure."""

import base64
import struct
from collections.abc import Sequence

import msgspec

from proxy.forward import understood
from proxy.vectors import unit_vector

AS_NUMBERS = b'"encoding_format":"float"'
"""What the child is told, whatever the caller wants."""

_Members = dict[str, msgspec.Raw]
_MEMBERS = msgspec.json.Decoder(_Members)
_ROWS = msgspec.json.Decoder(list[_Members])
_VECTOR = msgspec.json.Decoder(list[float])


def shortened(reply: bytes, dimensions: int, *, as_base64: bool, socket_path: str) -> bytes:
    """The child's reply with each vector's first `dimensions`, of length 1 again.

    Raises UpstreamBroken for what is no such reply.
    """
    members = understood(reply, _MEMBERS, socket_path=socket_path)
    rows = understood(bytes(members.get("data", b"")), _ROWS, socket_path=socket_path)
    told: list[dict[str, object]] = []
    for row in rows:
        told_vector = bytes(row.get("embedding", b""))
        vector = understood(told_vector, _VECTOR, socket_path=socket_path)
        cut = unit_vector(vector, dimensions)
        told.append({**row, "embedding": _packed(cut) if as_base64 else cut})
    return msgspec.json.encode({**members, "data": told})


def _packed(vector: Sequence[float]) -> str:
    """Little-endian 32-bit numbers, as OpenAI packs them."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
