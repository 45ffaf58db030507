"""Pictures through the daemon to the real engine, with a projector of zeros beside the model."""

import base64
import shutil
import socket
from contextlib import closing
from pathlib import Path

import httpx
import ollama
import openai
import pytest

from tests.fakes.tiny_projector import png, write_projector
from tests.integration.conftest import Start

N_EMBD = 576  # of the quickstart's model
PICTURE = base64.b64encode(png()).decode()


@pytest.fixture
def seeing_dir(model_dir: Path, tmp_path: Path) -> Path:
    """The quickstart's model with a projector of its own."""
    (path,) = model_dir.glob("*.gguf")
    shutil.copy(path, tmp_path / "seer.gguf")
    write_projector(tmp_path / "mmproj-seer.gguf", n_embd=N_EMBD)
    return tmp_path


def test_a_model_with_a_projector_reads_pictures_and_fetches_none(
    start: Start, seeing_dir: Path
) -> None:
    daemon = start(model_dirs=[seeing_dir], config="[models]\ncontext = 512\n")
    with closing(socket.socket()) as elsewhere:
        elsewhere.bind(("127.0.0.1", 0))
        elsewhere.listen()
        elsewhere.settimeout(0)
        address = f"http://127.0.0.1:{elsewhere.getsockname()[1]}/x.png"

        with openai.OpenAI(base_url=f"{daemon.base}/v1", api_key="none", max_retries=0) as client:
            n_blind = tokens_of(client, None)
            n_seen = tokens_of(client, f"data:image/png;base64,{PICTURE}")
            for url in (address, "file:///etc/hostname"):
                with pytest.raises(openai.BadRequestError, match="no other address is fetched"):
                    tokens_of(client, url)
            video = {"type": "input_video", "input_video": {"data": address}}
            told = {"model": "seer", "messages": [{"role": "user", "content": [video]}]}
            for route in ("/v1/chat/completions", "/apply-template"):
                reply = httpx.post(f"{daemon.base}{route}", json=told, trust_env=False)
                assert reply.status_code == 400
            with pytest.raises(openai.BadRequestError):
                tokens_of(client, "data:image/png;base64,AAAA")

        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    with ollama.Client(host=daemon.base) as other:
        message = {"role": "user", "content": "What is it?", "images": [PICTURE]}
        seen = other.chat("seer", [message], options={"num_predict": 2})
    shown = httpx.post(f"{daemon.base}/api/show", json={"model": "seer"}, trust_env=False).json()

    assert n_seen > n_blind
    assert seen.prompt_eval_count == n_seen
    assert shown["capabilities"] == ["completion", "vision"]


def tokens_of(client: openai.OpenAI, url: str | None) -> int:
    """Tokens of a chat with the picture at `url` in it."""
    parts: list[object] = [{"type": "text", "text": "What is it?"}]
    if url is not None:
        parts.append({"type": "image_url", "image_url": {"url": url}})
    told = {"role": "user", "content": parts}
    reply = client.chat.completions.create(model="seer", messages=[told], max_tokens=2)  # type: ignore[list-item]
    assert reply.usage is not None
    return reply.usage.prompt_tokens
