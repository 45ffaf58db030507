"""What `inferenceosctl profile` prints for people: a machine as it was read. Pure."""

from inferenceosd.commands.tables import table
from planners.hardware import Device, HardwareProfile, Host, Storage
from planners.profile_json import RecordedProfile
from planners.sizes import format_size
from planners.speed import format_rate

UNKNOWN = "?"
NOTHING = "-"


def profile_text(recorded: RecordedProfile) -> str:
    """Host, devices and folders in tables, then what could not be read."""
    hardware = recorded.hardware
    parts = (
        recorded.origin,
        _host(hardware.host),
        _devices(hardware),
        _storage(hardware.storage),
        "\n".join(f"note: {note}" for note in hardware.notes),
    )
    return "\n\n".join(part for part in parts if part)


def _host(host: Host) -> str:
    limit = "none" if host.cgroup_limit_bytes is None else format_size(host.cgroup_limit_bytes)
    pressure = UNKNOWN if host.psi_some_avg10 is None else f"{host.psi_some_avg10:g} %"
    nodes = ", ".join(
        f"node {node.node}: {format_size(node.total_bytes)}, {node.n_cpus} CPUs"
        for node in host.numa_nodes
    )
    return "\n".join(
        (
            f"host: {host.cpu_name}, {host.n_physical_cores} cores ({host.n_cores} threads),"
            f" waking another core takes {_micros(host.wake_s)}",
            f"memory: {format_size(host.available_bytes)} of {format_size(host.total_bytes)}"
            f" available, control group's limit {limit}, pressure {pressure},"
            f" bandwidth {_rate(host.bandwidth_bytes_per_s)}",
            f"memory nodes: {nodes or UNKNOWN}",
        )
    )


def _devices(hardware: HardwareProfile) -> str:
    if not hardware.devices:
        return "no device besides the processor"
    headers = ("DEVICE", "NAME", "KIND", "ENGINE NAME", "TOTAL", "FREE", "MEMORY", "LINK", "NODE")
    rows = [_device(device) for device in hardware.devices]
    return table(headers, rows, right="TOTAL FREE MEMORY LINK NODE")


def _device(device: Device) -> tuple[str, ...]:
    kind = device.kind.value + (" (shares the host's memory)" if device.shares_host else "")
    return (
        device.device_id,
        device.name + ("" if device.use else " (not used)"),
        kind,
        ",".join(dict.fromkeys(name for _, name in device.engine_names)) or NOTHING,
        _size(device.total_bytes),
        _size(device.free_bytes),
        _rate(device.bandwidth_bytes_per_s),
        _rate(device.link_bytes_per_s),
        NOTHING if device.numa_node is None else str(device.numa_node),
    )


def _storage(folders: tuple[Storage, ...]) -> str:
    rows = [(each.folder, _size(each.free_bytes), _rate(each.read_bytes_per_s)) for each in folders]
    return table(("MODELS IN", "FREE", "READS"), rows, right="FREE READS")


def _size(size_bytes: int | None) -> str:
    return UNKNOWN if size_bytes is None else format_size(size_bytes)


def _micros(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else f"{seconds * 1e6:.3g} µs"


def _rate(bytes_per_s: float | None) -> str:
    return UNKNOWN if bytes_per_s is None else f"{format_rate(bytes_per_s / 1e9)} GB/s"
