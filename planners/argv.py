"""A LaunchPlan as a command line and an environment: the one place where flags are spelled.

Everything that matters is passed outright, because the server's defaults change under our feet;
only what the engine's --help names is passed at all.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct

from planners.backends import Engine
from planners.errors import PlanError
from planners.plan import LaunchPlan

SSE_PING_S = 2  # a child told to stop in mid-stream notices at its next ping: 3 s, not 30
VISIBILITY = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "GGML_VK_VISIBLE_DEVICES",
)
VERBOSITY = ("--verbosity", "--log-verbosity", "-lv")
_CHILD_PROTOCOL = {"LLAMA_SERVER_ROUTER_PORT": "1"}  # progress out, death by stdin EOF
_REPACKING = frozenset({"--repack", "--no-repack", "-nr"})  # then it is the operator's word
_SCRUBBED = ("GGML_", "LLAMA_", "LD_", "DYLD_", "HF_TOKEN")  # the last is the daemon's to show


class MissingFlag(PlanError):
    """An engine does not know an option that the plan relies on."""

    def __init__(self, *, engine: Engine, names: tuple[str, ...]) -> None:
        self.engine_path, self.names = engine.path, names
        super().__init__(
            f"{engine.path} has no option {names[0]}, which this plan needs; build a newer "
            "llama-server with scripts/build_backends.sh"
        )


class _Option(Struct, frozen=True):
    """One option: its spellings, newest first, and its value."""

    names: tuple[str, ...]
    value: str | None = None
    is_needed: bool = True


def child_argv(
    plan: LaunchPlan, *, engine: Engine, socket_path: str, slot_dir: str
) -> tuple[str, ...]:
    """The command line of a child, its program first. Raises PlanError where it cannot be said."""
    argv = [engine.path]
    for option in _options(plan, engine, socket_path=socket_path, slot_dir=slot_dir):
        known = next((name for name in option.names if name in engine.flags), None)
        if known is not None:
            argv += [known] if option.value is None else [known, option.value]
        elif option.is_needed:
            raise MissingFlag(engine=engine, names=option.names)
    return (*argv, *plan.extra_flags)


def child_env(engine: Engine, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child: inherited, without what could change its code or its options."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name in VISIBILITY or not name.startswith(_SCRUBBED)
    }
    return {
        **kept,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # else CUDA sorts by speed and NVML by bus
        **(_CHILD_PROTOCOL if engine.speaks_child_protocol else {}),
        **dict(engine.env),
    }


def _options(
    plan: LaunchPlan, engine: Engine, *, socket_path: str, slot_dir: str
) -> Iterator[_Option]:
    yield _Option(("--model", "-m"), plan.model_path)
    if "," not in plan.model_id:  # a comma would make it two names
        yield _Option(("--alias", "-a"), plan.model_id, is_needed=False)
    yield from _door(engine, socket_path, slot_dir)
    if plan.chat_template:
        yield _Option(("--chat-template",), plan.chat_template)  # after --jinja, which it needs
    yield from _slots(plan)
    yield from _placement(plan)
    yield from _companions(plan)


def _door(engine: Engine, socket_path: str, slot_dir: str) -> Iterator[_Option]:
    # A Unix socket: no port table, no race, out of reach for other users of the machine.
    yield _Option(("--host",), socket_path)
    # Saved slots are what makes moving a conversation exact; the folder must exist.
    if engine.saves_slots:
        yield _Option(("--slot-save-path",), slot_dir)
    yield _Option(("--sse-ping-interval",), str(SSE_PING_S), is_needed=False)
    # Levels below leave out the buffer sizes that buffers.py reads.
    yield _Option(VERBOSITY, str(engine.log.buffers_verbosity))
    # Without a stamp nothing tells a message from the lines that it quotes of a request.
    yield _Option(("--log-prefix",), is_needed=False)
    yield _Option(("--log-timestamps",), is_needed=False)
    # Its web chat stays on: the proxy, its only client, decides who sees it, at once on a reload.
    # No download, whatever the model path is.
    yield _Option(("--offline",), is_needed=False)
    # Chat templates of today are Jinja; older builds need to be told.
    yield _Option(("--jinja",), is_needed=False)
    # Warm-up stays on: it compiles shaders, reads the weights and finds an OOM while LOADING,
    # where the first caller would else wait or fail.


def _slots(plan: LaunchPlan) -> Iterator[_Option]:
    yield _Option(("--ctx-size", "-c"), str(plan.n_ctx))
    # An explicit count: the default of 4 shares one cache, and one overflow fails all requests.
    yield _Option(("--parallel", "-np"), str(plan.n_parallel))
    yield _Option(("--no-kv-unified", "-no-kvu"), is_needed=False)
    yield _Option(("--batch-size", "-b"), str(plan.n_batch))
    yield _Option(("--ubatch-size", "-ub"), str(plan.n_ubatch))
    yield _Option(("--threads", "-t"), str(plan.n_threads))
    # The default prompt cache takes up to 8 GiB of the host's memory, 32 checkpoints any amount.
    yield _Option(("--cache-ram", "-cram"), str(plan.cache_ram_mib), is_needed=False)
    yield _Option(
        ("--ctx-checkpoints", "-ctxcp", "--swa-checkpoints"),
        str(plan.ctx_checkpoints),
        is_needed=False,
    )
    if plan.embedding:
        yield _Option(("--embedding", "--embeddings"))
        if plan.pooling == "rank":
            yield _Option(("--rerank", "--reranking"))
        elif plan.pooling is not None:
            # Texts models have none of their own, and the engine's default gives no vector.
            yield _Option(("--pooling",), plan.pooling)


def _placement(plan: LaunchPlan) -> Iterator[_Option]:
    # The server's own fitting would plan again, with only the present in view.
    yield _Option(("--fit", "-fit"), "off", is_needed=False)
    if plan.rpc_servers:
        yield _Option(("--rpc",), ",".join(plan.rpc_servers))  # before the names that it makes
    yield _Option(("--device", "-dev"), ",".join(name for _, name, _ in plan.devices) or "none")
    yield _Option(("--n-gpu-layers", "--gpu-layers", "-ngl"), str(plan.n_gpu_layers))
    if len(plan.devices) > 1:
        # Without it the split follows the free memory of the moment, and no plan holds.
        split = ",".join(str(layers) for layers in plan.tensor_split)
        yield _Option(("--tensor-split", "-ts"), split)
    if plan.n_cpu_moe:
        yield _Option(("--n-cpu-moe", "-ncmoe"), str(plan.n_cpu_moe))
    # Pinned, because saved slots fit only a child with the same three values.
    yield _Option(("--flash-attn", "-fa"), "on" if plan.flash_attn else "off")
    yield _Option(("--cache-type-k", "-ctk"), plan.type_k)
    yield _Option(("--cache-type-v", "-ctv"), plan.type_v)
    if plan.swa_full:
        yield _Option(("--swa-full",))
    if not plan.repack and not _REPACKING & {*plan.extra_flags}:
        yield _Option(("--no-repack", "-nr"), is_needed=False)


def _companions(plan: LaunchPlan) -> Iterator[_Option]:
    if plan.mmproj_path is not None:
        yield _Option(("--mmproj", "-mm"), plan.mmproj_path)
        if not plan.devices:
            # A projector goes to the first GPU even where the model was told `--device none`.
            yield _Option(("--no-mmproj-offload",), is_needed=False)
    if plan.draft_path is not None:
        yield _Option(("--spec-draft-model", "--model-draft", "-md"), plan.draft_path)
        # Where its memory was planned; left alone it spreads over every device there is.
        device = min((name for _, name, _ in plan.devices), default="none")
        yield _Option(("--spec-draft-device", "--device-draft", "-devd"), device)
        if "--spec-type" not in plan.extra_flags:
            # In builds that know the option a draft model alone drafts nothing (b10434).
            yield _Option(("--spec-type",), "draft-simple", is_needed=False)
    if plan.lora_paths:
        for path in plan.lora_paths:
            if "," in path:
                raise PlanError(f"the adapter's path {path!r} has a comma, which splits it in two")
        yield _Option(("--lora",), ",".join(plan.lora_paths))
