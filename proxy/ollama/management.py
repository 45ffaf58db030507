"""POST /api/pull, POST /api/copy, DELETE /api/delete and POST /api/push."""

from proxy.door import Door
from proxy.errors import BadRequest, CloudModel, UnknownModel
from proxy.exchange import Exchange
from proxy.ollama.fields import Fields, read_object
from proxy.ollama.progress import tell
from proxy.ollama.store_errors import in_ollamas_words, valid_name
from supervisor.store.errors import NotStored

MAX_BODY_BYTES = 64 << 10  # two names


async def pull(door: Door, exchange: Exchange) -> None:
    """POST /api/pull: the model of its registry is there, with lines about how far it is."""
    fields = await small_object(exchange, "PullRequest")
    name = valid_name(named(fields))
    insecure, streams = fields.flag("insecure"), fields.flag("stream", default=True)
    if name.tag.lower() == "cloud" or name.tag.lower().endswith("-cloud"):
        raise CloudModel
    await tell(exchange, door.store.pull(name, insecure=insecure), streams=streams)


async def push(door: Door, exchange: Exchange) -> None:
    """POST /api/push: the registry of the name has the model, with lines about how far it is."""
    fields = await small_object(exchange, "PushRequest")
    name = named(fields)
    valid_name(name)
    insecure, streams = fields.flag("insecure"), fields.flag("stream", default=True)
    await tell(exchange, door.store.push(name, insecure=insecure), streams=streams)


async def copy(door: Door, exchange: Exchange) -> None:
    """POST /api/copy: the model is there under another name too."""
    fields = await small_object(exchange, "CopyRequest")
    source, destination = fields.text("source"), fields.text("destination")
    valid_name(source, f'source "{source}" is invalid')
    name = valid_name(destination, f'destination "{destination}" is invalid')
    with in_ollamas_words():
        try:
            with exchange.attended():
                await door.store.copy(source, name)
        except NotStored as exc:
            raise UnknownModel(source, f'model "{source}" not found') from exc
    await exchange.reply(200, b"", content_type=b"")


async def delete(door: Door, exchange: Exchange) -> None:
    """DELETE /api/delete: the model is gone, and what only it needed."""
    fields = await small_object(exchange, "DeleteRequest")
    name = named(fields)
    valid_name(name, f'name "{name}" is invalid')
    with in_ollamas_words():
        await door.store.delete(name)
    await exchange.reply(200, b"", content_type=b"")


async def small_object(exchange: Exchange, owner: str) -> Fields:
    """The body of a request that has no long one. Raises BadRequest, CallerLeft."""
    return read_object(await exchange.body(limit_bytes=MAX_BODY_BYTES), owner)


def named(fields: Fields) -> str:
    """The model that a request names, by the old field too. Raises BadRequest."""
    name = fields.text("model") or fields.text("name")
    if not name:
        raise BadRequest("model is required", param="model")
    return name
