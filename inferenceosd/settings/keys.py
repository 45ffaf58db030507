"""Each setting: its name, what it takes, what it means, its default and why. Defaults live here."""

from msgspec.structs import replace

from inferenceosd.settings.file import Key, any_keys
from inferenceosd.settings.kinds import (
    CACHE_TYPE,
    CONTEXT,
    DURATION,
    FLAG,
    PARALLEL,
    PATH,
    PATHS,
    SERVERS,
    SIZE,
    TEXT,
    TEXTS,
    choice,
    finite_duration,
    integer,
    list_of,
    or_auto,
    or_unset,
)
from inferenceosd.settings.server_keys import (
    SERVER_INSECURE,
    SERVER_KEEP_ALIVE_COMMENTS,
    SERVER_KEYS,
    SERVER_LISTEN,
    SERVER_MANAGE,
    SERVER_MAX_BODY,
    SERVER_MAX_CONNECTIONS,
    SERVER_MAX_PER_ADDRESS,
    SERVER_METRICS,
    SERVER_OLLAMA_STRICT,
    SERVER_ORIGINS,
    SERVER_STALL_TIMEOUT,
    SERVER_TLS_CERT,
    SERVER_TLS_KEY,
    SERVER_UI,
)
from inferenceosd.settings.table_keys import (
    BACKEND_KEYS,
    CALLER_KEYS,
    DEVICE_KEYS,
    GROUP_KEYS,
    MODEL_KEYS,
    check_backend,
    check_callers,
    check_groups,
    check_models,
)
from inferenceosd.settings.tables import array_of_tables, named_tables
from planners.sizes import GIB, MIB
from supervisor.models.places import Program

DAY_S = 24 * 3600.0
PROGRAMS = list_of(choice(*(program.value for program in Program)))

# The admin socket, and folders
ADMIN_SOCKET = Key(
    "admin.socket",
    or_unset(PATH),
    None,
    "The Unix socket of `inferenceosctl`, mode 0600.",
    "`admin.sock` in the runtime folder",
)
STATE_DIR = Key(
    "state.dir",
    or_unset(PATH),
    None,
    "What outlives a restart: the journal, what is known of engines, models of one's own.",
    "`$STATE_DIRECTORY`; /var/lib/inferenceosd for root; else `$XDG_STATE_HOME/inferenceosd`",
)
RUNTIME_DIR = Key(
    "runtime.dir",
    or_unset(PATH),
    None,
    "What ends with the daemon: its sockets. Mode 0700.",
    "`$RUNTIME_DIRECTORY`; /run/inferenceosd for root; else `$XDG_RUNTIME_DIR/inferenceosd`;"
    " `run` in the state folder where there is none",
)

# Models
MODELS_DIRS = Key(
    "models.dirs",
    or_unset(PATHS),
    None,
    "Folders searched for GGUF files, folders below them included.",
    "`models` in the state folder",
)
MODELS_FIND = Key(
    "models.find",
    replace(PROGRAMS, from_text=lambda text: [] if text == "none" else PROGRAMS.from_text(text)),
    tuple(program.value for program in Program),
    "Programs of this machine whose models are offered too, where there are any, read in place and"
    " never changed: their folders are found as these programs find them. [] for none (`none` in"
    " the variable); one's own folders go before them.",
    "what is on the disk need not be fetched again",
)
MODELS_KEEP_ALIVE = Key(
    "models.keep_alive",
    DURATION,
    300.0,
    "How long a model stays loaded after its last request; 0 unloads at once, -1 never.",
    "Ollama's",
)
MODELS_KEEP_CONVERSATIONS = Key(
    "models.keep_conversations",
    FLAG,
    True,
    "Whether what an unloaded model had read is kept on disk, 0600, until it is loaded again or the"
    " daemon ends: the next turn of a conversation then reads only what is new.",
    "reading a long conversation again takes longer than its file",
)
MODELS_CONTEXT = Key(
    "models.context",
    or_auto(CONTEXT),
    None,
    "Tokens that one request may use, prompt and reply together.",
    "the largest of a short ladder that fits and costs little speed, at most what was trained for",
)
MODELS_CONTEXT_POLICY = Key(
    "models.context_policy",
    choice("ratchet", "fixed", "client"),
    "ratchet",
    "What a request's `num_ctx` does to a loaded model. `ratchet`: a larger one loads it anew once,"
    " replies that run move along, and that size stays, over restarts too, until `inferenceosctl"
    " forget`. `fixed`: nothing."
    " `client`: each other size loads it anew, down to `context`. A smaller one only bounds its own"
    " request's prompt.",
    "one reload at most, whatever sizes its clients ask for in turn",
)
MODELS_PARALLEL = Key(
    "models.parallel",
    or_auto(PARALLEL),
    None,
    "Requests that one model serves at once; each has the whole context.",
    "one, as in Ollama",
)
MODELS_CACHE_TYPE_K = Key(
    "models.cache_type_k",
    or_auto(CACHE_TYPE),
    None,
    "Type of the K half of the KV cache.",
    "f16, llama.cpp's; q8_0 where that keeps layers on devices, or a model in memory at all",
)
MODELS_CACHE_TYPE_V = Key(
    "models.cache_type_v",
    or_auto(CACHE_TYPE),
    None,
    "Type of the V half of the KV cache; quantised ones need flash attention.",
    "as for the K half",
)
MODELS_CPU_FALLBACK = Key(
    "models.cpu_fallback",
    choice("allow", "deny"),
    "allow",
    "Whether a model that finds room on no device may run on the processor alone. With `deny` its"
    " callers are told what is missing; part of a model may lie in the host's memory all the same.",
    "slow is better than not at all",
)
MODELS_MAX_LOADED = Key(
    "models.max_loaded",
    or_auto(integer(1, 1000)),
    None,
    "Models loaded at once.",
    "as many as memory holds",
)
MODELS_MAX_WAITING = Key(
    "models.max_waiting",
    integer(0, 100_000),
    512,
    "Callers that may wait for one model; the next is told that the server is busy.",
    "Ollama's OLLAMA_MAX_QUEUE",
)

# Memory
MEMORY_LIMIT = Key(
    "memory.limit",
    or_unset(SIZE),
    None,
    "How much of the host's memory the daemon and its models may use.",
    "all of it, or of the control group's",
)
MEMORY_RESERVE = Key(
    "memory.reserve",
    SIZE,
    512 * MIB,
    "How much of the host's memory stays free for others.",
    "enough for a session and its page cache not to be swapped out",
)
MEMORY_DEVICE_RESERVE = Key(
    "memory.device_reserve",
    SIZE,
    GIB,
    "How much stays free on each device that has no reserve of its own.",
    "llama.cpp's `--fit-target`",
)

# Fleet
FLEET_LOAD_TIMEOUT = Key(
    "fleet.load_timeout",
    finite_duration(1, 366 * DAY_S),
    300.0,
    "How long a load may make no progress: no new line of its log, no step and no read.",
    "Ollama's OLLAMA_LOAD_TIMEOUT",
)
FLEET_LOAD_LIMIT = Key(
    "fleet.load_limit",
    finite_duration(1, 366 * DAY_S),
    6 * 3600.0,
    "How long a load may take in all, whatever progress it tells.",
    "a terabyte from a disk that reads 50 MB/s",
)
FLEET_DRAIN_TIMEOUT = Key(
    "fleet.drain_timeout",
    finite_duration(0, DAY_S),
    2.0,
    "How long running requests may go on after SIGTERM; `TimeoutStopSec` must exceed it.",
    "with stop_timeout it ends the daemon within 5 s",
)
FLEET_FINISH_TIMEOUT = Key(
    "fleet.finish_timeout",
    finite_duration(0, DAY_S),
    30.0,
    "How long running requests may go on once their model is to be unloaded or changed.",
    "a long answer at 20 tokens/s",
)
FLEET_WAIT_TIMEOUT = Key(
    "fleet.wait_timeout",
    finite_duration(1, DAY_S),
    600.0,
    "How long a caller waits for its turn, a load included.",
    "the patience of OpenAI's clients",
)
FLEET_TURN = Key(
    "fleet.turn",
    finite_duration(0.1, DAY_S),
    15.0,
    "How long a model in use goes on, and another one's callers wait, until it makes way for one"
    " that finds no room beside it; its load time where that is longer. Replies are finished.",
    "three loads of 5 s: no more than a quarter of the time goes into changing models",
)
FLEET_STOP_TIMEOUT = Key(
    "fleet.stop_timeout",
    finite_duration(0.1, 10),
    2.0,
    "From SIGTERM to SIGKILL of a llama-server that has nothing left to do; with the 5 s that the"
    " kernel may take for the latter, stopping ends within 15 s.",
    "it has nothing to save, and an idle one ends in 0.1 s",
)
FLEET_HANG_TIMEOUT = Key(
    "fleet.hang_timeout",
    finite_duration(10, DAY_S),
    60.0,
    "How long a llama-server at work may show no sign of it (no token, no step of a prompt, no"
    " processor time, no disk read) before it is replaced. One that computes is given ten times as"
    " long, but no longer than this for a caller who left; one that neither answers nor computes,"
    " 10 s.",
    "a batch on the slowest device takes seconds; a caller's patience ends in minutes",
)
FLEET_RESTART_LIMIT = Key(
    "fleet.restart_limit",
    integer(1, 1000),
    5,
    "Failures of one model's process within `restart_window` after which its callers are refused."
    " A load that fails counts one; a death while it served a half, and half of that again once it"
    " had served an answer.",
    "backoff reaches half a minute by then; what dies that often is broken",
)
FLEET_RESTART_COOLDOWN = Key(
    "fleet.restart_cooldown",
    finite_duration(1, 900),
    60.0,
    "How long callers are refused then, before the next request may try one load; twice as long"
    " after each trial that fails, up to 15m. An answer served, a changed file or setting, or"
    " `inferenceosctl retry` ends it.",
    "longer than backoff's last pause, short enough not to need an operator",
)
FLEET_RESTART_WINDOW = Key(
    "fleet.restart_window",
    finite_duration(1, 366 * DAY_S),
    600.0,
    "The window in which those failures are counted.",
    "longer than five loads of a large model",
)

# Engines, the log, Ollama
ENGINE_ORDER = Key(
    "engine.order",
    TEXTS,
    (),
    'Backends in order of preference, such as ["cuda", "vulkan", "cpu"]; others come after.',
    "the fastest kind for each device first",
)
RPC_SERVERS = Key(
    "rpc.servers",
    SERVERS,
    (),
    "ggml-rpc-servers, HOST:PORT each, whose devices are used like this machine's own. Whoever"
    " reaches such a server controls it: keep it on a private network.",
    "none",
)
LOG_FORMAT = Key(
    "log.format",
    choice("auto", "json", "console"),
    "auto",
    "How the daemon's log is written to stderr.",
    "console on a terminal, one JSON object a line elsewhere",
)
LOG_LEVEL = Key(
    "log.level",
    choice("debug", "info", "warning", "error"),
    "info",
    "The least that is logged.",
    "one line per state change and per request",
)
OLLAMA_VERSION = Key(
    "ollama.version",
    TEXT,
    "0.24.0",
    "What `/api/version` answers; clients switch features on by it.",
    "a version whose routes and fields are served",
)
OLLAMA_GPU_OVERHEAD = Key(
    "ollama.gpu_overhead",
    SIZE,
    0,
    "Kept free on each device on top of `memory.device_reserve`.",
    "Ollama's OLLAMA_GPU_OVERHEAD",
)

# Tables by name
DEVICES = Key(
    "devices",
    named_tables(DEVICE_KEYS, allowed='tables named after devices, [devices."NAME"]'),
    (),
    "Rules for single devices, by id, by the engine's name or by the vendor's, without case.",
    "none",
)
BACKENDS = Key(
    "backends",
    named_tables(BACKEND_KEYS, allowed="tables such as [backends.cuda]", check=check_backend),
    (),
    "llama-server binaries of one's own; they come before those that are found.",
    "none",
)
MODELS = Key(
    "model",
    array_of_tables(MODEL_KEYS, allowed="[[model]] tables", check=check_models),
    (),
    "Settings of single models.",
    "none",
)
GROUPS = Key(
    "group",
    array_of_tables(GROUP_KEYS, allowed="[[group]] tables", check=check_groups),
    (),
    "Models that may not run at once.",
    "none: memory alone decides",
)
CALLERS = Key(
    "caller",
    array_of_tables(CALLER_KEYS, allowed="[[caller]] tables", check=check_callers),
    (),
    "Callers whose requests are more or less urgent than others'.",
    "none: all take turns",
)
KEYS = any_keys(
    SERVER_LISTEN,
    SERVER_MAX_BODY,
    SERVER_KEEP_ALIVE_COMMENTS,
    SERVER_ORIGINS,
    SERVER_METRICS,
    SERVER_UI,
    SERVER_OLLAMA_STRICT,
    SERVER_INSECURE,
    SERVER_KEYS,
    SERVER_MANAGE,
    SERVER_TLS_CERT,
    SERVER_TLS_KEY,
    SERVER_MAX_CONNECTIONS,
    SERVER_MAX_PER_ADDRESS,
    SERVER_STALL_TIMEOUT,
    ADMIN_SOCKET,
    STATE_DIR,
    RUNTIME_DIR,
    MODELS_DIRS,
    MODELS_FIND,
    MODELS_KEEP_ALIVE,
    MODELS_KEEP_CONVERSATIONS,
    MODELS_CONTEXT,
    MODELS_CONTEXT_POLICY,
    MODELS_PARALLEL,
    MODELS_CACHE_TYPE_K,
    MODELS_CACHE_TYPE_V,
    MODELS_CPU_FALLBACK,
    MODELS_MAX_LOADED,
    MODELS_MAX_WAITING,
    MEMORY_LIMIT,
    MEMORY_RESERVE,
    MEMORY_DEVICE_RESERVE,
    FLEET_LOAD_TIMEOUT,
    FLEET_LOAD_LIMIT,
    FLEET_DRAIN_TIMEOUT,
    FLEET_FINISH_TIMEOUT,
    FLEET_WAIT_TIMEOUT,
    FLEET_TURN,
    FLEET_STOP_TIMEOUT,
    FLEET_HANG_TIMEOUT,
    FLEET_RESTART_LIMIT,
    FLEET_RESTART_COOLDOWN,
    FLEET_RESTART_WINDOW,
    ENGINE_ORDER,
    RPC_SERVERS,
    LOG_FORMAT,
    LOG_LEVEL,
    OLLAMA_VERSION,
    OLLAMA_GPU_OVERHEAD,
    DEVICES,
    BACKENDS,
    MODELS,
    GROUPS,
    CALLERS,
)
"""All of them, in the order of the reference."""
