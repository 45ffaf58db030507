"""Which layers of a model lie where under a plan, as one line for people. Pure."""

from collections.abc import Iterator

from planners.hardware import HOST
from planners.plan import LaunchPlan


def layer_map(plan: LaunchPlan, *, n_layer: int) -> str:
    """Such as "layers 0–11 host, 12–29 Vulkan0, output Vulkan0".

    `n_layer` counts repeating blocks. llama.cpp leaves the first layers to the host, gives each
    device one block in `--device` order, and counts the output layer as the last.
    """
    runs, output = [], str(HOST)
    for owner, first, last in _blocks(plan, n_layer=n_layer):
        if first < n_layer:
            runs.append(f"{_range(first, min(last, n_layer - 1))} {owner}")
        if last == n_layer:
            output = owner
    told = [*runs, f"output {output}"]
    if plan.n_cpu_moe:
        told.append(f"experts of {_range(0, plan.n_cpu_moe - 1)} host")
    return f"layers {', '.join(told)}" if runs else told[0]


def _blocks(plan: LaunchPlan, *, n_layer: int) -> Iterator[tuple[str, int, int]]:
    """(owner, first, last) of each block, the output layer counted as layer `n_layer`."""
    on_devices = sum(layers for _, _, layers in plan.devices)
    blocks = [(str(HOST), n_layer + 1 - on_devices)]
    blocks += [(name, layers) for _, name, layers in plan.devices]
    first = 0
    for owner, layers in blocks:
        if layers > 0:
            yield owner, first, first + layers - 1
            first += layers


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"
