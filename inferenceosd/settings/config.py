"""The daemon's whole configuration as one frozen value, and how its layers are merged.

built-in defaults < TOML file < OLLAMA_* < INFERENCEOSD_* < options.
`load_config` is pure; `read_config` reads the file.
"""

import os
import os.path
import stat
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from inferenceosd.platform_folders import (
    Platform,
    config_candidates,
    own_model_dir,
    runtime_folder,
    state_folder,
    system_wide_file,
    this_platform,
    unread_by_root,
)
from inferenceosd.settings import keys, server_keys, table_keys
from inferenceosd.settings.environment import CONFIG_VARIABLE, ollama_settings, own_settings
from inferenceosd.settings.error import ConfigError
from inferenceosd.settings.file import Setting, Values, any_key, file_settings, read_setting
from inferenceosd.settings.kinds import Listen
from inferenceosd.settings.pins import check_pins
from planners.instances.groups import Group
from planners.model import ModelId, ModelSettings
from planners.settings import (
    ContextPolicy,
    DeviceRule,
    FleetSettings,
    MemoryRule,
    ModelRule,
    PlacementRules,
)
from planners.sizes import MIB
from planners.waiting.callers import CallerRule, Callers, callers_of
from planners.waiting.line import Priority
from proxy.admission.gate import Management
from proxy.edge.crowd import CrowdLimits
from supervisor.kept_file import open_at_once
from supervisor.models.places import Place, Program, places_of

MAX_FILE_BYTES = MIB  # a thousand models fit in a tenth of it
CHILD_SOCKET_BYTES = 36  # what a child's socket may add to the runtime folder's path


class Backend(NamedTuple):
    """A llama-server binary that the operator named."""

    name: str
    path: str
    env: tuple[tuple[str, str], ...]


class LogSettings(Struct, frozen=True):
    """How the daemon logs."""

    format: str
    """"auto", "json" or "console"."""
    level: str
    """"debug", "info", "warning" or "error"."""


class Options(Struct, frozen=True):
    """What the command line says; None and () leave it to the layers below."""

    config: str | None = None
    listen: str | None = None
    admin_socket: str | None = None
    state_dir: str | None = None
    model_dirs: tuple[str, ...] = ()
    log_format: str | None = None
    log_level: str | None = None
    insecure: bool | None = None


class Config(Struct, frozen=True):
    """Every setting in force. Paths are absolute, sizes bytes, durations seconds."""

    file: str | None
    """The configuration file it was read from; None where there is none."""
    listen: Listen
    max_body_bytes: int
    keep_alive_comments_s: float
    origins: tuple[str, ...]
    serves_metrics: bool
    ui: bool
    ollama_strict: bool
    """Whether its deliberate differences from Ollama are off."""
    is_insecure: bool
    keys_path: str | None
    """Of the file of API keys, where it is told."""
    management: Management
    tls: tuple[str, str] | None
    """Paths of a certificate and its key; None for plain HTTP."""
    crowd: CrowdLimits
    stall_s: float
    admin_socket: str
    state_dir: str
    runtime_dir: str
    model_dirs: tuple[str, ...]
    places: tuple[Place, ...]
    """Folders of other programs, where models of theirs may be."""
    model_defaults: ModelSettings
    """Of a model without a rule."""
    models: tuple[ModelRule, ...]
    placement: PlacementRules
    fleet: FleetSettings
    backends: tuple[Backend, ...]
    log: LogSettings
    ollama_version: str
    warnings: tuple[str, ...]
    """What was ignored and why, each a sentence to be logged at start."""
    beside_file: tuple[str, ...] = ()
    """Variables and options that settings in force come from, in the order of their layers."""

    @property
    def keys_file(self) -> str:
        """The file of API keys."""
        return self.keys_path or os.path.join(self.state_dir, "keys.json")


def read_config(
    options: Options,
    *,
    environ: Mapping[str, str] | None = None,
    platform: Platform | None = None,
) -> Config:
    """The configuration of this process. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    platform = platform or this_platform()
    file = _config_file(options, environ, platform)
    text = None if file is None else _read_file(file)
    config = load_config(file=file, text=text, environ=environ, options=options, platform=platform)
    passed_over = unread_by_root(environ, platform)
    if passed_over is None or passed_over == file or not os.path.exists(passed_over):
        return config
    warning = f"{passed_over} is not read: root's daemon reads {file or system_wide_file(platform)}"
    return replace(config, warnings=(*config.warnings, warning))


def _config_file(options: Options, environ: Mapping[str, str], platform: Platform) -> str | None:
    told = options.config or environ.get(CONFIG_VARIABLE, "").strip()
    if told:
        return platform.folders.absolute(told)
    return next(filter(os.path.exists, config_candidates(environ, platform)), None)


def _read_file(file: str) -> str:
    try:
        with open(file, "rb", opener=open_at_once) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError("not a file", source=file)
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as exc:
        raise ConfigError(f"cannot be read: {exc.strerror}", source=file) from exc
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"longer than {MAX_FILE_BYTES} bytes", source=file)
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ConfigError("not UTF-8", source=file, line=line) from exc


def load_config(
    *,
    file: str | None,
    text: str | None,
    environ: Mapping[str, str],
    options: Options,
    platform: Platform,
) -> Config:
    """What a file's text, an environment and options make on a platform. Raises ConfigError."""
    ollama, warnings = ollama_settings(environ, platform.folders)
    settings: dict[str, Setting] = {}
    if file is not None and text is not None:
        at = platform.folders_from(os.path.dirname(file))
        settings |= file_settings(text, file=file, keys=keys.KEYS, folders=at)
    settings |= ollama
    settings |= own_settings(environ, keys=keys.KEYS, folders=platform.folders)
    settings |= _option_settings(options, platform)
    config = _assembled(settings, file, warnings, environ, platform)
    check_pins(config.models, config.fleet.groups, file=file, text=text)
    _check_sockets(config, settings, platform)
    return config


def _option_settings(options: Options, platform: Platform) -> dict[str, Setting]:
    given = (
        (any_key(server_keys.SERVER_LISTEN), "--listen", options.listen),
        (any_key(keys.ADMIN_SOCKET), "--admin-socket", options.admin_socket),
        (any_key(keys.STATE_DIR), "--state-dir", options.state_dir),
        (any_key(keys.MODELS_DIRS), "--model-dir", list(options.model_dirs) or None),
        (any_key(keys.LOG_FORMAT), "--log-format", options.log_format),
        (any_key(keys.LOG_LEVEL), "--log-level", options.log_level),
        (any_key(server_keys.SERVER_INSECURE), "--insecure", options.insecure or None),
    )
    return {
        key.name: Setting(read_setting(key, value, source=option, folders=platform.folders), option)
        for key, option, value in given
        if value is not None
    }


def _assembled(
    settings: Mapping[str, Setting],
    file: str | None,
    warnings: tuple[str, ...],
    environ: Mapping[str, str],
    platform: Platform,
) -> Config:
    values = Values({name: setting.value for name, setting in settings.items()})
    state_dir = values.get(keys.STATE_DIR) or state_folder(environ, platform)
    runtime_dir = values.get(keys.RUNTIME_DIR) or runtime_folder(
        environ, platform, state_dir=state_dir
    )
    dirs = values.get(keys.MODELS_DIRS)
    return Config(
        file=file,
        listen=values.get(server_keys.SERVER_LISTEN),
        max_body_bytes=values.get(server_keys.SERVER_MAX_BODY),
        keep_alive_comments_s=values.get(server_keys.SERVER_KEEP_ALIVE_COMMENTS),
        origins=values.get(server_keys.SERVER_ORIGINS),
        serves_metrics=values.get(server_keys.SERVER_METRICS),
        ui=values.get(server_keys.SERVER_UI),
        ollama_strict=values.get(server_keys.SERVER_OLLAMA_STRICT),
        is_insecure=values.get(server_keys.SERVER_INSECURE),
        keys_path=values.get(server_keys.SERVER_KEYS),
        management=Management(values.get(server_keys.SERVER_MANAGE)),
        tls=_tls(values, settings),
        crowd=_crowd(values),
        stall_s=values.get(server_keys.SERVER_STALL_TIMEOUT),
        admin_socket=values.get(keys.ADMIN_SOCKET) or os.path.join(runtime_dir, "admin.sock"),
        state_dir=state_dir,
        runtime_dir=runtime_dir,
        model_dirs=(own_model_dir(state_dir),) if dirs is None else dirs,
        places=_places(values, environ, platform),
        model_defaults=_model_settings(Values({}), values),
        models=tuple(_model_rule(model, values) for model in values.get(keys.MODELS)),
        placement=_placement(values),
        fleet=_fleet(values),
        backends=_backends(values),
        log=LogSettings(values.get(keys.LOG_FORMAT), values.get(keys.LOG_LEVEL)),
        ollama_version=values.get(keys.OLLAMA_VERSION),
        warnings=warnings,
        beside_file=_beside_file(settings, file),
    )


def _crowd(values: Values) -> CrowdLimits:
    return CrowdLimits(
        in_all=values.get(server_keys.SERVER_MAX_CONNECTIONS),
        per_address=values.get(server_keys.SERVER_MAX_PER_ADDRESS),
    )


def _places(values: Values, environ: Mapping[str, str], platform: Platform) -> tuple[Place, ...]:
    """Where programs that are looked for keep their models."""
    return tuple(
        place
        for program in values.get(keys.MODELS_FIND)
        for place in places_of(
            Program(program), environ, home=platform.home, system=platform.system
        )
    )


def _backends(values: Values) -> tuple[Backend, ...]:
    return tuple(
        Backend(name, table.get(table_keys.BACKEND_PATH), table.get(table_keys.BACKEND_ENV))
        for name, table in values.get(keys.BACKENDS)
    )


def _beside_file(settings: Mapping[str, Setting], file: str | None) -> tuple[str, ...]:
    sources = {setting.source for setting in settings.values()} - {file}
    return tuple(sorted(sources, key=lambda name: (name.startswith("--"), name)))


def _tls(values: Values, settings: Mapping[str, Setting]) -> tuple[str, str] | None:
    """Both paths or none. Raises ConfigError."""
    cert, key = values.get(server_keys.SERVER_TLS_CERT), values.get(server_keys.SERVER_TLS_KEY)
    if cert is not None and key is not None:
        return cert, key
    for mine, other in (
        (server_keys.SERVER_TLS_CERT, server_keys.SERVER_TLS_KEY),
        (server_keys.SERVER_TLS_KEY, server_keys.SERVER_TLS_CERT),
    ):
        if (setting := settings.get(mine.name)) is not None:
            problem = f"it needs {other.name} beside it"
            raise ConfigError(problem, source=setting.source, line=setting.line, key=mine.name)
    return None


def _model_rule(model: Values, values: Values) -> ModelRule:
    return ModelRule(
        name=ModelId(table_keys.name_of(model)),
        path=model.get(table_keys.MODEL_PATH),
        aliases=model.get(table_keys.MODEL_ALIASES),
        settings=_model_settings(model, values),
    )


def _model_settings(model: Values, values: Values) -> ModelSettings:
    """What [[model]] says; where it is silent, [models].

    Context and slots stay None: placement has the rules for those.
    """
    keep_alive_s = model.get(table_keys.MODEL_KEEP_ALIVE)
    return ModelSettings(
        context=model.get(table_keys.MODEL_CONTEXT),
        parallel=model.get(table_keys.MODEL_PARALLEL),
        pin=model.get(table_keys.MODEL_PIN),
        keep_alive_s=values.get(keys.MODELS_KEEP_ALIVE) if keep_alive_s is None else keep_alive_s,
        flags=model.get(table_keys.MODEL_FLAGS),
        mmproj_path=model.get(table_keys.MODEL_MMPROJ),
        draft_path=model.get(table_keys.MODEL_DRAFT),
        lora_paths=model.get(table_keys.MODEL_LORA),
    )


def _placement(values: Values) -> PlacementRules:
    return PlacementRules(
        devices=tuple(
            DeviceRule(
                name=name,
                limit_bytes=table.get(table_keys.DEVICE_LIMIT),
                reserve_bytes=table.get(table_keys.DEVICE_RESERVE),
                use=table.get(table_keys.DEVICE_USE),
            )
            for name, table in values.get(keys.DEVICES)
        ),
        memory=MemoryRule(values.get(keys.MEMORY_LIMIT), values.get(keys.MEMORY_RESERVE)),
        device_reserve_bytes=values.get(keys.MEMORY_DEVICE_RESERVE)
        + values.get(keys.OLLAMA_GPU_OVERHEAD),
        context=values.get(keys.MODELS_CONTEXT),
        parallel=values.get(keys.MODELS_PARALLEL),
        type_k=values.get(keys.MODELS_CACHE_TYPE_K),
        type_v=values.get(keys.MODELS_CACHE_TYPE_V),
        backends=values.get(keys.ENGINE_ORDER),
        allows_cpu_fallback=values.get(keys.MODELS_CPU_FALLBACK) == "allow",
        rpc_servers=values.get(keys.RPC_SERVERS),
    )


def _fleet(values: Values) -> FleetSettings:
    return FleetSettings(
        max_loaded=values.get(keys.MODELS_MAX_LOADED),
        max_waiting=values.get(keys.MODELS_MAX_WAITING),
        load_s=values.get(keys.FLEET_LOAD_TIMEOUT),
        load_limit_s=values.get(keys.FLEET_LOAD_LIMIT),
        drain_s=values.get(keys.FLEET_DRAIN_TIMEOUT),
        finish_s=values.get(keys.FLEET_FINISH_TIMEOUT),
        wait_s=values.get(keys.FLEET_WAIT_TIMEOUT),
        turn_s=values.get(keys.FLEET_TURN),
        stop_s=values.get(keys.FLEET_STOP_TIMEOUT),
        restart_window_s=values.get(keys.FLEET_RESTART_WINDOW),
        restart_limit=values.get(keys.FLEET_RESTART_LIMIT),
        cooldown_s=values.get(keys.FLEET_RESTART_COOLDOWN),
        hang_s=values.get(keys.FLEET_HANG_TIMEOUT),
        context_policy=ContextPolicy(values.get(keys.MODELS_CONTEXT_POLICY)),
        groups=tuple(_group(group) for group in values.get(keys.GROUPS)),
        callers=_callers(values.get(keys.CALLERS)),
        keeps_conversations=values.get(keys.MODELS_KEEP_CONVERSATIONS),
    )


def _callers(tables: tuple[Values, ...]) -> Callers:
    return callers_of(
        CallerRule(
            table.get(table_keys.CALLER_NAME) or "",
            Priority(table.get(table_keys.CALLER_PRIORITY)),
        )
        for table in tables
    )


def _group(group: Values) -> Group:
    return Group(
        name=group.get(table_keys.GROUP_NAME) or "",
        models=group.get(table_keys.GROUP_MODELS),
        exclusive=group.get(table_keys.GROUP_EXCLUSIVE),
        alone=group.get(table_keys.GROUP_ALONE),
    )


def _check_sockets(config: Config, settings: Mapping[str, Setting], platform: Platform) -> None:
    """Raises ConfigError where a socket's path would not fit into the kernel's sockaddr_un."""
    limit_bytes = platform.socket_path_limit_bytes
    for key, path, room_bytes in (
        (keys.ADMIN_SOCKET, config.admin_socket, 0),
        (keys.RUNTIME_DIR, config.runtime_dir, CHILD_SOCKET_BYTES),
    ):
        length_bytes = len(os.fsencode(path))
        if length_bytes + room_bytes <= limit_bytes:
            continue
        setting = settings.get(key.name)
        raise ConfigError(
            f"{path} is {length_bytes} bytes long, too long for Unix sockets",
            source=setting.source if setting else "the default folders",
            line=setting.line if setting else None,
            key=key.name,
            allowed=f"at most {limit_bytes - room_bytes} bytes;"
            " set admin.socket and runtime.dir to shorter paths",
        )
