"""Why a plan is what it is: a value per decision, so that whoever shows it goes by its kind. Pure.

A concession, something given up to make the rest fit, carries its price.
"""

from enum import Enum

from msgspec import Struct

from planners.hardware import DeviceId


class ReasonKind(Enum):
    """What a reason is about."""

    FILE = "file"  # what the model's header lacks or gets wrong
    CONTEXT_CUT = "context-cut"  # more was asked for than the model was trained for
    ENGINE = "engine"  # another one than the first by order
    CACHE_TYPE = "cache-type"  # of the KV cache: other than asked for, or conceded
    DEVICE_UNUSED = "device-unused"
    CONTEXT = "context"
    LAYERS = "layers"  # on one device
    EXPERTS_ON_HOST = "experts-on-host"
    LAYERS_ON_HOST = "layers-on-host"
    HOST_MEMORY = "host-memory"
    BATCH = "batch"
    THREADS = "threads"
    WINDOWS = "windows"  # sliding ones: kept whole or not
    PROMPT_CACHE = "prompt-cache"
    SPEED = "speed"
    DRY_RUN = "dry-run"  # what the engine itself told of a launch, or is still to tell
    MEASURED = "measured"  # what launches and requests here taught
    OUT_OF_MEMORY = "out-of-memory"  # what a launch that died of memory taught
    FLAGS = "flags"  # of the configuration that overrule the plan
    KEPT_ON_HOST = "kept-on-host"  # weights that a device cannot hold or compute with


class Unit(Enum):
    """What a price is counted in."""

    DECODE = "decode_tokens_per_s"
    PROMPT = "prompt_tokens_per_s"
    CONTEXT = "context_tokens"


class Price(Struct, frozen=True):
    """What a concession costs: so much is had, and so much would be without it."""

    unit: Unit
    had: float
    would_be: float


class Reason(Struct, frozen=True):
    """One decision, as a sentence with its numbers and as the facts to go by."""

    kind: ReasonKind
    text: str
    device_id: DeviceId | None = None
    """The device it is about; None where it is about none, or about all."""
    because: str = ""
    """Of a device that is not used: why, where `text` names the device too."""
    price: Price | None = None
    """Of a concession; None where nothing was given up, or what was has no number."""

    def __str__(self) -> str:
        return self.text


def unused(device_id: DeviceId, name: str, because: str) -> Reason:
    """A device that is left alone."""
    text = f"{name} is not used: {because}"
    return Reason(ReasonKind.DEVICE_UNUSED, text, device_id, because)
