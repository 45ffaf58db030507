"""POST /v1/messages and /v1/messages/count_tokens."""

from functools import partial

import msgspec

from proxy.anthropic.replies import PING, MessageWriter
from proxy.anthropic.requests import MessagesRequest, chat_body, read_request
from proxy.chat.turn import ChatTurn, chat_model
from proxy.door import Door
from proxy.exchange import Exchange
from proxy.prompt.maker import asked_chat


async def messages(door: Door, exchange: Exchange) -> None:
    """POST /v1/messages."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    asked = read_request(body)
    turn = _turn(door, exchange, asked)
    writer = partial(MessageWriter, stops=asked.stop_sequences or ())
    await turn.answer(writer, streams=bool(asked.stream), sign=PING)


async def count_tokens(door: Door, exchange: Exchange) -> None:
    """POST /v1/messages/count_tokens."""
    body = await exchange.body(limit_bytes=door.settings.max_body_bytes)
    turn = _turn(door, exchange, read_request(body, counts=True))
    await exchange.reply_json({"input_tokens": await turn.count()})


def _turn(door: Door, exchange: Exchange, asked: MessagesRequest) -> ChatTurn:
    exchange.extra_headers.append((b"request-id", exchange.request_id.encode()))
    model = chat_model(door, exchange, asked.model)
    told = chat_body(asked)
    if asked.stop_sequences:  # looked for here, instead of those of the model's maker
        told["stop"] = []
    defaults: dict[str, float] | None = {} if door.settings.ollama_strict else None
    return ChatTurn(
        door=door,
        exchange=exchange,
        model=model,
        name=asked.model or model.model_id,
        body=msgspec.json.encode(asked_chat(told, model.recipe, defaults=defaults)),
        keep_alive=asked.keep_alive,
        num_ctx=asked.num_ctx,
    )
