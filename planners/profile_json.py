"""A HardwareProfile as JSON and back: what `inferenceosctl profile --record` writes.

Version 1. Unknown is null. A file comes from anywhere, so nothing in it is believed: sizes, counts,
texts and numbers are bounded, keys that this version does not know are refused by name.
"""

import json
from typing import Any

from msgspec import Struct, to_builtins

from planners.errors import PlanError
from planners.hardware import (
    HOST,
    Device,
    DeviceId,
    DeviceKind,
    HardwareProfile,
    Host,
    Note,
    NoteKind,
    NumaNode,
    Storage,
)

FORMAT = "inferenceosd-hardware"
VERSION = 1
MAX_CHARS = 256 << 10  # eight cards on two nodes take 6 KiB
_MOST_BYTES = 1 << 56
_MOST_RATE = 1e18
_MOST_ITEMS = 128
_MOST_TEXT = 500


class BadProfile(PlanError):
    """A text that is no recorded hardware profile."""

    def __init__(self, where: str, why: str) -> None:
        self.where = where
        super().__init__(f"no hardware profile: {where} {why}" if where else why)


class RecordedProfile(Struct, frozen=True):
    """A profile and where it comes from."""

    origin: str
    """One sentence: recorded where, or built from which documents and so synthetic."""
    hardware: HardwareProfile


def encode_profile(recorded: RecordedProfile) -> str:
    """The profile as indented JSON that `decode_profile` reads.

    What is missing now is left out, and notes, which quote drivers and engines, are cut to bounds.
    """
    hardware = to_builtins(recorded.hardware)
    del hardware["absent"]
    hardware["notes"] = [_noted(note) for note in recorded.hardware.notes[:_MOST_ITEMS]]
    head = {"format": FORMAT, "version": VERSION, "origin": recorded.origin}
    return json.dumps({**head, **hardware}, indent=2, ensure_ascii=False) + "\n"


def decode_profile(text: str) -> RecordedProfile:
    """The profile in `text`. Raises BadProfile, which names the first thing that is wrong."""
    if len(text) > MAX_CHARS:
        raise BadProfile("the text", f"is longer than {MAX_CHARS} characters")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise BadProfile("the text", f"is no JSON: {exc}") from exc
    top = _Fields(found, "the profile")
    if top.take("format", None) != FORMAT:
        raise BadProfile("format", f"must be {FORMAT!r}")
    if (version := top.take("version", None)) != VERSION or isinstance(version, bool):
        raise BadProfile("version", f"must be {VERSION}; another inferenceosd wrote it")
    recorded = RecordedProfile(
        origin=top.text("origin"),
        hardware=HardwareProfile(
            host=_host(_Fields(top.take("host", None), "host")),
            devices=tuple(_device(each) for each in top.objects("devices")),
            notes=tuple(_note(each) for each in top.objects("notes")),
            storage=tuple(_storage(each) for each in top.objects("storage")),
        ),
    )
    top.end()
    _refuse_twins(recorded.hardware)
    return recorded


def _refuse_twins(hardware: HardwareProfile) -> None:
    ids = [device.device_id for device in hardware.devices]
    for index, device_id in enumerate(ids):
        if device_id == HOST:
            raise BadProfile(f"devices[{index}].device_id", f"{HOST!r} is the host's memory")
        if device_id in ids[:index]:
            raise BadProfile(f"devices[{index}].device_id", f"{device_id!r} is there twice")


def _host(fields: "_Fields") -> Host:
    total_bytes = fields.whole("total_bytes")
    host = Host(
        total_bytes=total_bytes,
        available_bytes=fields.whole("available_bytes", most=total_bytes),
        cgroup_limit_bytes=fields.maybe_whole("cgroup_limit_bytes"),
        n_cores=fields.whole("n_cores", least=1, most=1 << 16),
        n_physical_cores=fields.whole("n_physical_cores", least=1, most=1 << 16),
        cpu_name=fields.text("cpu_name"),
        limit_bytes=fields.maybe_whole("limit_bytes"),
        reserve_bytes=fields.maybe_whole("reserve_bytes") or 0,
        psi_some_avg10=fields.maybe_rate("psi_some_avg10", least=0),
        numa_nodes=tuple(_node(each) for each in fields.objects("numa_nodes")),
        bandwidth_bytes_per_s=fields.maybe_rate("bandwidth_bytes_per_s"),
        wake_s=fields.maybe_rate("wake_s", least=1e-9, most=1.0),
        has_tiles=fields.flag("has_tiles", default=False),
    )
    fields.end()
    return host


def _node(fields: "_Fields") -> NumaNode:
    node = NumaNode(
        node=fields.whole("node", most=1 << 16),
        total_bytes=fields.whole("total_bytes"),
        n_cpus=fields.whole("n_cpus", most=1 << 16),
    )
    fields.end()
    return node


def _noted(note: Note) -> dict[str, str | None]:
    return {"kind": note.kind.value, "text": _bounded(note.text), "device_id": note.device_id}


def _note(fields: "_Fields") -> Note:
    kind = fields.text("kind")
    if kind not in {each.value for each in NoteKind}:
        raise BadProfile(fields.at("kind"), f"{kind!r} is no kind of note")
    device_id = fields.maybe_text("device_id")
    note = Note(
        NoteKind(kind), fields.text("text"), None if device_id is None else DeviceId(device_id)
    )
    fields.end()
    return note


def _storage(fields: "_Fields") -> Storage:
    storage = Storage(
        folder=fields.text("folder"),
        free_bytes=fields.maybe_whole("free_bytes"),
        read_bytes_per_s=fields.maybe_rate("read_bytes_per_s"),
    )
    fields.end()
    return storage


def _device(fields: "_Fields") -> Device:
    kind = fields.text("kind")
    if kind not in {each.value for each in DeviceKind}:
        raise BadProfile(fields.at("kind"), f"{kind!r} is no kind of device")
    device = Device(
        device_id=DeviceId(fields.text("device_id")),
        kind=DeviceKind(kind),
        name=fields.text("name"),
        engine_names=tuple(fields.pairs("engine_names")),
        total_bytes=fields.maybe_whole("total_bytes"),
        free_bytes=fields.maybe_whole("free_bytes"),
        limit_bytes=fields.maybe_whole("limit_bytes"),
        reserve_bytes=fields.maybe_whole("reserve_bytes") or 0,
        use=fields.flag("use", default=True),
        is_carved_out=fields.flag("is_carved_out", default=False),
        bandwidth_bytes_per_s=fields.maybe_rate("bandwidth_bytes_per_s"),
        link_bytes_per_s=fields.maybe_rate("link_bytes_per_s"),
        compute_flops=fields.maybe_rate("compute_flops"),
        numa_node=fields.maybe_whole("numa_node"),
    )
    fields.end()
    return device


class _Fields:
    """One JSON object, whose fields are taken by name and checked; what is left over is refused."""

    def __init__(self, found: object, where: str) -> None:
        if not isinstance(found, dict):
            raise BadProfile(where, "must be an object")
        self._left: dict[str, Any] = dict(found)
        self._where = where

    def at(self, name: str) -> str:
        """Where a field stands, for people."""
        return name if self._where == "the profile" else f"{self._where}.{name}"

    def take(self, name: str, default: object) -> object:
        """Its value as found."""
        return self._left.pop(name, default)

    def end(self) -> None:
        """All was taken."""
        for name in sorted(self._left):
            raise BadProfile(self.at(name[:_MOST_TEXT]), "is not known")

    def text(self, name: str) -> str:
        """A text that can be shown on a terminal."""
        return _text(self.take(name, None), self.at(name))

    def maybe_text(self, name: str) -> str | None:
        """Likewise, or None where it is null or missing."""
        found = self.take(name, None)
        return None if found is None else _text(found, self.at(name))

    def whole(self, name: str, *, least: int = 0, most: int = _MOST_BYTES) -> int:
        """A whole number within bounds."""
        found = self.take(name, None)
        if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
            raise BadProfile(self.at(name), f"must be a whole number from {least} to {most}")
        return found

    def maybe_whole(self, name: str) -> int | None:
        """Likewise, or None where it is null or missing."""
        if self._left.get(name) is None:
            self._left.pop(name, None)
            return None
        return self.whole(name)

    def maybe_rate(self, name: str, *, least: float = 1, most: float = _MOST_RATE) -> float | None:
        """A number within bounds, or None where it is null or missing."""
        found = self.take(name, None)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise BadProfile(self.at(name), "must be a number")
        if not least <= found <= most:  # NaN and integers of any length compare too
            raise BadProfile(self.at(name), f"must be from {least:g} to {most:g}")
        return float(found)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        found = self.take(name, default)
        if not isinstance(found, bool):
            raise BadProfile(self.at(name), "must be true or false")
        return found

    def objects(self, name: str) -> "list[_Fields]":
        """A list of objects; [] where it is missing."""
        return [_Fields(each, f"{self.at(name)}[{i}]") for i, each in enumerate(self._items(name))]

    def pairs(self, name: str) -> list[tuple[str, str]]:
        """A list of pairs of texts; [] where it is missing."""
        found = []
        for i, each in enumerate(self._items(name)):
            where = f"{self.at(name)}[{i}]"
            if not isinstance(each, list) or len(each) != 2:
                raise BadProfile(where, "must be a pair: backend, name")
            found.append((_text(each[0], where), _text(each[1], where)))
        return found

    def _items(self, name: str) -> list[object]:
        found = self.take(name, [])
        if not isinstance(found, list) or len(found) > _MOST_ITEMS:
            raise BadProfile(self.at(name), f"must be a list of at most {_MOST_ITEMS}")
        return found


def _bounded(note: str) -> str:
    """`note` as `_text` takes it."""
    kept = note if len(note) <= _MOST_TEXT else f"{note[: _MOST_TEXT - 1]}…"
    return "".join(c if c.isprintable() else " " for c in kept)


def _text(found: object, where: str) -> str:
    if not isinstance(found, str) or len(found) > _MOST_TEXT or not found.isprintable():
        raise BadProfile(where, f"must be a printable text of at most {_MOST_TEXT} characters")
    return found
