"""What a user may have got wrong, each check one sentence and how to mend it. Pure.

The facts come from a running daemon where there is one, else from a look of our own
(inferenceosd.commands.checkup).
"""

from collections.abc import Iterator, Sequence
from enum import Enum

from msgspec import Struct

from planners.durations import format_duration
from planners.hardware import Device, DeviceKind, HardwareProfile, NoteKind
from planners.model import BrokenKind
from planners.sizes import GIB, MIB, format_size
from proxy.admin.status import StatusReport
from supervisor.devices.rules import ONE_SLICE, is_other_slice
from supervisor.drivers import Card, Drivers

LEAST_STATE_BYTES = 100 * MIB  # the journal's 100 000 events take half of it
LEAST_MODELS_BYTES = 5 * GIB  # an 8B model in four bits
SLOW_BYTES_PER_S = 200e6  # below it an 8B model loads for half a minute
HIGH_PRESSURE = 10.0  # percent of the last 10 s in which some task waited for memory
LITTLE_SHARE = 0.5  # a control group's limit below this share of the memory is worth a word
DAY_S = 24 * 3600.0
SHORT_S = 14 * DAY_S  # certbot renews a month before the end
_OPEN_DRIVERS = {"NVIDIA": "nvidia", "AMD": "amdgpu", "Intel": "i915"}
_BROKEN_REMEDIES = {
    BrokenKind.FILE: "replace or remove the file",
    BrokenKind.INCOMPLETE: "wait where it is being downloaded, else download it again",
    BrokenKind.UNREADABLE: "let the daemon read it, or remove it",
    BrokenKind.ABSENT: "put it there, let the daemon reach it, or mend the path in [[model]]",
    BrokenKind.RULE: "mend the name in [[model]], or give it a path; inferenceosctl models has all",
    BrokenKind.FOLDER: "make it, let the daemon read it, or name another in models.dirs",
}
_MISSING_DEVICE_REMEDY = (
    "see the checks of drivers below; if it is gone for good, set its use = false under [devices]"
)
_DRIVER_REMEDIES = {
    NoteKind.DRIVER: "install what is missing, or, in a container, pass the card in: --gpus all for"
    " NVIDIA's, --device /dev/dri for others",
    NoteKind.FAULT: "restart the machine; where that does not help, install the driver anew",
}
_RIGHT_DRIVERS = {"NVIDIA": ("nvidia",), "AMD": ("amdgpu",), "Intel": ("i915", "xe")}


class Verdict(Enum):
    """How a check came out."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"


class Check(Struct, frozen=True):
    """One thing looked at."""

    name: str
    verdict: Verdict
    sentence: str
    remedy: str = ""
    """What to do; "" where nothing need be done."""


class Disk(Struct, frozen=True):
    """What is free where something is kept."""

    purpose: str
    """"state" or "models"."""
    folder: str
    free_bytes: int | None
    """None where the folder cannot be read."""


class Facts(Struct, frozen=True):
    """All that the checks judge."""

    config_mistake: str | None
    socket_path: str
    status: StatusReport | None
    """Of the daemon, or made by ourselves where none runs (engines and broken files alone)."""
    is_running: bool
    version: str
    port_mistake: str | None
    """Why the address cannot be listened on, where no daemon of ours has it."""
    hardware: HardwareProfile | None
    hardware_mistake: str | None
    drivers: Drivers
    disks: tuple[Disk, ...]
    hiding: tuple[str, ...]
    """Variables that hide devices, as "NAME=value"."""
    suspended_s: float
    """Asleep since the machine booted."""
    now: float
    """UTC seconds."""
    strangers: tuple[str, ...] = ()
    """What `[[group]]` names and nothing on offer is called, half a sentence each."""


def checks(facts: Facts) -> tuple[Check, ...]:
    """Every check, in the order in which one would mend."""
    return (
        *_configuration(facts),
        *_daemon(facts),
        *_port(facts),
        *_lock(facts),
        *_engines(facts),
        *_drivers(facts),
        *_nodes(facts),
        *_vulkan(facts),
        *_devices(facts),
        *_memory(facts),
        *_models(facts),
        *_groups(facts),
        *_disks(facts),
        *_sleep(facts),
    )


def has_failed(found: Sequence[Check]) -> bool:
    """True when something must be mended."""
    return any(check.verdict is Verdict.FAIL for check in found)


def _pass(name: str, sentence: str) -> Check:
    return Check(name, Verdict.PASS, sentence)


def _warn(name: str, sentence: str, remedy: str = "") -> Check:
    return Check(name, Verdict.WARN, sentence, remedy)


def _fail(name: str, sentence: str, remedy: str) -> Check:
    return Check(name, Verdict.FAIL, sentence, remedy)


def _configuration(facts: Facts) -> Iterator[Check]:
    if facts.config_mistake is None:
        yield _pass("configuration", "it can be read, and every setting is right")
    else:
        yield _fail("configuration", facts.config_mistake, "mend that line; docs/config.md has all")


def _daemon(facts: Facts) -> Iterator[Check]:
    if not facts.is_running or facts.status is None:
        said = f"none answers on {facts.socket_path}"
        yield _warn("daemon", said, "start it: inferenceosd, or systemctl start inferenceosd")
        return
    daemon = facts.status.daemon
    if daemon.version != facts.version:
        said = f"it is version {daemon.version}, this inferenceosctl {facts.version}"
        yield _warn("daemon", said, "restart it: systemctl restart inferenceosd")
    else:
        yield _pass("daemon", f"version {daemon.version} runs as pid {daemon.pid}")
    for reason in facts.status.degraded:
        yield _fail("devices", f"DEGRADED: {reason}", _MISSING_DEVICE_REMEDY)


def _port(facts: Facts) -> Iterator[Check]:
    if facts.is_running and facts.status is not None:
        yield _pass("port", f"the daemon listens on {facts.status.daemon.listen}")
    elif facts.port_mistake is None:
        yield _pass("port", "it is free")
    else:
        yield _fail("port", facts.port_mistake, "end that program, or set server.listen")


def _lock(facts: Facts) -> Iterator[Check]:
    if facts.status is None or (lock := facts.status.daemon.lock) is None:
        return
    if lock.mistake is not None:
        yield _fail("lock", lock.mistake, "mend that; docs/security.md tells how keys are kept")
    elif lock.is_open:
        said = "other machines may use all models without an API key (--insecure)"
        yield _warn("lock", said, "inferenceosctl key add NAME, then leave --insecure out")
    elif lock.keys:
        yield _pass("lock", f"callers need an API key (keys: {lock.keys})")
    else:
        yield _pass("lock", "only this machine reaches the port, and needs no API key")
    if lock.tls_expires_at is not None:
        yield _certificate(lock.tls_expires_at - facts.now)


def _certificate(left_s: float) -> Check:
    remedy = "renew it; the daemon reads it again by itself"
    if left_s <= 0:
        return _fail("certificate", f"it ended {_days(-left_s)} ago: no client accepts it", remedy)
    if left_s < SHORT_S:
        return _warn("certificate", f"it ends in {_days(left_s)}", remedy)
    return _pass("certificate", f"it is good for {_days(left_s)}")


def _days(span_s: float) -> str:
    """Whole days, or the hours and minutes of a shorter span."""
    days = int(span_s // DAY_S)
    return f"{days} days" if days > 1 else format_duration(span_s // 60 * 60)


def _engines(facts: Facts) -> Iterator[Check]:
    if facts.status is None:
        return
    if not facts.status.daemon.has_tried_engines:
        yield _warn("engine", "every llama-server is still being tried", "ask again in a minute")
        return
    usable = [engine for engine in facts.status.engines if engine.refused is None]
    if usable:
        told = ", ".join(f"{engine.backend} ({engine.path})" for engine in usable)
        yield _pass("engine", f"decoding on this processor: {told}")
    else:
        remedy = "scripts/build_backends.sh cpu builds one for this processor"
        yield _fail("engine", "no llama-server decodes on this machine", remedy)
    for engine in facts.status.engines:
        if engine.refused is not None:
            remedy = "mend or remove it, or build another: scripts/build_backends.sh"
            yield _warn("engine", f"{engine.path} is refused: {engine.refused}", remedy)


def _drivers(facts: Facts) -> Iterator[Check]:
    cards = facts.drivers.cards
    if not cards:
        yield _pass("driver", "the PCI bus shows no card that would need one")
    for card in cards:
        yield _driver(card)
    notes = () if facts.hardware is None else facts.hardware.notes
    lends = any(card.driver not in (None, *_RIGHT_DRIVERS[card.vendor]) for card in cards)
    for note in notes:
        if note.kind in _DRIVER_REMEDIES:
            # Whose card is held by another driver may well do without its maker's library.
            tell = _warn if lends and note.kind is NoteKind.DRIVER else _fail
            yield tell("driver", note.text, _DRIVER_REMEDIES[note.kind])


def _driver(card: Card) -> Check:
    name, right = f"{card.vendor} card {card.address}", _RIGHT_DRIVERS[card.vendor]
    if card.driver in right:
        return _pass("driver", f"{name} is driven by {card.driver}")
    if card.driver is None:
        remedy = f"install it, or load it: modprobe {_OPEN_DRIVERS[card.vendor]}"
        return _fail("driver", f"{name} has no driver", remedy)
    remedy = f"let {' or '.join(right)} have it, unless it is meant for something else"
    return _warn("driver", f"{name} is held by {card.driver}", remedy)


def _nodes(facts: Facts) -> Iterator[Check]:
    nodes = facts.drivers.nodes
    shut = [node for node in nodes if not node.may_use]
    whose = "the daemon's user" if facts.is_running else "this user"
    for node in shut:
        remedy = f"usermod -aG {node.group} USER, then log in anew or restart the daemon"
        if not node.group:
            remedy = 'root alone may: a udev rule with GROUP="render", MODE="0660" lets others'
        yield _fail("permissions", f"{whose} may not use {node.path}", remedy)
    if nodes and not shut:
        yield _pass("permissions", f"{whose} may use {', '.join(node.path for node in nodes)}")
    paths = [node.path for node in nodes]
    driven = {card.driver for card in facts.drivers.cards}
    if driven & {"amdgpu", "i915", "xe"} and not any("/dri/" in path for path in paths):
        remedy = "in a container, pass --device /dev/dri"
        yield _fail("permissions", "a card is there, but /dev/dri is not", remedy)
    if "amdgpu" in driven and "/dev/kfd" not in paths:
        remedy = "in a container, pass --device /dev/kfd; Vulkan works without it"
        yield _warn("permissions", "/dev/kfd is missing: no HIP engine can use the card", remedy)


def _vulkan(facts: Facts) -> Iterator[Check]:
    if not any(card.vendor in ("AMD", "Intel") for card in facts.drivers.cards):
        return
    if not facts.drivers.has_vulkan_loader:
        yield _fail("library", "libvulkan.so.1 is not installed", "apt install libvulkan1")
    elif not facts.drivers.vulkan_drivers:
        yield _fail("library", "Vulkan has no driver", "apt install mesa-vulkan-drivers")
    else:
        yield _pass("library", f"Vulkan's drivers: {', '.join(facts.drivers.vulkan_drivers)}")


def _devices(facts: Facts) -> Iterator[Check]:
    if facts.hardware is None:
        why = facts.hardware_mistake or "the hardware was not read"
        yield _fail("devices", why, "mend the configuration first, or ask again")
        return
    usable = [d for d in facts.hardware.devices if d.use and d.engine_names]
    if usable:
        yield _pass("devices", f"engines can use {', '.join(device.name for device in usable)}")
    for device in facts.hardware.devices:
        if device.use and not device.engine_names:
            yield _unseen(device, facts)
    for told in facts.hiding:
        yield _warn(
            "devices", f"{told} hides devices from engines", "unset it if that is not meant"
        )


def _unseen(device: Device, facts: Facts) -> Check:
    if device.kind is not DeviceKind.REMOTE:
        said = f"{device.name} is there, but no engine sees it"
        devices = () if facts.hardware is None else facts.hardware.devices
        is_slice = is_other_slice(device, devices)
        return _warn("devices", said, ONE_SLICE if is_slice else _unseen_remedy(facts))
    notes = () if facts.hardware is None else facts.hardware.notes
    why = (note.text for note in notes if note.device_id == device.device_id)
    remedy = "start ggml-rpc-server there, of this engine's version, or change rpc.servers"
    return _warn("devices", next(why, f"{device.name}: it does not answer"), remedy)


def _unseen_remedy(facts: Facts) -> str:
    if facts.hiding:
        return f"unset {facts.hiding[0].partition('=')[0]}, or build an engine for it"
    return "build an engine for it: scripts/build_backends.sh"


def _memory(facts: Facts) -> Iterator[Check]:
    if facts.hardware is None:
        return
    host = facts.hardware.host
    limit = host.cgroup_limit_bytes
    machine_bytes = sum(node.total_bytes for node in host.numa_nodes) or host.total_bytes
    if limit is None:
        yield _pass("memory", f"no control group limits {format_size(host.total_bytes)}")
    elif limit < machine_bytes * LITTLE_SHARE:
        said = f"a control group limits memory to {format_size(limit)}"
        yield _warn("memory", said, "raise MemoryMax= of the unit, or --memory of the container")
    else:
        yield _pass("memory", f"a control group allows {format_size(limit)}")
    if host.psi_some_avg10 is not None and host.psi_some_avg10 > HIGH_PRESSURE:
        said = f"tasks waited for memory {host.psi_some_avg10:g} % of the last 10 s"
        yield _warn("memory", said, "end what takes it, or set memory.limit")


def _models(facts: Facts) -> Iterator[Check]:
    if facts.status is None:
        return
    broken = facts.status.broken
    for file in broken:
        yield _fail("models", f"{file.path}: {file.reason}", _BROKEN_REMEDIES[file.kind])
    if not broken:
        yield _pass("models", "no model file is broken or lacks a part")


def _groups(facts: Facts) -> Iterator[Check]:
    for said in facts.strangers:
        yield _warn("groups", said, "mend the name; inferenceosctl models has all that there are")


def _disks(facts: Facts) -> Iterator[Check]:
    for disk in facts.disks:
        least = LEAST_STATE_BYTES if disk.purpose == "state" else LEAST_MODELS_BYTES
        if disk.free_bytes is None:
            remedy = "make the folder, or name another in the configuration"
            yield _warn(
                "disk", f"{disk.folder} ({disk.purpose}) is not there, or not ours to see", remedy
            )
        elif disk.free_bytes < least:
            said = f"{disk.folder} ({disk.purpose}) has {format_size(disk.free_bytes)} left"
            tell = _fail if disk.purpose == "state" else _warn
            yield tell("disk", said, f"free {format_size(least)} there")
        else:
            free = format_size(disk.free_bytes)
            yield _pass("disk", f"{disk.folder} ({disk.purpose}) has {free} left")
    for folder in () if facts.hardware is None else facts.hardware.storage:
        rate = folder.read_bytes_per_s
        if rate is not None and rate < SLOW_BYTES_PER_S:
            said = f"{folder.folder} reads {rate / 1e6:.0f} MB/s: models load slowly"
            yield _warn("disk", said, "keep models on a local SSD")


def _sleep(facts: Facts) -> Iterator[Check]:
    resumed_at = None if facts.status is None else facts.status.resumed_at
    slept = format_duration(facts.suspended_s)
    if resumed_at is not None:
        ago = format_duration(max(0.0, facts.now - resumed_at))
        yield _pass("sleep", f"the machine woke {ago} ago, and devices were read anew")
    elif facts.suspended_s < 1.0:
        yield _pass("sleep", "the machine has not slept since it booted")
    elif _lost_cuda(facts):
        said = f"the machine slept for {slept} in all, and CUDA sees no card any more"
        yield _fail("sleep", said, "rmmod nvidia_uvm && modprobe nvidia_uvm")
    else:
        yield _pass("sleep", f"the machine slept for {slept} in all since it booted")


def _lost_cuda(facts: Facts) -> bool:
    """After a suspend CUDA fails until nvidia_uvm is loaded anew, while NVML goes on answering."""
    engines = () if facts.status is None else facts.status.engines
    has_engine = any(engine.backend == "cuda" and engine.refused is None for engine in engines)
    devices = () if facts.hardware is None else facts.hardware.devices
    cards = [device for device in devices if "nvidia" in device.name.lower()]
    return has_engine and bool(cards) and not any(card.engine_name("cuda") for card in cards)
