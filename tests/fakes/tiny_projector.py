"""A vision projector that the real engine loads beside a model, all of it zeros, and a picture."""

import struct
import zlib
from pathlib import Path

from tests.fakes.gguf_writer import Hole, Value, file_size, gguf_header

_WIDTH, _N_FF, _IMAGE, _PATCH = 32, 64, 28, 14
_N_PATCHES = (_IMAGE // _PATCH) ** 2
_LAYERS = range(2)  # LLaVA takes the last but one


def write_projector(path: Path, *, n_embd: int) -> Path:
    """A small ViT and a perceptron into a text model's width, as LLaVA's."""
    holes = [Hole(name, shape) for name, shape in _tensors(n_embd).items()]
    header = gguf_header(_pairs(n_embd), holes)
    path.write_bytes(header.ljust(file_size(header, holes), b"\0"))
    return path


def png(width: int = 8, height: int = 8) -> bytes:
    """A plain picture."""
    rows = b"".join(b"\0" + b"\x20\x80\xe0" * width for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _tensors(n_text: int) -> dict[str, tuple[int, ...]]:
    e = _WIDTH
    linear = {
        f"v.blk.{i}.{part}": widths
        for i in _LAYERS
        for part, widths in {
            **{f"attn_{part}": (e, e) for part in ("q", "k", "v", "out")},
            "ffn_up": (e, _N_FF), "ffn_down": (_N_FF, e),
        }.items()
    } | {"mm.0": (e, n_text), "mm.2": (n_text, n_text)}  # fmt: skip
    norms = ["v.pre_ln", *(f"v.blk.{i}.ln{n}" for i in _LAYERS for n in (1, 2))]
    return {
        "v.class_embd": (e,),
        "v.patch_embd.weight": (_PATCH, _PATCH, 3, e),
        "v.position_embd.weight": (e, _N_PATCHES + 1),
        **{f"{name}.weight": shape for name, shape in linear.items()},
        **{f"{name}.bias": shape[1:] for name, shape in linear.items()},
        **{f"{name}.{kind}": (e,) for name in norms for kind in ("weight", "bias")},
    }


def _pairs(n_text: int) -> dict[str, Value]:
    return {
        "general.architecture": "clip",
        "clip.projector_type": "mlp",
        "clip.has_vision_encoder": True,
        "clip.use_gelu": True,
        "clip.vision.image_size": _IMAGE,
        "clip.vision.patch_size": _PATCH,
        "clip.vision.embedding_length": _WIDTH,
        "clip.vision.feed_forward_length": _N_FF,
        "clip.vision.block_count": len(_LAYERS),
        "clip.vision.projection_dim": n_text,
        "clip.vision.attention.head_count": 2,
        "clip.vision.attention.layer_norm_epsilon": 1e-5,
        "clip.vision.image_mean": [0.5, 0.5, 0.5],
        "clip.vision.image_std": [0.5, 0.5, 0.5],
    }
