"""Random command lines of llama-server: where a model lies, how large it is, what it keeps."""

from collections.abc import Iterator, Sequence
from random import Random

from bench.planner.engine import TWINS
from bench.planner.shapes import ENCODERS
from tests.fakes.tiny_models import TinyModel

_CACHES = ("f16", "f16", "f16", "q8_0", "q8_0", "q4_0", "bf16", "f32", "q5_1", "iq4_nl")


def random_flags(rng: Random, model: TinyModel, servers: Sequence[str]) -> tuple[str, ...]:
    """One launch of `model`, in the words of its command line."""
    return (*_placed(rng, model, servers), *_sized(rng, model), *_cached(rng, model))


def _placed(rng: Random, model: TinyModel, servers: Sequence[str]) -> Iterator[str]:
    n_all = model.n_layer + 1
    kinds = ("full", "partial", "remote", "twins", "processor")
    where = rng.choices(kinds, (4, 3, 3, 2, 1))[0]
    if where == "processor":
        yield from ("--device", "none")
        return
    layers = rng.randint(0, n_all) if where == "partial" or rng.random() < 0.3 else 99
    yield from ("-ngl", str(layers))
    if where == "remote":
        count = rng.randint(1, len(servers))
        names = [f"RPC{i}" for i in range(count)]
        is_alone = rng.random() < 0.3  # without this machine's device, its processor repacks
        shares = [str(rng.choice((0, 1, 1, 2, 3))) for _ in range(count + (not is_alone))]
        shares[rng.randrange(len(shares))] = "2"
        yield from ("--rpc", ",".join(servers[:count]), "-ts", ",".join(shares))
        if is_alone:
            yield from ("--device", ",".join(names))
    if where == "twins":
        names = [f"Vulkan{i}" for i in range(rng.choice((2, 2, TWINS)))]
        shares = [str(rng.choice((1, 1, 2, 3))) for _ in names]
        yield from ("--device", ",".join(names), "-ts", ",".join(shares))
    if any("expert_count" in key for key in model.numbers) and rng.random() < 0.4:
        yield from (("-cmoe",) if rng.random() < 0.3 else ("-ncmoe", str(rng.randint(1, n_all))))
    if rng.random() < 0.06:
        yield from ("-ot", rng.choice(("ffn_down=CPU", r"blk\.[02]\.ffn_.*=CPU", "attn_k=CPU")))
    if rng.random() < 0.1:
        yield "-nkvo"
    if rng.random() < 0.05:
        yield "--no-op-offload"


def _sized(rng: Random, model: TinyModel) -> Iterator[str]:
    yield from ("-c", str(rng.choice((300, 512, 1024, 2048, 3000, 4096, 8192, 16384))))
    slots = rng.choice((0, 1, 1, 2, 3, 4, 5, 8))
    is_encoder = model.architecture in ENCODERS
    if slots:
        slots = rng.choice((1, 2, 4)) if is_encoder else slots
        yield from ("-np", str(slots), rng.choice(("--no-kv-unified", "--kv-unified")))
    batch = rng.choice((0, 64, 128, 200, 512, 1024))
    if batch and not (is_encoder and batch == 200):
        yield from ("-ub", str(batch))
    if rng.random() < 0.3:
        yield from ("-b", str(rng.choice((32, 64, 256, 512, 4096))))
    if not model.numbers.get("attention.causal", True) or rng.random() < 0.08:
        yield "--embedding"


def _cached(rng: Random, model: TinyModel) -> Iterator[str]:
    flash = rng.choice(("on", "off", "off", "", ""))
    if flash:
        yield from ("-fa", flash)
    if rng.random() < 0.4:
        yield from ("-ctk", rng.choice(_CACHES))
        plain = [name for name in _CACHES if name in ("f16", "bf16", "f32")]
        yield from ("-ctv", rng.choice(plain if flash == "off" else _CACHES))
    if "attention.sliding_window" in model.numbers and rng.random() < 0.2:
        yield "--swa-full"
    if rng.random() < 0.25:
        yield "--no-mmap"
    if rng.random() < 0.1:
        yield "--no-repack"
