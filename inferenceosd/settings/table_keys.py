"""The settings inside of tables: [devices."NAME"], [backends.NAME], [[model]] and the like."""

import os.path
from collections.abc import Sequence

from msgspec.structs import replace

from inferenceosd.settings.file import Key, Values, any_keys
from inferenceosd.settings.kinds import (
    CONTEXT,
    DURATION,
    ENVIRONMENT,
    FLAG,
    PARALLEL,
    PATH,
    PATHS,
    SIZE,
    TEXT,
    TEXTS,
    Folders,
    Refused,
    choice,
    or_auto,
    or_unset,
)
from planners.model import folded
from planners.waiting.callers import BadNetwork, network_of
from planners.waiting.line import Priority

# A device: [devices."NAME"]
DEVICE_LIMIT = Key(
    "limit", or_unset(SIZE), None, "How much of the device the daemon may use.", "all of it"
)
DEVICE_RESERVE = Key(
    "reserve",
    or_unset(SIZE),
    None,
    "How much of the device stays free for others.",
    "`memory.device_reserve`",
)
DEVICE_USE = Key(
    "use",
    or_unset(FLAG),
    None,
    "Whether the daemon uses the device at all.",
    "true; false for a CPU that poses as a GPU, such as llvmpipe",
)
DEVICE_KEYS = any_keys(DEVICE_LIMIT, DEVICE_RESERVE, DEVICE_USE)

# A backend: [backends.NAME]
BACKEND_PATH = Key(
    "path",
    PATH,
    "",
    "The llama-server binary. It is tried with a real decode before it is trusted.",
    "none: it must be written",
)
BACKEND_ENV = Key(
    "env",
    ENVIRONMENT,
    (),
    "Environment variables its processes get. Nothing else of GGML_*, LLAMA_* and LD_* does.",
    "what the daemon inherits must not change how an engine behaves",
)
BACKEND_KEYS = any_keys(BACKEND_PATH, BACKEND_ENV)

# A model: [[model]]
MODEL_NAME = Key(
    "name",
    or_unset(TEXT),
    None,
    "The model's name. Without `path`, the model of that name in the folders is meant.",
    "the file's name without .gguf",
)
MODEL_PATH = Key(
    "path",
    or_unset(PATH),
    None,
    "The GGUF file; of a split model, its first part.",
    "found in the folders by its name",
)
MODEL_ALIASES = Key("aliases", TEXTS, (), "Other names that callers may use.", "none")
MODEL_CONTEXT = Key(
    "context", or_auto(CONTEXT), None, "Tokens that one request may use.", "`models.context`"
)
MODEL_PARALLEL = Key(
    "parallel", or_auto(PARALLEL), None, "Requests served at once.", "`models.parallel`"
)
MODEL_PIN = Key(
    "pin",
    FLAG,
    False,
    "Load at start and never unload for another model.",
    "memory goes to what is asked for",
)
MODEL_KEEP_ALIVE = Key(
    "keep_alive",
    or_unset(DURATION),
    None,
    "How long it stays loaded after its last request.",
    "`models.keep_alive`",
)
_OWN_KEYS = {
    **dict.fromkeys(("--model", "-m"), "path"),
    **dict.fromkeys(("--alias", "-a"), "aliases"),
    **dict.fromkeys(("--ctx-size", "-c"), "context"),
    **dict.fromkeys(("--parallel", "-np"), "parallel"),
    **dict.fromkeys(("--mmproj", "-mm"), "mmproj"),
    **dict.fromkeys(("--spec-draft-model", "--model-draft", "-md"), "draft"),
    "--lora": "lora",
    **dict.fromkeys(("--host", "--port"), "server.listen"),
    **dict.fromkeys(("--api-key", "--api-key-file"), "server.keys"),
    "--ssl-key-file": "server.tls_key",
    "--ssl-cert-file": "server.tls_cert",
}
"""Options that would undo what was planned, or open a port past the daemon → what to set."""


def read_flags(value: object, folders: Folders) -> tuple[str, ...]:
    """Options of llama-server's, as written. Raises Refused for one that has a key of its own."""
    flags = TEXTS.read(value, folders)
    for index, flag in enumerate(flags):
        if key := _OWN_KEYS.get(flag.partition("=")[0]):
            problem = f"{flag} is given by the daemon; set {key} instead"
            raise Refused(problem, path=(index,), allowed="options that no key stands for")
    return flags


MODEL_FLAGS = Key(
    "flags",
    replace(TEXTS, read=read_flags),
    (),
    "Options appended to llama-server's command line as written, such as `--mlock`; none that a key"
    " stands for, such as `--ctx-size` or `--port`. What they change of memory and speed is not"
    " planned, only learned.",
    "none",
)
MODEL_MMPROJ = Key(
    "mmproj",
    or_unset(PATH),
    None,
    "The projector for images and sound.",
    "an mmproj file in the model's folder",
)
MODEL_DRAFT = Key(
    "draft", or_unset(PATH), None, "A small model that drafts for speculative decoding.", "none"
)
MODEL_LORA = Key("lora", PATHS, (), "LoRA adapters, applied in this order.", "none")
MODEL_KEYS = any_keys(
    MODEL_NAME,
    MODEL_PATH,
    MODEL_ALIASES,
    MODEL_CONTEXT,
    MODEL_PARALLEL,
    MODEL_PIN,
    MODEL_KEEP_ALIVE,
    MODEL_FLAGS,
    MODEL_MMPROJ,
    MODEL_DRAFT,
    MODEL_LORA,
)


# A group: [[group]]
GROUP_NAME = Key(
    "name", or_unset(TEXT), None, "What reasons and events call it.", "none: it must be written"
)
GROUP_MODELS = Key("models", TEXTS, (), "Its members, by name or alias.", "none: two at least")
GROUP_EXCLUSIVE = Key(
    "exclusive",
    FLAG,
    True,
    "Whether one member runs at a time; the one that is asked for takes the other's place.",
    "what a group is mostly for",
)
GROUP_ALONE = Key(
    "alone",
    FLAG,
    False,
    "Whether a member runs only while no model outside of the group does.",
    "others fit beside it, or do not, by their size",
)
GROUP_KEYS = any_keys(GROUP_NAME, GROUP_MODELS, GROUP_EXCLUSIVE, GROUP_ALONE)

# A caller: [[caller]]
CALLER_NAME = Key(
    "name",
    or_unset(TEXT),
    None,
    "Who it is: an API key's id, which is what `caller` says in the log's `request.served`, or its"
    " name; where there are no keys an address, or a network such as 10.0.0.0/8. The narrowest one"
    " counts, an id before a name.",
    "none: it must be written",
)
CALLER_PRIORITY = Key(
    "priority",
    choice(*(priority.value for priority in Priority)),
    Priority.NORMAL.value,
    "How urgent its requests are while a model has a line (a request can lower its own with the"
    " header `X-Priority`): of 21 slots that come free, high ones"
    " get 16, normal ones 4 and low ones 1, where all three wait.",
    "nobody goes first",
)
CALLER_KEYS = any_keys(CALLER_NAME, CALLER_PRIORITY)


def name_of(model: Values) -> str:
    """What a [[model]] is called: its name, else its file's; "" where it has neither."""
    if name := model.get(MODEL_NAME):
        return name
    return os.path.basename(model.get(MODEL_PATH) or "").removesuffix(".gguf")


def check_models(models: Sequence[Values]) -> None:
    """Raises Refused for a model without a name, and where two claim one; case does not count."""
    claimed: dict[str, tuple[int, str]] = {}
    for index, model in enumerate(models):
        if not name_of(model):
            raise Refused("neither name nor path", path=(index,), allowed="one of them, or both")
        names = [("name", name_of(model)), *(("aliases", a) for a in model.get(MODEL_ALIASES))]
        for key, name in names:
            earlier = claimed.setdefault(folded(name), (index, key))
            if earlier[0] != index:
                raise Refused(
                    f"{name[:80]!r} is a name of another model too",
                    path=(index, key),
                    allowed="each name and alias once",
                    earlier=earlier,
                )


def check_groups(groups: Sequence[Values]) -> None:
    """Raises Refused for a group without a name, a rule or members, and for what is there twice."""
    names: dict[str, int] = {}
    for index, group in enumerate(groups):
        name = group.get(GROUP_NAME)
        if name is None:
            raise Refused("no name", path=(index,), allowed="a name")
        earlier = names.setdefault(name.lower(), index)
        if earlier != index:
            raise Refused(
                f"{name[:80]!r} is a group already",
                path=(index, "name"),
                allowed="each name once",
                earlier=(earlier, "name"),
            )
        if not (group.get(GROUP_EXCLUSIVE) or group.get(GROUP_ALONE)):
            raise Refused(
                "neither exclusive nor alone", path=(index,), allowed="one of them, or both"
            )
        _check_members(group, index)


def _check_members(group: Values, index: int) -> None:
    members: dict[str, int] = {}
    named: tuple[str, ...] = group.get(GROUP_MODELS)
    for at, member in enumerate(named):
        earlier = members.setdefault(folded(member), at)
        if earlier != at:
            raise Refused(
                f"{member[:80]!r} is a member already",
                path=(index, "models", at),
                allowed="each member once",
                earlier=(index, "models", earlier),
            )
    least = 1 if group.get(GROUP_ALONE) else 2
    if len(members) < least:
        allowed = "one model at least" if least == 1 else "two models at least"
        told = "one member" if members else "no member"
        raise Refused(told, path=(index, "models"), allowed=allowed)


def check_callers(callers: Sequence[Values]) -> None:
    """Raises Refused for a caller without a name, a network that is none, and one named twice."""
    names: dict[str, int] = {}
    for index, caller in enumerate(callers):
        name = caller.get(CALLER_NAME)
        if name is None:
            raise Refused("no name", path=(index,), allowed="a name, an address or a network")
        try:
            network = network_of(name)
        except BadNetwork as exc:
            raise Refused(
                str(exc), path=(index, "name"), allowed="a network such as 10.0.0.0/8"
            ) from exc
        earlier = names.setdefault(name if network is None else str(network), index)
        if earlier != index:
            raise Refused(
                f"{name[:80]!r} is a caller already",
                path=(index, "name"),
                allowed="each caller once",
                earlier=(earlier, "name"),
            )


def check_backend(backend: Values) -> None:
    if not backend.has(BACKEND_PATH):
        raise Refused("no path", allowed=f"path = {BACKEND_PATH.kind.allowed}")
