"""What a new configuration changes, in words. Pure."""

from collections.abc import Iterable, Iterator, Mapping

from inferenceosd.settings.config import Config
from planners.model import ModelId
from planners.moving.changes import in_use
from planners.settings import FleetSettings
from planners.view import InstanceState, Observed

_SECTIONS = {
    "max_body_bytes": "server.max_body",
    "keep_alive_comments_s": "server.keep_alive_comments",
    "origins": "server.origins",
    "serves_metrics": "server.metrics",
    "ui": "server.ui",
    "ollama_strict": "server.ollama_strict",
    "management": "server.manage",
    "model_dirs": "models.dirs",
    "places": "models.find",
    "model_defaults": "[models]",
    "placement": "[devices], [memory], [models], [rpc] or [engine]",
    "backends": "[backends]",
    "log": "[log]",
    "ollama_version": "ollama.version",
}
_FLEET_ELSEWHERE = {
    "max_loaded": "models.max_loaded",
    "max_waiting": "models.max_waiting",
    "context_policy": "models.context_policy",
    "groups": "[[group]]",
    "callers": "[[caller]]",
}
"""Of FleetSettings, what is written in another table than [fleet]."""
_ONLY_AT_START = {
    "listen": "server.listen",
    "is_insecure": "server.insecure",
    "keys_path": "server.keys",
    "tls": "server.tls_cert, server.tls_key",
    "crowd": "server.max_connections, server.max_connections_per_address",
    "stall_s": "server.stall_timeout",
    "admin_socket": "admin.socket",
    "state_dir": "state.dir",
    "runtime_dir": "runtime.dir",
}


def changed_settings(before: Config, after: Config) -> tuple[str, ...]:
    """Each difference that a running daemon takes up, a sentence each."""
    sections = [
        f"{_SECTIONS[name]} changed"
        for name in Config.__struct_fields__
        if name in _SECTIONS and getattr(before, name) != getattr(after, name)
    ]
    fleet = (f"{key} changed" for key in _changed_fleet(before.fleet, after.fleet))
    return (*sections, *dict.fromkeys(fleet), *_changed_models(before, after))


def needs_restart(before: Config, after: Config) -> tuple[str, ...]:
    """Changed settings that only a new daemon takes up, by their keys."""
    return tuple(
        key for name, key in _ONLY_AT_START.items() if getattr(before, name) != getattr(after, name)
    )


def concerned_models(
    running: Iterable[Observed], launch_keys: Mapping[ModelId, str]
) -> tuple[str, ...]:
    """What becomes of instances because of what is wanted now, by model, a sentence each."""
    return tuple(
        f"{seen.model_id} {_what_becomes(seen, is_offered=seen.model_id in launch_keys)}"
        for seen in running
        if launch_keys.get(seen.model_id) != seen.launch_key
    )


def _what_becomes(seen: Observed, *, is_offered: bool) -> str:
    if not is_offered:
        return "is drained, then is gone"
    if seen.state is InstanceState.READY and in_use(seen):
        return "moves to a launch as it is wanted now; its streams go on"
    return "is stopped, and starts anew: at once if pinned, else on its next request"


def _changed_fleet(before: FleetSettings, after: FleetSettings) -> Iterator[str]:
    for name in FleetSettings.__struct_fields__:
        if getattr(before, name) != getattr(after, name):
            yield _FLEET_ELSEWHERE.get(name, "[fleet]")


def _changed_models(before: Config, after: Config) -> list[str]:
    was = {rule.name: rule for rule in before.models}
    now = {rule.name: rule for rule in after.models}
    words = {(False, True): "added", (True, False): "removed", (True, True): "changed"}
    return [
        f"model {name} {words[name in was, name in now]}"
        for name in (*now, *(name for name in was if name not in now))
        if was.get(name) != now.get(name)
    ]
