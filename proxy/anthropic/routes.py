"""POST /v1/messages and /v1/messages/count_tokens."""

from functools import partial

import msgspec

from proxy.anthropic.replies import PING, MessageWriter
from proxy.anthropic.requests import MessagesRequest, chat_body, read_request
from proxy.chat.turn import ChatTurn, chat_model
from proxy.door import Door
from proxy.exchange import Exchange


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
    return ChatTurn(
        door=door,
        exchange=exchange,
        model=model,
        name=asked.model or model.model_id,
        body=msgspec.json.encode(chat_body(asked)),
        keep_alive=asked.keep_alive,
        num_ctx=asked.num_ctx,
    )
