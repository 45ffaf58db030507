#!/usr/bin/env -S python3 -SE
"""A llama-server without a model: argv, log, child protocol, HTTP and ways to end of the real one.

One file of the standard library alone, and long for that, so that it can be copied anywhere and
take any engine's place. It replies with the words of the last message, over and over. What goes
wrong is ordered as JSON (see Faults): `--fake-faults JSON`, `--fake-faults FILE`, or the same in
FAKE_FAULTS; a file is read at each launch. Its contract tests run on the real binary too, so that
it cannot drift.
"""

import asyncio
import json
import os
import signal
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

Json = dict[str, Any]

CHAT, COMPLETIONS, COMPLETION = "/v1/chat/completions", "/v1/completions", "/completion"

LOAD_ENDS = {
    "oom": (
        "ggml_vulkan: Device memory allocation of size 9217867776 failed.\n"
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory\n"
        "alloc_tensor_range: failed to allocate Vulkan0 buffer of size 9217867776"
    ),
    "host_oom": (
        "ggml_aligned_malloc: insufficient memory (attempted to allocate 8791.88 MB)\n"
        "alloc_tensor_range: failed to allocate CPU buffer of size 9218949120\n"
        "llama_init_from_model: failed to initialize the context:"
        " failed to allocate buffer for kv cache"
    ),
    "bad_model": "gguf_init_from_reader: invalid magic characters: 'vers', expected 'GGUF'",
    "bad_arch": "llama_model_load: error loading model: unknown model architecture: 'zlama'",
    "device_lost": "ggml_vulkan: vk::Queue::submit: ErrorDeviceLost",
    "crash": "",
}
OTHER_FLAGS = (
    "--fit", "--device", "-dev", "-ts", "--tensor-split", "-sm", "-b", "-ub", "-fa",
    "--flash-attn", "-ctk", "-ctv", "-t", "-tb", "-lv", "--cache-ram", "-cram", "-ctxcp",
    "--no-ui", "--jinja", "--mmproj", "--lora", "--props", "--metrics", "--offline",
    "--no-kv-unified", "--embedding", "--embeddings", "--pooling", "--rerank", "--reranking",
)  # fmt: skip
LEVELS = """-lv, --verbosity, --log-verbosity N   Set the verbosity threshold. Values:
                                         - 3: info
                                         - 4: trace (more info)
                                         - 5: debug"""
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nX-Accel-Buffering: no\r\nKeep-Alive: timeout=5, max=100\r\n\r\n"
)


@dataclass
class Faults:
    """What goes wrong; nothing by default."""

    load_s: float = 0.0
    read_s: float = 0.0  # reads its model over and over for that long, and says nothing
    stuck_loading: bool = False  # progress stands still and it never becomes ready
    chatter: str = ""  # a line that it writes ten times a second while it loads; {n} is a count
    die_while_loading: str = ""  # a key of LOAD_ENDS; "crash" is a SIGSEGV
    oom_above_layers: int = -1  # a device OOM while -ngl is greater
    sigill: bool = False  # dies of SIGILL on the first decode
    die_before_reply: bool = False  # SIGKILLs itself when a completion arrives
    die_at_byte: int = -1  # SIGKILLs itself after that many bytes of a stream
    last_words: str = ""  # a key of LOAD_ENDS: it prints that, and exits with 1, where it would die
    # (also at a SIGUSR1: at the moment that a test chooses)
    die_at_slot_file: bool = False  # SIGKILLs itself when it is to write or read one
    cut_at_byte: int = -1  # closes the connection there instead, and lives
    garbage: bool = False  # answers completions with what is no HTTP
    chop_bytes: int = 0  # cuts a stream into pieces of that size, wherever that is
    error_at_token: int = -1  # sends an error event in its place and ends the stream
    end_at_token: int = -1  # ends the stream there, cleanly and without a word
    hang_decode: bool = False  # takes completions and never answers
    stuck_slots: bool = False  # nor does /slots while a completion runs, as behind a stuck decode
    poison: str = ""  # a SIGSEGV when a prompt has this word
    no_memory: bool = False  # has none for a request's sampler, and says 400, as the engine does
    burn: bool = False  # computes all through prompt_s
    close_idle: bool = False  # closes each connection after one reply, unannounced
    ignore_sigterm: bool = False
    flood_stderr: int = 0  # lines of 200 bytes before it is ready
    token_s: float = 0.0
    slow_while: str = ""  # a path: token_s holds while there is something, where it is given
    prompt_s: float = 0.0
    tokens: int = 16  # of a reply that nothing else bounds
    launches: int = 0  # the faults of a FILE hold for its first so many launches; 0 is all

    @classmethod
    def ordered(cls, told: str) -> "Faults":
        """The faults of a JSON text, or of a file of it."""
        if not told:
            return cls()
        if told.lstrip().startswith("{"):
            return cls(**json.loads(told))
        faults = cls(**json.loads(Path(told).read_text()))
        if not faults.launches:
            return faults
        counter = Path(told + ".launches")
        launch = (len(counter.read_text()) if counter.exists() else 0) + 1
        counter.write_text("x" * launch)
        return faults if launch <= faults.launches else cls(tokens=faults.tokens)


@dataclass
class Options:
    """The part of llama-server's argv that shows in its behaviour."""

    model: str = ""
    alias: str = ""
    host: str = "127.0.0.1"
    port: int = 8080
    ctx: int = 4096
    parallel: int = 1
    ngl: int = 0
    slot_dir: str = ""
    ping_s: float = 30.0
    faults: str = ""
    embedding: bool = False


FLAGS: dict[str, tuple[str, Callable[[str], object]]] = {
    "-m": ("model", str),
    "--model": ("model", str),
    "-a": ("alias", str),
    "--alias": ("alias", str),
    "--host": ("host", str),
    "--port": ("port", int),
    "-c": ("ctx", int),
    "--ctx-size": ("ctx", int),
    "-np": ("parallel", int),
    "--parallel": ("parallel", int),
    "-ngl": ("ngl", int),
    "--gpu-layers": ("ngl", int),
    "--n-gpu-layers": ("ngl", int),
    "--slot-save-path": ("slot_dir", str),
    "--sse-ping-interval": ("ping_s", float),
    "--fake-faults": ("faults", str),
}


def parsed(argv: list[str]) -> Options:
    """The options told; flags of the real one without a meaning here are passed over."""
    options, rest = Options(faults=os.environ.get("FAKE_FAULTS", "")), iter(argv)
    for flag in rest:
        if flag in ("--embedding", "--embeddings"):
            options.embedding = True
        elif flag in FLAGS:
            name, kind = FLAGS[flag]
            setattr(options, name, kind(next(rest)))
    options.alias = options.alias or options.model
    return options


def compact(value: object) -> str:
    """JSON as nlohmann writes it."""
    return json.dumps(value, separators=(",", ":"))


def log(component: str, text: str) -> None:
    """One stderr line as `-lv 4` prints it."""
    us = int((time.monotonic() - STARTED_S) * 1e6)
    minutes, seconds = divmod(us // 1_000_000, 60)
    stamp = f"{minutes}.{seconds:02d}.{us // 1000 % 1000:03d}.{us % 1000:03d}"
    print(f"{stamp} I {component}: {text}", file=sys.stderr, flush=True)


def fail(lines: str) -> NoReturn:
    """The end of a launch that went wrong."""
    print(lines, file=sys.stderr, flush=True)
    os._exit(1)


def kill_self(signum: int) -> NoReturn:
    """An end without a word."""
    os.kill(os.getpid(), signum)
    time.sleep(10)  # a cadence nobody sees: the signal comes first
    os._exit(1)


def burn(for_s: float) -> None:
    """Takes processor time."""
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        pass


def die() -> NoReturn:
    """An end in the middle of work, with last words where they are ordered."""
    if FAULTS.last_words:
        fail(LOAD_ENDS[FAULTS.last_words])
    kill_self(signal.SIGKILL)


GRAMMARS = ("grammar", "json_schema", "response_format")
NO_GRAMMAR = "nothing"
"""What of a grammar or a schema the fake refuses."""


def pieces(text: str) -> list[str]:
    """`text` cut into its tokens: words with the space before them."""
    words = text.split(" ")
    return [word if at == 0 else " " + word for at, word in enumerate(words) if word or at]


def token_id(piece: str) -> int:
    """The id of a piece, the same in every run."""
    return zlib.crc32(piece.encode()) % 49149 + 3


def prompt_of(path: str, asked: Json) -> list[str]:
    """The tokens of what a completion request asks. Raises Refused."""
    if path != CHAT:
        told = asked.get("prompt") or ""
        return pieces(" ".join(map(str, told)) if isinstance(told, list) else str(told))
    if not isinstance(asked.get("messages"), list):
        raise Refused(400, "invalid_request_error", "'messages' is required")
    last: Json = asked["messages"][-1] if asked["messages"] else {}
    for part in last.get("content") or ():
        if isinstance(part, dict) and part["type"] != "text":
            hint = "hint: if this is unexpected, you may need to provide the mmproj"
            kind = part["type"].removesuffix("_url").removeprefix("input_")
            raise Refused(500, "server_error", f"{kind} input is not supported - {hint}")
    return pieces(str(last.get("content") or ""))


def prompts(path: str, asked: Json) -> list[Json]:
    """The request for each prompt of an array; one with a token id in it is a prompt itself."""
    told = asked.get("prompt")
    if path == CHAT or not isinstance(told, list) or any(isinstance(item, int) for item in told):
        return [asked]
    if not told:
        raise Refused(400, "invalid_request_error", '"prompt" must not be empty')
    return [{**asked, "prompt": prompt} for prompt in told]


def templated(messages: list[Json]) -> str:
    """ChatML."""
    told = [f"<|im_start|>{m['role']}\n{m.get('content') or ''}<|im_end|>\n" for m in messages]
    return "".join(told) + "<|im_start|>assistant\n"


class Refused(Exception):
    """An error reply."""

    def __init__(self, status: int, kind: str, message: str, **more: object) -> None:
        self.status = status
        self.body = {"error": {"code": status, "message": message, "type": kind, **more}}
        super().__init__(message)


@dataclass
class Job:
    """One completion under way."""

    prompt: list[str]
    limit: int
    slot: int
    logprobs: bool
    seed: object
    started_s: float = field(default_factory=time.monotonic)
    done: int = 0

    async def words(self) -> AsyncIterator[str]:
        """The reply, a token at a time."""
        if FAULTS.burn:
            await asyncio.to_thread(burn, FAULTS.prompt_s)
        else:
            await asyncio.sleep(FAULTS.prompt_s)
        source = self.prompt or ["nothing"]
        for n in range(self.limit):
            if FAULTS.token_s and (not FAULTS.slow_while or os.path.exists(FAULTS.slow_while)):
                await asyncio.sleep(FAULTS.token_s)
            word = source[n % len(source)]
            self.done = n + 1
            yield word if n == 0 or word.startswith(" ") else " " + word

    @property
    def finish(self) -> str:
        """Why it ended."""
        return "length" if self.done < FAULTS.tokens else "stop"

    def took(self) -> Json:
        """Usage and timings."""
        ms = max((time.monotonic() - self.started_s) * 500, 0.001)
        n = len(self.prompt)
        usage = {
            "completion_tokens": self.done,
            "prompt_tokens": n,
            "total_tokens": n + self.done,
            "prompt_tokens_details": {"cached_tokens": 0},
        }
        return {"usage": usage, "timings": self.timings(ms)}

    def timings(self, ms: float) -> Json:
        """As the real one words them."""
        return {
            "cache_n": 0,
            "prompt_n": len(self.prompt),
            "prompt_ms": ms,
            "prompt_per_token_ms": ms / max(len(self.prompt), 1),
            "prompt_per_second": 1e3 * len(self.prompt) / ms,
            "predicted_n": self.done,
            "predicted_ms": ms,
            "predicted_per_token_ms": ms / max(self.done, 1),
            "predicted_per_second": 1e3 * self.done / ms,
        }


def logprob(piece: str) -> Json:
    """One certain token."""
    one = {"id": token_id(piece), "token": piece, "bytes": list(piece.encode()), "logprob": 0.0}
    return {**one, "top_logprobs": [one]}


@dataclass
class Shape:
    """The objects of one route's replies."""

    path: str
    model: str
    include_usage: bool
    index: int = 0

    def at(self, index: int) -> "Shape":
        """The same, of another choice."""
        return Shape(self.path, self.model, self.include_usage, index)

    def envelope(self, kind: str, choice: Json | None, **more: object) -> Json:
        """One OpenAI object."""
        return {
            "choices": [] if choice is None else [choice],
            "created": int(time.time()),
            "id": "chatcmpl-fake",
            "model": self.model,
            "system_fingerprint": "b1-fake",
            "object": kind,
            **more,
        }

    def part(self, choice: Json | None, **more: object) -> Json:
        """One chunk of a stream."""
        kind = "chat.completion.chunk" if self.path == CHAT else "text_completion"
        return self.envelope(kind, choice, **more)

    def opening(self) -> list[Json]:
        """What precedes the first token."""
        if self.path != CHAT:
            return []
        delta = {"role": "assistant", "content": None}
        return [self.part({"finish_reason": None, "index": self.index, "delta": delta})]

    def progress(self, job: Job, processed: int) -> Json:
        """An event of the prompt's progress."""
        n = len(job.prompt)
        told = {"prompt_progress": {"total": n, "cache": 0, "processed": processed, "time_ms": 1}}
        if self.path == COMPLETION:
            return {
                "index": self.index,
                "content": "",
                "tokens": [0],
                "stop": False,
                "id_slot": -1,
                **told,
            }
        return {**(self.opening() or [self.part(None)])[0], **told}

    def word(self, job: Job, word: str) -> Json:
        """One token's event."""
        probs = {"logprobs": {"content": [logprob(word)]}} if job.logprobs else {}
        if self.path == CHAT:
            return self.part(
                {"finish_reason": None, "index": self.index, "delta": {"content": word}, **probs}
            )
        if self.path == COMPLETIONS:
            choice = {
                "text": word,
                "index": self.index,
                "logprobs": None,
                "finish_reason": None,
                **probs,
            }
            return self.part(choice)
        told: Json = {
            "index": self.index,
            "content": word,
            "tokens": [token_id(word)],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": job.done,
            "tokens_evaluated": len(job.prompt),
        }
        return {**told, **({"completion_probabilities": [logprob(word)]} if job.logprobs else {})}

    def closing(self, job: Job) -> list[Json]:
        """What follows the last token."""
        took = job.took()
        if self.path == COMPLETION:
            return [self.last(job, "")]
        if self.path == COMPLETIONS:
            choice: Json = {
                "text": "",
                "index": self.index,
                "logprobs": None,
                "finish_reason": job.finish,
            }
            return [self.part(choice, **took)]
        choice = {"finish_reason": job.finish, "index": self.index, "delta": {}}
        if self.include_usage:
            return [self.part(choice), self.part(None, **took)]
        return [self.part(choice, timings=took["timings"])]

    def last(self, job: Job, text: str) -> Json:
        """The last object of /completion."""
        return {
            "index": self.index,
            "content": text,
            "tokens": [],
            "id_slot": job.slot,
            "stop": True,
            "model": self.model,
            "tokens_predicted": job.done,
            "tokens_evaluated": len(job.prompt),
            "generation_settings": {"seed": job.seed},
            "truncated": False,
            "stop_type": "limit" if job.finish == "length" else "eos",
            "stopping_word": "",
            "tokens_cached": 0,
            "timings": job.took()["timings"],
        }

    def whole(self, job: Job, words: list[str]) -> Json:
        """The reply in one object."""
        text = "".join(words)
        if self.path == COMPLETION:
            return self.last(job, text)
        probs = {"logprobs": {"content": [logprob(word) for word in words]}}
        if self.path == COMPLETIONS:
            choice: Json = {
                "text": text,
                "index": self.index,
                "logprobs": None,
                "finish_reason": job.finish,
            }
            kind = "text_completion"
        else:
            message = {"role": "assistant", "content": text}
            choice = {"finish_reason": job.finish, "index": self.index, "message": message}
            kind = "chat.completion"
        return self.envelope(kind, {**choice, **(probs if job.logprobs else {})}, **job.took())


@dataclass
class Call:
    """One request, and the connection it came on."""

    method: str
    path: str
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_last: bool

    def has_left(self) -> bool:
        """True when nobody reads any more."""
        return self.reader.at_eof() or self.writer.is_closing()

    async def reply(self, status: int, value: object) -> None:
        """One whole reply."""
        body = compact(value).encode()
        stay = "Connection: close" if self.is_last else "Keep-Alive: timeout=5, max=100"
        head = (
            f"HTTP/1.1 {status} Fake\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\n"
            "Content-Type: application/json; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n{stay}\r\n\r\n"
        )
        self.writer.write(head.encode() + body)
        await self.writer.drain()


class Body:
    """A chunked body that may be made to break at a byte."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer, self.sent = writer, 0
        writer.write(STREAM_HEAD)

    async def event(self, told: object) -> None:
        """One event."""
        data = f"data: {compact(told)}\n\n".encode()
        for limit in (FAULTS.die_at_byte, FAULTS.cut_at_byte):
            if 0 <= limit <= self.sent + len(data):
                self.writer.write(b"%x\r\n" % len(data) + data[: limit - self.sent])
                await self.writer.drain()
                if limit == FAULTS.die_at_byte:
                    die()
                self.writer.close()
                return
        self.sent += len(data)
        size = FAULTS.chop_bytes or len(data)
        for at in range(0, len(data), size):
            piece = data[at : at + size]
            self.writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
            await self.writer.drain()
            if FAULTS.chop_bytes:
                await asyncio.sleep(0)  # so that pieces arrive as such

    def end(self, *, done: bool) -> None:
        """[DONE] where the route has one, and the last chunk."""
        if not self.writer.is_closing():
            self.writer.write((b"e\r\ndata: [DONE]\n\n\r\n" if done else b"") + b"0\r\n\r\n")


class Engine:
    """The server: slots, routes and the loading state."""

    def __init__(self, options: Options) -> None:
        self.options, self.ready, self.stopping = options, False, False
        self.never = asyncio.Event()  # held, or who waits for it would be collected as garbage
        self.slots = [asyncio.Lock() for _ in range(options.parallel)]
        self.tasks = [-1] * options.parallel
        self.jobs: list[Job | None] = [None] * options.parallel

    @property
    def is_busy(self) -> bool:
        """True while a slot works."""
        return any(slot.locked() for slot in self.slots)

    @property
    def context(self) -> int:
        """Tokens a slot holds."""
        return self.options.ctx // self.options.parallel

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, up to 100 requests."""
        try:
            for left in range(99, -1, -1):
                async with asyncio.timeout(5):
                    head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = head.decode("latin-1").split(" ", 2)
                lines = head.lower().split(b"\r\n")
                sizes = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
                body = await reader.readexactly(sizes[0] if sizes else 0)
                call = Call(method, target.split("?")[0], body, reader, writer, left == 0)
                await self.answer(call)
                if call.is_last or FAULTS.close_idle or writer.is_closing():
                    break
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass  # the caller left, or has been idle for long
        finally:
            writer.close()

    async def answer(self, call: Call) -> None:
        """One reply."""
        try:
            if not self.ready:
                raise Refused(503, "unavailable_error", "Loading model")
            asked = self.decoded(call.body)
            if call.method == "POST" and call.path in (CHAT, COMPLETIONS, COMPLETION):
                await self.complete(call, asked)
                return
            if FAULTS.die_at_slot_file and call.path.startswith("/slots/"):
                die()
            if FAULTS.stuck_slots and call.path == "/slots" and self.is_busy:
                await self.never.wait()
            await call.reply(200, self.fixed(call, asked))
        except Refused as refused:
            await call.reply(refused.status, refused.body)

    def decoded(self, body: bytes) -> Json:
        """The request's object. Raises Refused, with the real one's odd status."""
        try:
            told: Json = json.loads(body) if body else {}
        except ValueError as exc:
            message = f"[json.exception.parse_error.101] parse error: {exc}"
            raise Refused(500, "server_error", message) from exc
        return told

    def fixed(self, call: Call, asked: Json) -> object:
        """The replies that need no slot. Raises Refused."""
        match call.method, call.path:
            case "GET", "/health":
                return {"status": "ok"}
            case "GET", "/v1/models":
                return {"object": "list", "data": [self.me()]}
            case "GET", "/props":
                settings = {"n_ctx": self.context}
                me = {"model_alias": self.options.alias, "model_path": self.options.model}
                return {
                    "default_generation_settings": settings,
                    "total_slots": len(self.slots),
                    **me,
                }
            case "GET", "/slots":
                return [self.slot(n) for n in range(len(self.slots))]
            case "POST", "/tokenize":
                told = [
                    {"id": token_id(piece), "piece": piece} for piece in pieces(asked["content"])
                ]
                is_told = asked.get("with_pieces", False)
                return {"tokens": told if is_told else [token["id"] for token in told]}
            case "POST", "/detokenize":
                return {"content": "".join(f" t{number}" for number in asked["tokens"])}
            case "POST", "/apply-template":
                return {"prompt": templated(asked["messages"])}
            case "POST", "/v1/embeddings":
                return self.embeddings(asked)
        raise Refused(404, "not_found_error", "File Not Found")

    def slot(self, n: int) -> Json:
        """One entry of /slots."""
        working, job = self.slots[n].locked(), self.jobs[n]
        told = {"id": n, "n_ctx": self.context, "is_processing": working, "id_task": self.tasks[n]}
        if job is None:
            return told
        following = {"has_next_token": working, "n_decoded": job.done}
        return {**told, "n_prompt_tokens_processed": len(job.prompt), "next_token": [following]}

    def me(self) -> Json:
        """The model's entry."""
        meta = {"n_ctx": self.context, "n_ctx_train": 8192}
        me = {"id": self.options.alias, "object": "model", "owned_by": "llamacpp"}
        return {**me, "created": int(time.time()), "meta": meta}

    def embeddings(self, asked: Json) -> Json:
        """A vector of length 1 for each text. Raises Refused."""
        if not self.options.embedding:
            message = "This server does not support embeddings. Start it with `--embeddings`"
            raise Refused(501, "not_supported_error", message)
        told = asked.get("input", "")
        texts = told if isinstance(told, list) else [told]
        vector = {"object": "embedding", "embedding": [0.6, 0.8]}
        n = sum(len(pieces(str(text))) for text in texts)
        return {
            "model": self.options.alias,
            "object": "list",
            "usage": {"prompt_tokens": n, "total_tokens": n},
            "data": [{**vector, "index": index} for index in range(len(texts))],
        }

    def job(self, path: str, asked: Json) -> Job:
        """The work that a completion request orders. Raises Refused."""
        prompt = prompt_of(path, asked)
        n, n_ctx = len(prompt), self.context
        if n > n_ctx:
            message = (
                f"request ({n} tokens) exceeds the available context size ({n_ctx} tokens),"
                " try increasing it"
            )
            facts = {"n_prompt_tokens": n, "n_ctx": n_ctx}
            raise Refused(400, "exceed_context_size_error", message, **facts)
        if NO_GRAMMAR in compact([asked.get(key) for key in GRAMMARS]):
            message = "Failed to initialize samplers: failed to parse grammar"
            raise Refused(400, "invalid_request_error", message)
        if FAULTS.no_memory:
            message = "Failed to initialize samplers: std::bad_alloc"
            raise Refused(400, "invalid_request_error", message)
        bounds = [asked.get(key) for key in ("n_predict", "max_tokens", "max_completion_tokens")]
        free = next((n for n, slot in enumerate(self.slots) if not slot.locked()), 0)
        wanted = asked.get("id_slot", -1)
        return Job(
            prompt=prompt,
            limit=min([n for n in bounds if isinstance(n, int) and n >= 0] + [FAULTS.tokens]),
            slot=wanted % len(self.slots) if wanted >= 0 else free,
            logprobs=bool(asked.get("logprobs") or asked.get("n_probs")),
            seed=asked.get("seed", 0xFFFFFFFF),
        )

    async def complete(self, call: Call, asked: Json) -> None:
        """One completion, streamed or not, in its slot."""
        if FAULTS.sigill:
            kill_self(signal.SIGILL)
        if FAULTS.die_before_reply:
            die()
        if FAULTS.garbage:
            call.writer.write(b"\x00\x01 this is no HTTP\r\n\r\n")
            await call.writer.drain()
            call.writer.close()
            return
        jobs = [self.job(call.path, one) for one in prompts(call.path, asked)]
        job = jobs[0]
        if FAULTS.poison and FAULTS.poison in " ".join(job.prompt):
            kill_self(signal.SIGSEGV)
        async with self.slots[job.slot]:
            self.tasks[job.slot] += 1
            self.jobs[job.slot] = job
            task = f"id {job.slot:2d} | task {self.tasks[job.slot]}"
            job.started_s = time.monotonic()
            log("slot launch_slot_", f"{task} | processing task")
            if FAULTS.hang_decode:
                await self.never.wait()
            include = bool((asked.get("stream_options") or {}).get("include_usage"))
            shape = Shape(call.path, self.options.alias, include)
            if asked.get("stream"):
                await self.stream(call, jobs, shape, shows_progress=asked.get("return_progress"))
            else:  # as in the real one, leaving does not cancel it, and usage is the first's
                wholes = [
                    shape.at(index).whole(job, [word async for word in job.words()])
                    for index, job in enumerate(jobs)
                ]
                choices = [choice for whole in wholes for choice in whole.get("choices", ())]
                more = {"choices": choices} if choices else {}
                await call.reply(200, {**wholes[0], **more})
            n = f"n_tokens = {job.done}, truncated = 0"
            log("slot      release", f"{task} | stop processing: {n}")

    async def stream(
        self, call: Call, jobs: list[Job], shape: Shape, *, shows_progress: object
    ) -> None:
        """The reply as events, prompt after prompt; ends where the caller leaves."""
        out = Body(call.writer)
        for index, job in enumerate(jobs):
            if not await self.told(call, out, job, shape.at(index), shows_progress):
                return
        out.end(done=call.path != COMPLETION)

    async def told(
        self, call: Call, out: Body, job: Job, shape: Shape, shows_progress: object
    ) -> bool:
        """One prompt's events; False where nothing may follow."""
        marks = (0, len(job.prompt)) if shows_progress else ()
        progress = [shape.progress(job, processed) for processed in marks]
        for event in progress:
            await out.event(event)
        opening = shape.opening()  # told with the first token, as by the real one
        async for word in job.words():
            if self.stopping:  # the real one goes silent until its next ping, then closes
                await asyncio.sleep(self.options.ping_s)
                call.writer.close()
            if call.has_left():
                return False
            while opening:
                await out.event(opening.pop())
            if job.done == FAULTS.error_at_token + 1:
                message = "Context size has been exceeded."
                error = {"code": 500, "message": message, "type": "server_error"}
                await out.event({"error": error})
                out.end(done=False)
                return False
            if job.done == FAULTS.end_at_token + 1:
                out.end(done=False)
                return False
            await out.event(shape.word(job, word))
        for event in (*opening, *shape.closing(job)):
            await out.event(event)
        return True


def tell_parent(state: str, payload: object) -> None:
    """One line of the child protocol, where it is spoken."""
    if os.environ.get("LLAMA_SERVER_ROUTER_PORT"):
        told = compact({"state": state, "payload": payload})
        print(f"cmd_child_to_router:state:{told}", flush=True)


def tell_progress(value: float) -> None:
    """How far the load is, 0 to 1."""
    stages = {"stages": ["text_model"], "current": "text_model"}
    tell_parent("loading", {**stages, "value": value})


async def chat_on() -> None:
    """Write FAULTS.chatter for ever."""
    n = 0
    while True:
        log("chatter", FAULTS.chatter.replace("{n}", str(n)))
        n += 1
        await asyncio.sleep(0.1)


async def load(engine: Engine) -> None:
    """Everything up to ready, or an end."""
    options = engine.options
    log("srv    load_model", f"loading model '{options.model}'")
    tell_progress(0.0)
    for n in range(FAULTS.flood_stderr):
        log("flood", f"line {n} " + "x" * 180)
        if n % 100 == 0:
            await asyncio.sleep(0)
    quiet_until_s = time.monotonic() + FAULTS.read_s
    while time.monotonic() < quiet_until_s:
        Path(options.model).read_bytes()
        await asyncio.sleep(0.02)
    chatter = asyncio.create_task(chat_on()) if FAULTS.chatter else None
    if FAULTS.stuck_loading:
        await asyncio.Event().wait()
    for step in range(1, 11):
        await asyncio.sleep(FAULTS.load_s / 10)
        if step == 5:
            end_while_loading(options)
        tell_progress(step / 10)
    if not Path(options.model).exists():
        path = f"'{options.model}' (No such file or directory)"
        fail(f"gguf_init_from_file: failed to open GGUF file {path}")
    if chatter is not None:
        chatter.cancel()
    log("load_tensors", f"offloaded {options.ngl}/31 layers to GPU")
    log("load_tensors", "  CPU_Mapped model buffer size =    92.10 MiB")
    log("llama_context", f"n_ctx                 = {options.ctx}")
    log("llama_kv_cache", f"       CPU KV buffer size = {options.ctx * 22.5 / 1024:8.2f} MiB")
    log("sched_reserve", "       CPU compute buffer size =    14.01 MiB")
    slots = f"n_slots = {options.parallel}, n_ctx_slot = {engine.context}, kv_unified = 'false'"
    log("srv    load_model", f"initializing, {slots}")
    engine.ready = True
    log("srv  llama_server", "model loaded")
    tell_parent("ready", engine.me())


def end_while_loading(options: Options) -> None:
    """Dies where the faults say so."""
    too_much = 0 <= FAULTS.oom_above_layers < options.ngl
    kind = "oom" if too_much else FAULTS.die_while_loading
    if kind == "crash":
        kill_self(signal.SIGSEGV)
    if kind:
        tail = f"srv load_model: failed to load model, '{options.model}'"
        fail(f"{LOAD_ENDS[kind]}\n{tail}\nexiting due to model loading error")


def on_sigterm(asked: asyncio.Event) -> None:
    """The first asks, the second ends."""
    if FAULTS.ignore_sigterm:
        return
    if asked.is_set():
        fail("Received second interrupt, terminating immediately.")
    asked.set()


def watch_stdin(loop: asyncio.AbstractEventLoop, asked: asyncio.Event) -> None:
    """Ends with the parent: its stdin closes, or tells."""
    line = os.read(0, 4096)
    if not line:
        os._exit(1)
    if b"cmd_router_to_child:exit" in line:
        loop.remove_reader(0)
        asked.set()


async def listen(engine: Engine) -> None:
    """Binds before the model is loaded, as the real one does; a path that exists is an end."""
    host, port = engine.options.host, engine.options.port
    if not host.endswith(".sock"):
        await asyncio.start_server(engine.serve, host, port)
        log("srv  llama_server", f"listening on http://{host}:{port}")
        return
    if Path(host).exists():
        where = f"hostname: {host}, port: {port}"
        fail(f"srv start: couldn't bind HTTP server socket, {where}")
    await asyncio.start_unix_server(engine.serve, host)
    log("srv  llama_server", f"listening on unix://{host}")


async def main(options: Options) -> NoReturn:
    """From exec to a wanted end: at once when idle, after the next ping otherwise."""
    engine, asked, loop = Engine(options), asyncio.Event(), asyncio.get_running_loop()
    await listen(engine)
    if FAULTS.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if FAULTS.last_words:
        signal.signal(signal.SIGUSR1, lambda *_: die())
    await load(engine)
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, on_sigterm, asked)
    if os.environ.get("LLAMA_SERVER_ROUTER_PORT"):
        loop.add_reader(0, watch_stdin, loop, asked)
    await asked.wait()
    engine.stopping = True
    log("operator()", "cleaning up before exit...")
    if engine.is_busy:
        await asyncio.sleep(options.ping_s)
    os._exit(0)


STARTED_S = time.monotonic()
FAULTS = Faults()

if __name__ == "__main__":
    if "--version" in sys.argv:
        print("version: 1 (fake)", file=sys.stderr)
    elif "--list-devices" in sys.argv:
        print("Available devices:")
    elif "--help" in sys.argv or "-h" in sys.argv:
        print("\n".join(f"{flag}  as the real one" for flag in (*FLAGS, *OTHER_FLAGS)))
        print(LEVELS)
    else:
        told = parsed(sys.argv[1:])
        FAULTS = Faults.ordered(told.faults)
        asyncio.run(main(told))
