from typing import Any

import pytest
from msgspec.structs import replace

from planners.argv import MissingFlag, child_argv, child_env
from planners.backends import Engine, LogDialect
from planners.errors import PlanError
from planners.model import LayerKind, ModelId
from planners.placement import plan_launch
from planners.plan import LaunchPlan
from planners.sizes import MIB
from tests.fakes.machines import (
    CPU,
    CUDA,
    FLAGS,
    RULES,
    engine,
    machine,
    model_info,
    nvidia,
    served,
)


def plan_on(*cards: float, **settings: Any) -> LaunchPlan:
    hardware = machine(*(nvidia(i, gib) for i, gib in enumerate(cards)))
    plan = plan_launch(
        served(context=4096), hardware=hardware, engines=(CPU, CUDA), rules=RULES, promised={}
    )
    assert isinstance(plan, LaunchPlan)
    return replace(plan, **settings)


def argv(plan: LaunchPlan, *, engine: Engine = CUDA) -> tuple[str, ...]:
    return child_argv(plan, engine=engine, socket_path="/run/i/x.sock", slot_dir="/run/i/slots")


def value(flag: str, words: tuple[str, ...]) -> str | None:
    return words[words.index(flag) + 1] if flag in words else None


@pytest.mark.parametrize(
    ("repack", "extra", "said"),
    [
        pytest.param(True, (), [], id="as the engine likes"),
        pytest.param(False, (), ["--no-repack"], id="not at all"),
        pytest.param(False, ("-nr",), ["-nr"], id="the operator has said it already"),
        pytest.param(False, ("--repack",), ["--repack"], id="or wants it nevertheless"),
    ],
)
def test_weights_that_must_not_be_repacked_are_not(
    repack: bool, extra: tuple[str, ...], said: list[str]
) -> None:
    able = replace(CUDA, flags=FLAGS | {"--repack", "-nr", "--no-repack"})

    words = argv(plan_on(24, repack=repack, extra_flags=extra), engine=able)

    assert [word for word in words if "repack" in word or word == "-nr"] == said


def test_a_launch_on_one_card_is_spelled_out() -> None:
    words = argv(plan_on(24))

    assert words[0] == "/engines/cuda/llama-server"
    assert value("--model", words) == "/models/a-model.gguf"
    assert value("--host", words) == "/run/i/x.sock"
    assert value("--slot-save-path", words) == "/run/i/slots"
    assert value("--ctx-size", words) == "4096"
    assert value("--parallel", words) == "1"
    assert value("--device", words) == "CUDA0"
    assert value("--n-gpu-layers", words) == "33"
    assert value("--flash-attn", words) == "on"
    assert value("--cache-type-k", words) == value("--cache-type-v", words) == "f16"
    assert value("--fit", words) == "off"
    assert value("--verbosity", words) == "4"
    assert {"--no-kv-unified", "--offline", "--jinja"} <= set(words)
    assert "--tensor-split" not in words


def test_only_flags_of_the_engine_are_passed() -> None:
    flags = {word for word in argv(plan_on(24)) if word.startswith("-")}

    assert flags <= FLAGS


def test_an_engine_is_told_to_log_in_its_own_scale() -> None:
    older = replace(CUDA, log=LogDialect(buffers_verbosity=3))

    assert value("--verbosity", argv(plan_on(24), engine=older)) == "3"


def test_an_engine_that_saves_no_slots_is_given_no_folder_for_them() -> None:
    words = argv(plan_on(24), engine=replace(CUDA, saves_slots=False))

    assert "--slot-save-path" not in words


def test_times_before_each_message_are_asked_for_where_the_engine_knows_how() -> None:
    stamping = replace(CUDA, flags=FLAGS | {"--log-prefix", "--log-timestamps"})

    assert {"--log-prefix", "--log-timestamps"} <= set(argv(plan_on(24), engine=stamping))


def test_the_processor_alone_is_told_outright() -> None:
    words = argv(plan_on(), engine=CPU)

    assert value("--device", words) == "none"
    assert value("--n-gpu-layers", words) == "0"


def test_several_cards_get_whole_layers_each() -> None:
    plan = plan_on(3, 4)
    words = argv(plan)

    assert value("--device", words) == "CUDA0,CUDA1"
    assert value("--tensor-split", words) == ",".join(str(n) for n in plan.tensor_split)


@pytest.mark.parametrize(
    ("settings", "flag", "expected"),
    [
        ({"n_cpu_moe": 3}, "--n-cpu-moe", "3"),
        ({"flash_attn": False}, "--flash-attn", "off"),
        ({"cache_ram_mib": 512}, "--cache-ram", "512"),
        ({"ctx_checkpoints": 5}, "--ctx-checkpoints", "5"),
        ({"mmproj_path": "/p.gguf"}, "--mmproj", "/p.gguf"),
        ({"draft_path": "/d.gguf"}, "--spec-draft-model", "/d.gguf"),
        ({"draft_path": "/d.gguf"}, "--spec-draft-device", "CUDA0"),
        ({"draft_path": "/d.gguf"}, "--spec-type", "draft-simple"),
        ({"lora_paths": ("/a.gguf", "/b.gguf")}, "--lora", "/a.gguf,/b.gguf"),
    ],
)
def test_settings_become_flags(settings: dict[str, object], flag: str, expected: str) -> None:
    assert value(flag, argv(plan_on(24, **settings))) == expected
    if flag not in ("--flash-attn", "--cache-ram", "--ctx-checkpoints"):
        assert flag not in argv(plan_on(24))


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"embedding": True}, "--embedding"),
        ({"embedding": True, "pooling": "rank"}, "--rerank"),
        ({"swa_full": True}, "--swa-full"),
    ],
)
def test_switches_are_passed_where_planned(settings: dict[str, object], flag: str) -> None:
    assert flag in argv(plan_on(24, **settings))
    assert flag not in argv(plan_on(24))


def test_a_projector_stays_with_a_model_on_the_processor() -> None:
    assert "--no-mmproj-offload" in argv(plan_on(mmproj_path="/p.gguf"), engine=CPU)
    assert "--no-mmproj-offload" not in argv(plan_on(24, mmproj_path="/p.gguf"))


def test_the_operators_flags_come_last_as_written() -> None:
    plan = plan_on(24, extra_flags=("--mlock", "--spec-type", "draft-mtp"), draft_path="/d.gguf")

    words = argv(plan)

    assert words[-3:] == ("--mlock", "--spec-type", "draft-mtp")
    assert words.count("--spec-type") == 1


def test_older_spellings_are_used_where_the_engine_knows_no_other() -> None:
    older = engine("cuda", flags=FLAGS - {"--embedding", "--ctx-size"} | {"--embeddings", "-c"})

    words = argv(plan_on(24, embedding=True), engine=older)

    assert "--embeddings" in words
    assert value("-c", words) == "4096"


def test_what_an_engine_cannot_do_and_need_not_is_left_out() -> None:
    older = engine("cuda", flags=FLAGS - {"--fit", "--no-kv-unified", "--ctx-checkpoints"})

    assert "--fit" not in argv(plan_on(24), engine=older)


def test_an_engine_without_an_option_that_the_plan_rests_on_is_refused() -> None:
    older = engine("cuda", flags=FLAGS - {"--slot-save-path"})

    with pytest.raises(MissingFlag, match="has no option --slot-save-path") as caught:
        argv(plan_on(24), engine=older)

    assert caught.value.engine_path == "/engines/cuda/llama-server"


def test_an_adapters_path_with_a_comma_cannot_be_said() -> None:
    with pytest.raises(PlanError, match="comma"):
        argv(plan_on(24, lora_paths=("/a,b.gguf",)))


def test_a_name_with_a_comma_is_no_alias() -> None:
    assert "--alias" not in argv(plan_on(24, model_id=ModelId("a,b")))


def test_whole_windows_are_asked_for_where_planned() -> None:
    windows = model_info(kinds=(LayerKind.SWA, LayerKind.FULL), layer_bytes=50 * MIB)
    plan = plan_launch(
        served(windows), hardware=machine(nvidia(0, 24)), engines=(CUDA,), rules=RULES, promised={}
    )

    assert isinstance(plan, LaunchPlan)
    assert "--swa-full" in argv(plan)


def test_a_childs_environment_is_scrubbed_of_what_steers_the_engine() -> None:
    inherited = {
        "PATH": "/usr/bin",
        "HOME": "/home/me",
        "LD_PRELOAD": "/evil.so",
        "LD_LIBRARY_PATH": "/lib",
        "GGML_VK_DISABLE_F16": "1",
        "LLAMA_ARG_CTX_SIZE": "9",
        "HF_TOKEN": "hf_x",
        "GGML_VK_VISIBLE_DEVICES": "0",
        "CUDA_VISIBLE_DEVICES": "1",
    }

    assert child_env(CPU, inherited) == {
        "PATH": "/usr/bin",
        "HOME": "/home/me",
        "GGML_VK_VISIBLE_DEVICES": "0",
        "CUDA_VISIBLE_DEVICES": "1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "LLAMA_SERVER_ROUTER_PORT": "1",
    }


@pytest.mark.parametrize("speaks", [True, False])
def test_only_an_engine_that_speaks_the_child_protocol_is_told_to(speaks: bool) -> None:
    env = child_env(replace(CUDA, speaks_child_protocol=speaks), {})

    assert ("LLAMA_SERVER_ROUTER_PORT" in env) is speaks


def test_what_an_engine_needs_is_put_into_its_environment() -> None:
    needy = replace(CPU, env=(("LD_LIBRARY_PATH", "/engines/cpu"),))

    assert child_env(needy, {})["LD_LIBRARY_PATH"] == "/engines/cpu"


def test_servers_of_other_machines_come_before_the_names_that_they_make() -> None:
    plan = plan_on(24, rpc_servers=("10.0.0.2:50052", "10.0.0.3:50052"))
    able = engine("cuda", flags=FLAGS | {"--rpc"})

    words = argv(plan, engine=able)

    assert value("--rpc", words) == "10.0.0.2:50052,10.0.0.3:50052"
    assert words.index("--rpc") < words.index("--device")


def test_an_engine_without_rpc_cannot_launch_on_another_machine() -> None:
    with pytest.raises(MissingFlag, match="--rpc"):
        argv(plan_on(24, rpc_servers=("10.0.0.2:50052",)))


def test_how_vectors_are_pooled_is_said_outright() -> None:
    words = argv(plan_on(24, embedding=True, pooling="last"))

    assert value("--pooling", words) == "last"
    assert "--pooling" not in argv(plan_on(24))
