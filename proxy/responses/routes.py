"""POST /v1/responses and /v1/responses/input_tokens; and what would need a store."""

import secrets
import time

import msgspec

from planners.capabilities import Capability, capabilities
from proxy.chat.reply import ChatReply
from proxy.chat.turn import ChatTurn, chat_model
from proxy.door import Door
from proxy.errors import BadRequest
from proxy.exchange import Exchange
from proxy.prompt.maker import asked_chat
from proxy.responses.replies import ResponseWriter
from proxy.responses.requests import ResponseRequest, chat_body, read_request


class NotStored(BadRequest):
    """A response was asked for by its id."""

    status = 404
    code = "response_not_found"

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        super().__init__(
            f"response '{response_id[:80]}' not found: responses are not stored here",
            param="response_id",
        )


async def create(door: Door, exchange: Exchange) -> None:
    """POST /v1/responses."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    asked = read_request(body)
    turn = _turn(door, exchange, asked)
    unique, created_at = secrets.token_hex(16), int(time.time())

    def writer(reply: ChatReply) -> ResponseWriter:
        words = ResponseWriter(
            reply, asked=asked, unique=unique, created_at=created_at, n_dropped=exchange.n_dropped
        )
        exchange.last_word = words.failed
        return words

    writer(ChatReply(""))  # which has the last word where a stream is kept alive and never begins
    await turn.answer(writer, streams=bool(asked.stream))


async def input_tokens(door: Door, exchange: Exchange) -> None:
    """POST /v1/responses/input_tokens."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    turn = _turn(door, exchange, read_request(body))
    counted = await turn.count()
    await exchange.reply_json({"object": "response.input_tokens", "input_tokens": counted})


async def stored(_door: Door, exchange: Exchange) -> None:
    """Any method on /v1/responses/{id}, with or without more behind it: there is none."""
    raise NotStored(exchange.path.split("/")[3])


def _turn(door: Door, exchange: Exchange, asked: ResponseRequest) -> ChatTurn:
    model = chat_model(door, exchange, asked.model)
    told = chat_body(asked, thinks=Capability.THINKING in capabilities(model))
    defaults = {"temperature": 1.0} if door.settings.ollama_strict else None
    return ChatTurn(
        door=door,
        exchange=exchange,
        model=model,
        name=asked.model or model.model_id,
        body=msgspec.json.encode(asked_chat(told, model.recipe, defaults=defaults)),
        keep_alive=asked.keep_alive,
        num_ctx=asked.num_ctx,
        truncates=asked.truncates,
    )
