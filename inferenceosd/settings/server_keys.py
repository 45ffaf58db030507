"""The settings of the public port, [server], as config_keys has all the others."""

from inferenceosd.settings.file import Key
from inferenceosd.settings.kinds import (
    FLAG,
    LISTEN,
    PATH,
    SIZE,
    TEXTS,
    Listen,
    choice,
    finite_duration,
    integer,
    or_unset,
)
from planners.sizes import MIB

DAY_S = 24 * 3600.0

SERVER_LISTEN = Key(
    "server.listen",
    LISTEN,
    Listen("127.0.0.1", 11434),
    "Where clients are served. `:11434` is every interface; where others than this machine reach"
    " it, an API key must exist, or `insecure` be set.",
    "Ollama's own address, so that its clients need no setting; this machine only",
)
SERVER_MAX_BODY = Key(
    "server.max_body",
    SIZE,
    64 * MIB,
    "The longest request body that is read; longer ones are refused with 413.",
    "a dozen photographs in base64",
)
SERVER_ORIGINS = Key(
    "server.origins",
    TEXTS,
    (),
    "Origins of web pages that may call, besides this machine's own; `*` stands for anything.",
    "as in Ollama, only local pages and applications",
)

SERVER_KEEP_ALIVE_COMMENTS = Key(
    "server.keep_alive_comments",
    finite_duration(0, DAY_S),
    15.0,
    "How often a stream of events says that its reply is still to come, by a comment or Anthropic's"
    " `ping`: while its model loads, while it waits, while its prompt is read. The first one"
    " commits the status to 200, so that an error after it is an event. 0 sends none.",
    "proxies commonly give up after 30 to 60 s of silence",
)
SERVER_METRICS = Key(
    "server.metrics",
    FLAG,
    True,
    "Whether `/metrics`, for Prometheus, is served where clients are; the admin socket always has"
    " it.",
    "what it tells, `/api/ps` and `/api/tags` tell too, but for counts",
)
SERVER_UI = Key(
    "server.ui",
    FLAG,
    False,
    "Whether llama-server's own web chat is served, at `/upstream/MODEL/`.",
    "a page is served only where one is wanted",
)
SERVER_OLLAMA_STRICT = Key(
    "server.ollama_strict",
    FLAG,
    False,
    "Answer as Ollama does even where this daemon differs on purpose: prompts that are too long are"
    " cut unless `truncate` or `shift` is false, refused web pages get no reason, and under `/v1`"
    " `system_fingerprint` is `fp_ollama`, thoughts are `reasoning`, and options that a request"
    " leaves out are Ollama's.",
    "no client is known to need it; docs/ollama.md lists each difference",
)
SERVER_INSECURE = Key(
    "server.insecure",
    FLAG,
    False,
    "Serve other machines though no API key exists: whoever reaches the port may use all models.",
    "only for a port that a firewall, or a proxy that asks for passwords, keeps strangers from",
)
SERVER_KEYS = Key(
    "server.keys",
    or_unset(PATH),
    None,
    "The file of API keys that `inferenceosctl key` edits; mode 0600. Where it holds one, every"
    " caller needs one.",
    "`keys.json` in the state folder",
)
SERVER_MANAGE = Key(
    "server.manage",
    choice("open", "key", "off"),
    "open",
    "Who may change over HTTP which models there are (pull, delete, create, copy). `open`: whoever"
    " may call, or, where keys exist, holds one of scope `manage`. `key`: nobody without such a"
    " key. `off`: nobody.",
    "as Ollama's clients expect on one's own machine",
)
SERVER_TLS_CERT = Key(
    "server.tls_cert",
    or_unset(PATH),
    None,
    "A certificate and its chain in PEM, with which HTTPS is served instead of HTTP. Read again"
    " when the file changes.",
    "plain HTTP",
)
SERVER_TLS_KEY = Key(
    "server.tls_key",
    or_unset(PATH),
    None,
    "The private key of `tls_cert` in PEM, without a password; others may not read it.",
    "plain HTTP",
)
SERVER_MAX_CONNECTIONS = Key(
    "server.max_connections",
    integer(1, 65536),
    4096,
    "Connections at once; one more is told so (503) and closed. At most half as many as the process"
    " may open files.",
    "more than the callers whom a dozen models keep waiting",
)
SERVER_MAX_PER_ADDRESS = Key(
    "server.max_connections_per_address",
    integer(1, 65536),
    256,
    "Of these, from one address of another machine, or one /64 of IPv6. Raise it where a reverse"
    " proxy runs elsewhere.",
    "an eager client's pool, and a sixteenth of all",
)
SERVER_STALL_TIMEOUT = Key(
    "server.stall_timeout",
    finite_duration(1, DAY_S),
    60.0,
    "How long a caller may send its body, or read its reply, at less than 512 bytes/s before it is"
    " cut and its slot is free.",
    "nginx's client_body_timeout and send_timeout",
)
