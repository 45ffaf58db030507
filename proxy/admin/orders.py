"""What an order came to: load, unload, retry, reload, forget."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadReport:
    """A model that is loaded."""

    model: str
    load_s: float
    """0.0 where it was loaded before."""


@dataclass(frozen=True, slots=True)
class UnloadReport:
    """A model that is not loaded, or will not be once its requests are done."""

    model: str
    was_loaded: bool
    is_pinned: bool
    """True where it is loaded again by itself."""


@dataclass(frozen=True, slots=True)
class RetryReport:
    """A model whose failures are forgotten; its next request tries it anew."""

    model: str
    had_failed: bool


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """What reading the configuration again changed."""

    changed: tuple[str, ...]
    """Each a sentence: "models.keep_alive is 10m now", "qwen restarts with context 8192"."""
    needs_restart: tuple[str, ...]
    """Changed settings that only a new daemon takes up."""


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """What was learned and is forgotten."""

    what: str
    """A model, a device, or "all"."""
    launches: int
    requests: int
    contexts: int = 0
    """Models that callers had made grow."""
