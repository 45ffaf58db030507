"""The official ollama and openai clients against the running daemon with the real model."""

from collections.abc import Iterator

import ollama
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from scripts.started_daemon import StartedDaemon

MODEL = "SmolLM2-135M-Instruct.Q4_1"
QUESTION = "What is the capital of Germany?"
CAPITAL = [{"role": "user", "content": QUESTION}]
OPENAI_CAPITAL: list[ChatCompletionMessageParam] = [{"role": "user", "content": QUESTION}]


@pytest.fixture
def ollama_client(daemon: StartedDaemon) -> Iterator[ollama.Client]:
    with ollama.Client(host=daemon.base, trust_env=False) as client:
        yield client


@pytest.fixture
def openai_client(daemon: StartedDaemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.base}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_ollama_lists_the_model_with_what_clients_need(ollama_client: ollama.Client) -> None:
    (model,) = ollama_client.list().models

    assert model.model == f"{MODEL}:latest"
    assert model.details is not None
    assert (model.details.family, model.details.parameter_size) == ("llama", "134.52M")
    assert model.details.quantization_level == "Q4_1"


def test_ollama_shows_the_model(ollama_client: ollama.Client) -> None:
    shown = ollama_client.show(MODEL)

    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == 8192
    assert shown.capabilities is not None
    assert "completion" in shown.capabilities


def test_ollama_chats(ollama_client: ollama.Client) -> None:
    reply = ollama_client.chat(MODEL, CAPITAL, options={"temperature": 0, "num_predict": 24})

    assert "Berlin" in (reply.message.content or "")
    assert reply.done
    assert reply.prompt_eval_count
    assert reply.eval_count


def test_ollama_streams_the_same_text(ollama_client: ollama.Client) -> None:
    options = {"temperature": 0, "num_predict": 24}
    whole = ollama_client.chat(MODEL, CAPITAL, options=options)

    parts = list(ollama_client.chat(MODEL, CAPITAL, options=options, stream=True))

    assert len(parts) > 3
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts[-2:]] == [False, True]


def test_ollama_generates(ollama_client: ollama.Client) -> None:
    reply = ollama_client.generate(MODEL, QUESTION, options={"temperature": 0, "num_predict": 24})

    assert "Berlin" in (reply.response or "")
    assert reply.context


def test_ollama_lists_what_is_loaded(ollama_client: ollama.Client) -> None:
    ollama_client.generate(MODEL, "")

    (running,) = ollama_client.ps().models

    assert running.model == f"{MODEL}:latest"
    assert running.context_length == 8192


def test_ollama_is_told_that_a_model_is_unknown(ollama_client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'nope' not found") as error:
        ollama_client.chat("nope", CAPITAL)

    assert error.value.status_code == 404


def test_openai_lists_the_model(openai_client: openai.OpenAI) -> None:
    (model,) = openai_client.models.list().data

    assert openai_client.models.retrieve(model.id).id == model.id


def test_openai_chats(openai_client: openai.OpenAI) -> None:
    reply = openai_client.chat.completions.create(
        model=MODEL, messages=OPENAI_CAPITAL, temperature=0, max_tokens=24
    )

    assert "Berlin" in (reply.choices[0].message.content or "")
    assert reply.usage is not None
    assert reply.usage.completion_tokens


def test_openai_streams_the_same_text(openai_client: openai.OpenAI) -> None:
    whole = openai_client.chat.completions.create(
        model=MODEL, messages=OPENAI_CAPITAL, temperature=0, max_tokens=24
    )

    chunks = list(
        openai_client.chat.completions.create(
            model=MODEL, messages=OPENAI_CAPITAL, temperature=0, max_tokens=24, stream=True
        )
    )

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(chunks) > 3


def test_openai_completes(openai_client: openai.OpenAI) -> None:
    reply = openai_client.completions.create(
        model=MODEL, prompt="The capital of Germany is", temperature=0, max_tokens=4
    )

    assert "Berlin" in reply.choices[0].text


def test_openai_is_told_that_a_model_is_unknown(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nope") as error:
        openai_client.chat.completions.create(model="nope", messages=OPENAI_CAPITAL)

    assert error.value.code == "model_not_found"


def test_openai_embeds_by_a_text_model(openai_client: openai.OpenAI) -> None:
    reply = openai_client.embeddings.create(model=MODEL, input=["a sky", "a sea"])

    assert [each.index for each in reply.data] == [0, 1]
    assert all(len(each.embedding) == 576 for each in reply.data)
