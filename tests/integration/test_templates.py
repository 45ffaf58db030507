"""A model whose file has no chat template, served by the TEMPLATE layer of its store."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from scripts.started_daemon import StartedDaemon
from tests.fakes.ollama_store import OllamaStore

KEY = b"tokenizer.chat_template"
OWN = "{{ if .System }}[S]{{ .System }}{{ end }}[U]{{ .Prompt }}[A]{{ .Response }}[E]"
CHAT = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "3"},
]


def test_a_template_layer_is_what_the_model_reads_or_its_chats_are_refused(
    start: Callable[..., StartedDaemon], model_dir: Path, tmp_path: Path
) -> None:
    (path,) = model_dir.rglob("*.gguf")
    bare = path.read_bytes().replace(KEY, KEY[:-1] + b"_", 1)
    store = OllamaStore(tmp_path / "ollama")
    for name, template in {
        "own": OWN,
        "odd": "{{ slice .Prompt 1 }}",
        "plain": "{{ .Prompt }}",
    }.items():
        layers = [("template", template.encode())]
        store.add(f"registry.ollama.ai/library/{name}/latest", model=bare, layers=layers)
    started = start(model_dirs=[store.folder])
    base = started.base

    def asked(path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(base + path, json=body, timeout=120, trust_env=False)

    def prompt(name: str) -> str:
        told = {"model": name, "messages": CHAT, "_debug_render_only": True}
        text: str = asked("/api/chat", told).json()["_debug_info"]["rendered_template"]
        return text

    shown = {name: asked("/api/show", {"model": name}).json() for name in ("own", "odd")}
    few = {"model": "own", "messages": CHAT, "stream": False, "max_tokens": 2}
    answered = asked("/v1/chat/completions", few)
    refused = [
        asked("/api/chat", {"model": "odd", "messages": CHAT}),
        asked("/v1/chat/completions", {"model": "odd", "messages": CHAT}),
        asked("/v1/messages", {"model": "odd", "messages": CHAT[1:], "max_tokens": 2}),
        asked("/api/generate", {"model": "odd", "prompt": "x"}),
        asked("/apply-template", {"model": "odd", "messages": CHAT}),
    ]
    raw = {
        "model": "odd",
        "prompt": "x",
        "raw": True,
        "stream": False,
        "options": {"num_predict": 1},
    }

    assert prompt("own") == "[S]s[U]1[A]2[E][U]3[A]"
    assert prompt("plain") == "123"
    assert shown["own"]["template"] == OWN
    assert shown["own"]["template_source"] == "layer"
    assert shown["own"]["capabilities"] == ["completion"]
    assert shown["odd"]["template_source"] == "none: it uses slice, which is not known here"
    assert "its TEMPLATE layer, put into Jinja" in started.ctl("show", "own").stdout
    assert shown["odd"]["template_source"] in started.ctl("show", "odd").stdout
    assert answered.status_code == 200
    assert [reply.status_code for reply in refused] == [400] * 5
    assert all("it uses slice, which is not known here" in reply.text for reply in refused)
    assert asked("/api/generate", raw).status_code == 200
