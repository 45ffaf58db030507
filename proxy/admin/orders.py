"""What an order came to: load, unload, retry, reload, forget."""

from msgspec import Struct


class LoadReport(Struct, frozen=True):
    """A model that is loaded."""

    model: str
    load_s: float
    """0.0 where it was loaded before."""


class UnloadReport(Struct, frozen=True):
    """A model that is not loaded, or will not be once its requests are done."""

    model: str
    was_loaded: bool
    is_pinned: bool
    """True where it is loaded again by itself."""


class RetryReport(Struct, frozen=True):
    """A model whose failures are forgotten; its next request tries it anew."""

    model: str
    had_failed: bool


class ReloadReport(Struct, frozen=True):
    """What reading the configuration again changed."""

    changed: tuple[str, ...]
    """Each a sentence: "models.keep_alive is 10m now", "qwen restarts with context 8192"."""
    needs_restart: tuple[str, ...]
    """Changed settings that only a new daemon takes up."""


class ForgetReport(Struct, frozen=True):
    """What was learned and is forgotten."""

    what: str
    """A model, a device, or "all"."""
    launches: int
    requests: int
    contexts: int = 0
    """Models that callers had made grow."""
