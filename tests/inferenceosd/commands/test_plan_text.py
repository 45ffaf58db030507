"""inferenceosd.commands.plan_text: what people read, to the letter."""

import json

import msgspec
from msgspec.structs import replace

from inferenceosd.commands.plan_text import plan_text, plans_text
from planners.hardware import DeviceId
from planners.model import ModelId
from planners.sizes import GIB
from proxy.admin.plan import PlanReport, ShortfallReport, plan_report, plans_report
from tests.fakes.admin_service import ENGINE, GPU, HARDWARE, OUTLOOK, PLAN, SHORTFALL

PLAN_TEXT = """\
qwen: vulkan, context 4096 × 2, 29 layers on devices

DEVICE            NAME                     LAYERS    WEIGHTS         KV    COMPUTE      OTHER      TOTAL      FREE      LEFT
pci:0000:01:00.0  NVIDIA GeForce RTX 4090      29    4.0 GiB  512.0 MiB  256.0 MiB  128.0 MiB    4.9 GiB  19.0 GiB  14.1 GiB
host              AMD Ryzen 9 7950X             -  300.0 MiB        0 B   20.0 MiB        0 B  320.0 MiB  48.0 GiB  47.7 GiB

layers 0–11 host, 12–39 Vulkan0, output Vulkan0

predicted: 1200 tokens/s of prompt and 40 tokens/s of decode
batch 2048/512, 8 threads, KV cache f16/f16, flash attention on

flags: /opt/llama/llama-server --model /models/qwen.gguf --alias qwen --host SOCKET --slot-save-path FOLDER --sse-ping-interval 2 --verbosity 4 --offline --jinja --ctx-size 8192 --parallel 2 --no-kv-unified --batch-size 2048 --ubatch-size 512 --threads 8 --cache-ram 0 --ctx-checkpoints 0 --fit off --device Vulkan0 --n-gpu-layers 29 --flash-attn on --cache-type-k f16 --cache-type-v f16

why:
- 29 of 41 layers on a card: 4.9 GiB of the 22.0 GiB it can give
- 12 of 41 layers on the processor: no room is left on a device

not used:
- llvmpipe: it is the processor posing as a GPU

one more GiB:
- 1 GiB more on host: 16384 rather than 8192 tokens of context"""  # noqa: E501  # as printed


def test_a_plan_shows_memory_layers_speed_flags_and_why() -> None:
    assert plan_text(plan_report(OUTLOOK)) == PLAN_TEXT


def test_a_plan_that_nobody_timed_says_so() -> None:
    text = plan_text(plan_report(replace(OUTLOOK, answer=replace(PLAN, reasons=()))))

    assert "nobody predicted how fast it will be\nbatch 2048/512" in text
    assert "\nwhy:" not in text


def test_the_reason_of_an_unused_device_is_found_by_its_id_whatever_its_name() -> None:
    twin = replace(HARDWARE.devices[1], device_id=DeviceId("vulkan:Vulkan2"))
    hardware = replace(HARDWARE, devices=(*HARDWARE.devices, twin))

    report = plan_report(replace(OUTLOOK, hardware=hardware))

    assert [(each.name, each.reason) for each in report.unused] == [
        ("llvmpipe", "it is the processor posing as a GPU"),
        ("llvmpipe", "the model fits without it"),
    ]


def test_scripts_go_by_kinds_prices_and_devices() -> None:
    sent = json.loads(msgspec.json.encode(plan_report(OUTLOOK)))

    unused, _, on_host, _ = sent["plan"]["reasons"]
    assert (unused["kind"], unused["device_id"]) == ("device-unused", "vulkan:Vulkan1")
    assert on_host["price"] == {"unit": "decode_tokens_per_s", "had": 40.0, "would_be": 120.0}


def test_a_plan_without_devices_runs_on_the_processor() -> None:
    plan = replace(PLAN, devices=(), n_gpu_layers=0)

    text = plan_text(plan_report(replace(OUTLOOK, answer=plan)))

    assert text.startswith("qwen: vulkan, context 4096 × 2, on the processor\n")
    assert "layers 0–39 host, output host" in text


def test_a_shared_pool_is_counted_at_the_host_too() -> None:
    apu = replace(HARDWARE.devices[0], kind=type(HARDWARE.devices[0].kind).INTEGRATED)
    hardware = replace(HARDWARE, devices=(apu,))

    gpu, host = plan_report(replace(OUTLOOK, hardware=hardware)).places

    assert host.left_bytes == 48 * GIB - host.total_bytes - gpu.total_bytes
    assert (gpu.device, gpu.left_bytes) == (GPU, 19 * GIB - gpu.total_bytes)


def test_an_engine_without_an_option_of_the_plan_has_no_command_line() -> None:
    assert plan_report(replace(OUTLOOK, engine=ENGINE)).argv == ()
    assert plan_report(replace(OUTLOOK, engine=None)).argv == ()


def test_a_shortfall_says_what_is_missing_where_and_what_would_help() -> None:
    assert plan_text(plan_report(replace(OUTLOOK, answer=SHORTFALL))) == (
        "qwen does not fit: even 1 slot of 4096 tokens is too much"
        " (3.0 GiB on pci:0000:01:00.0 missing)\n\n"
        "one more GiB:\n"
        "- 1 GiB more on host: 16384 rather than 8192 tokens of context"
    )
    bare = PlanReport(None, ShortfallReport("qwen", {}, "no llama-server runs here"))
    assert plan_text(bare) == "qwen does not fit: no llama-server runs here"


def test_a_gibibyte_that_brings_nothing_is_said_to() -> None:
    lacking = replace(OUTLOOK, answer=SHORTFALL, one_more_gib=())

    assert plan_text(plan_report(replace(OUTLOOK, one_more_gib=()))).endswith(
        "\n\none more GiB would bring nothing that anybody would notice"
    )
    assert plan_text(plan_report(lacking)).endswith(
        "missing)\n\none more GiB anywhere would not make it fit"
    )


def test_what_would_be_stopped_for_a_plan_is_named() -> None:
    report = plan_report(replace(OUTLOOK, stops=(ModelId("gemma"), ModelId("phi"))))

    assert "29 layers on devices\nstops gemma, phi, which nobody uses\n\nDEVICE" in plan_text(
        report
    )


def test_a_plan_for_a_recorded_machine_says_what_its_profile_is() -> None:
    told = "planned for a profile, synthetic: by its data sheet\n\nqwen"
    origin = "synthetic: by its data sheet"
    lacking = replace(OUTLOOK, answer=SHORTFALL)

    assert plan_text(plan_report(OUTLOOK, origin=origin)).startswith(f"{told}: vulkan")
    assert plan_text(plan_report(lacking, origin=origin)).startswith(f"{told} does not fit")
    assert plans_text(plans_report([OUTLOOK, lacking], origin=origin)).startswith(f"{told}: vulkan")


TOGETHER_TEXT = """\
qwen: vulkan, context 4096 × 2, 29 layers on devices
DEVICE            NAME                     LAYERS    WEIGHTS         KV    COMPUTE      OTHER      TOTAL      FREE      LEFT
pci:0000:01:00.0  NVIDIA GeForce RTX 4090      29    4.0 GiB  512.0 MiB  256.0 MiB  128.0 MiB    4.9 GiB  19.0 GiB  14.1 GiB
host              AMD Ryzen 9 7950X             -  300.0 MiB        0 B   20.0 MiB        0 B  320.0 MiB  48.0 GiB  47.7 GiB
predicted: 1200 tokens/s of prompt and 40 tokens/s of decode
- 12 of 41 layers on the processor: no room is left on a device
- not used: llvmpipe: it is the processor posing as a GPU

qwen does not fit: even 1 slot of 4096 tokens is too much (3.0 GiB on pci:0000:01:00.0 missing)

together:
DEVICE            NAME                     MODELS      TOTAL      FREE      LEFT
pci:0000:01:00.0  NVIDIA GeForce RTX 4090       1    4.9 GiB  19.0 GiB  14.1 GiB
host              AMD Ryzen 9 7950X             1  320.0 MiB  48.0 GiB  47.7 GiB"""  # noqa: E501  # as printed


def test_several_plans_show_what_was_conceded_and_the_sum_by_device() -> None:
    report = plans_report([OUTLOOK, replace(OUTLOOK, answer=SHORTFALL)])

    assert plans_text(report) == TOGETHER_TEXT
    assert not report.fits


def test_what_several_plans_take_of_a_shared_pool_is_taken_from_the_host_once() -> None:
    apu = replace(HARDWARE.devices[0], kind=type(HARDWARE.devices[0].kind).INTEGRATED)
    shared = replace(OUTLOOK, hardware=replace(HARDWARE, devices=(apu,)))

    gpu, host = plans_report([shared, shared]).sums

    assert gpu.total_bytes == 2 * PLAN.bytes_on(GPU)
    assert host.left_bytes == 48 * GIB - host.total_bytes - gpu.total_bytes


def test_models_that_a_group_keeps_apart_are_named_below_the_sum() -> None:
    report = plans_report([OUTLOOK, replace(OUTLOOK, apart=("a and b never run at once: why",))])

    assert plans_text(report).endswith("\n\na and b never run at once: why")


def test_no_plans_are_no_text() -> None:
    assert plans_text(plans_report([])) == ""


def test_equal_cards_that_are_left_alone_share_a_line() -> None:
    idle = HARDWARE.devices[1]
    cards = [replace(idle, device_id=DeviceId(f"pci:{i}"), name="NVIDIA H100") for i in range(6)]
    hardware = replace(HARDWARE, devices=(HARDWARE.devices[0], *cards))

    text = plan_text(plan_report(replace(OUTLOOK, hardware=hardware)))

    assert "not used:\n- 6 × NVIDIA H100: the model fits without it" in text
