"""What devices do in a second: learned here, else by data sheet, else by kind of device. Pure."""

import re
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from planners.hardware import HOST, Device, DeviceId, DeviceKind, HardwareProfile, Host
from planners.lessons.samples import NOTHING_LEARNED, Learned

# Of the peak that a data sheet names, this much reaches a decode. llama.cpp on an M1 Max: 44 to 58
# percent by weight type (llama.cpp issue 27525); 8B in 4 bits on an RX 7900 XTX: 62 percent (pull
# request 26284).
DECODE_SHARE = 0.6
# NVIDIA's read nearer to their peak: 8B and 7B in 4 bits at 157 tokens/s on an RTX 3090, 57 on a
# P40 (pull requests 15802 and 4766), 72 on an RTX 2080: 91, 65 and 82 percent beside the launches.
NVIDIA_DECODE_SHARE = 0.8
# NVIDIA's cards by their peak, which leaves tensor cores out: 8B in 4 bits at 10100 tokens/s on an
# RTX 4090 and at 4280 on an RTX 3090 (pull request 8278), 13B at 1490 on an RTX 2080 Ti, come to
# 1.5, 1.5 and 2.1 times what NVML tells; without such cores, 830 on a P40 (7716) to the peak.
TENSOR_SHARE = 1.5
PROMPT_SHARE = 1.0
_WITHOUT_TENSOR_CORES = re.compile(
    r"\b(GTX|GT \d|MX\d|TITAN X|(Tesla|Quadro) [KMP]\d|P4\b|P40\b|P6\b|P100\b)", re.IGNORECASE
)
# Others by their memory, with which makers let arithmetic grow: operations per byte of its peak.
# 7B and 8B in 4 bits on an M2 Ultra and an M1 Max: 19 (pull request 3084); 8B on an RX 7900 XTX: 50
# (26284), 13B on an RX 6800 XT: 35 (2059), a 30B with experts on a Radeon 8060S: 35 (issue 22375).
FLOPS_PER_BYTE = {DeviceKind.INTEGRATED: 20.0, DeviceKind.DISCRETE: 40.0}

# Where nobody tells either: bytes/s of memory and operations/s by kind. [choice, middle of the
# field]
_MEMORY_BYTES_PER_S = {DeviceKind.DISCRETE: 450e9, DeviceKind.UNKNOWN: 200e9}
_FLOPS = {
    DeviceKind.DISCRETE: 15e12,
    DeviceKind.UNKNOWN: 4e12,
    DeviceKind.INTEGRATED: 2e12,
    DeviceKind.REMOTE: 4e12,
}
REMOTE_BYTES_PER_S = 200e9  # whatever serves there: as a device of unknown kind
SOFTWARE_SHARE = 0.25  # llvmpipe decoded at a fourth of what its own processor did, measured

# The processor. Measured, 135M Q4_1 to 1.2B Q4_0, one AVX-512 thread: 6 to 14 GB/s and
# 27 to 57 GFLOPS.
BYTES_PER_S_PER_THREAD = 12e9
HOST_BYTES_PER_S = 40e9  # two channels of DDR5: more threads read no faster
FLOPS_PER_THREAD = 32e9
# With AMX, the same model: steps of 1, 2 and 4 slots took 9, 16 and 21 ms. A 1B Q4_0 read prompts
# of 128 and 512 tokens at 104 to 119 GFLOPS, by one thread's processor time; at 48 to 54 without.
TILES_FLOPS_PER_THREAD = 100e9
# All threads meet after each of a layer's 19 nodes, and once more in each of its 7 products, when
# the activations are converted; two nodes are fused with their neighbours (ggml-cpu.c).
BARRIERS = 24
# One at which all threads still spin when the last one comes: 45 to 55 microseconds a layer, of
# two threads, measured.
SPIN_S = 2e-6
# A layer's, on a machine that was not asked: 5 to 8 ms a step over 30 layers, measured on one.
USUAL_BARRIERS_S = 200e-6

KERNELS_S = 30e-6  # a layer's launches: a dozen of some microseconds each [choice]
# A ubatch launches its kernels one by one, where a decode replays a recorded graph, and fills no
# device with them. An RTX 4090 read prompts of a 1B Q4_0 model in ubatches of 32, 128 and 512 at
# 11.9, 26.5 and 49.4 thousand tokens/s (llama.cpp pull request 20586): some 2 ms a ubatch beside
# the arithmetic, over 22 layers (TinyLlama) or 16 (Llama 3.2), which it does not tell.
UBATCH_KERNELS_S = 100e-6
HOP_S = 50e-6  # one graph split: a copy of the activations and a wait [choice]
REMOTE_HOP_S = 1e-3  # out and back on a local network [choice]
LOOPBACK_HOP_S = 150e-6
PCIE_BYTES_PER_S = 12e9  # PCIe 3.0 x16 in practice, 4.0 x8 too
REMOTE_LINK_BYTES_PER_S = 117e6  # gigabit Ethernet


class Rate(Struct, frozen=True):
    """What one device, or HOST, does in a second."""

    bytes_per_s: float
    """Weights and caches that a decode reads from its memory."""
    flops: float
    """Of a prompt's products."""
    layer_s: float = 0.0
    """What a layer costs a decode step however little it computes: launches, barriers."""
    ubatch_layer_s: float = 0.0
    """Likewise a prompt's ubatch."""
    hop_s: float = 0.0
    """What it costs a step to go there at all."""
    link_bytes_per_s: float = PCIE_BYTES_PER_S


Rates = Mapping[DeviceId, Rate]


def rates(
    hardware: HardwareProfile, *, n_threads: int, learned: Learned = NOTHING_LEARNED
) -> Rates:
    """The rate of HOST and of every device: learned, else by data sheet, else by kind."""
    host = _host_rate(hardware.host, n_threads=n_threads)
    found = {HOST: host, **{d.device_id: _rate(d, host) for d in hardware.devices}}
    return {
        device_id: replace(
            rate,
            bytes_per_s=learned.bytes_per_s.get(device_id, rate.bytes_per_s),
            flops=learned.flops.get(device_id, rate.flops),
        )
        for device_id, rate in found.items()
    }


def _host_rate(host: Host, *, n_threads: int) -> Rate:
    most = HOST_BYTES_PER_S
    if host.bandwidth_bytes_per_s is not None:
        most = host.bandwidth_bytes_per_s * DECODE_SHARE
    barriers_s = _barriers_s(host, n_threads=n_threads)
    return Rate(
        bytes_per_s=min(n_threads * BYTES_PER_S_PER_THREAD, most),
        flops=n_threads * (TILES_FLOPS_PER_THREAD if host.has_tiles else FLOPS_PER_THREAD),
        layer_s=barriers_s,
        ubatch_layer_s=barriers_s,
    )


def _barriers_s(host: Host, *, n_threads: int) -> float:
    """What a layer's barriers cost that many threads.

    The engine's threads are libgomp's. It spins at a barrier for milliseconds, but once it manages
    more threads than there are CPUs only a hundred times, and then sleeps until it is woken. It
    counts one more than compute: llama-server decodes in a thread that is not its first (read out
    of a running one: 3 of 2 CPUs with `-t 2`). A quota, which libgomp does not know, counts as CPUs
    here: threads that spin use it up.
    """
    if n_threads == 1:
        return 0.0
    if host.wake_s is None:
        return USUAL_BARRIERS_S
    is_throttled = n_threads + 1 > host.n_cores
    return BARRIERS * (host.wake_s if is_throttled else SPIN_S)


def _rate(device: Device, host: Rate) -> Rate:
    link = device.link_bytes_per_s or PCIE_BYTES_PER_S
    if device.kind is DeviceKind.REMOTE:
        if device.is_loopback:  # this very processor
            return replace(host, hop_s=LOOPBACK_HOP_S)
        link = device.link_bytes_per_s or REMOTE_LINK_BYTES_PER_S
    hop_s = REMOTE_HOP_S if device.kind is DeviceKind.REMOTE else HOP_S
    flops = _flops(device, host)
    return Rate(_memory(device, host), flops, KERNELS_S, UBATCH_KERNELS_S, hop_s, link)


def _flops(device: Device, host: Rate) -> float:
    """Operations/s of a prompt's products on a device."""
    if device.compute_flops is not None:
        has_tensor_cores = _is_nvidia(device) and not _WITHOUT_TENSOR_CORES.search(device.name)
        return device.compute_flops * (TENSOR_SHARE if has_tensor_cores else PROMPT_SHARE)
    kind = DeviceKind.DISCRETE if "radeon" in device.name.lower() else device.kind
    if device.bandwidth_bytes_per_s is not None and kind in FLOPS_PER_BYTE:
        return device.bandwidth_bytes_per_s * FLOPS_PER_BYTE[kind]
    return _FLOPS.get(device.kind, host.flops * SOFTWARE_SHARE)


def _is_nvidia(device: Device) -> bool:
    return device.engine_name("cuda") is not None or "nvidia" in device.name.lower()


def _memory(device: Device, host: Rate) -> float:
    """Bytes/s that a decode reads on a device."""
    share = NVIDIA_DECODE_SHARE if _is_nvidia(device) else DECODE_SHARE
    if device.bandwidth_bytes_per_s is not None:
        return device.bandwidth_bytes_per_s * share
    if device.kind is DeviceKind.INTEGRATED:
        return host.bytes_per_s  # the same memory by the same bus
    if device.kind is DeviceKind.SOFTWARE:
        return host.bytes_per_s * SOFTWARE_SHARE
    if device.kind is DeviceKind.REMOTE:
        return REMOTE_BYTES_PER_S
    return _MEMORY_BYTES_PER_S[device.kind] * share
