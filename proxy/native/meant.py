"""Which model a request for one of llama-server's own routes means: those need not name one."""

from urllib.parse import parse_qs

from planners.model import ServedModel
from planners.view import InstanceState
from proxy import names
from proxy.door import Door
from proxy.errors import BadRequest
from proxy.exchange import Exchange

MAX_FIELDS = 16
_LOADED = (InstanceState.LOADING, InstanceState.READY)


def meant(door: Door, exchange: Exchange, name: str | None) -> ServedModel:
    """The model of the path, the body (`name`) or the query; else the only one there is.

    That is the only one on offer, or the only one loaded. Raises BadRequest where neither is so.
    """
    name = exchange.given_model or name or _in_query(exchange)
    return names.served(door, exchange, name or _only_one(door))


def _in_query(exchange: Exchange) -> str | None:
    try:
        query: bytes = exchange.scope["query_string"]
        told = parse_qs(query.decode(), max_num_fields=MAX_FIELDS)
    except ValueError as exc:
        reason = f"the query is no text, or has more than {MAX_FIELDS} fields"
        raise BadRequest(reason) from exc
    named = told.get("model")
    return named[-1] if named else None


def _only_one(door: Door) -> str:
    offered = door.service.models()
    if len(offered) == 1:
        return offered[0].model_id
    loaded = {seen.model_id for seen in door.service.running() if seen.state in _LOADED}
    loaded &= {
        model.model_id for model in offered
    }  # one launched for embeddings is nobody's only one
    if len(loaded) == 1:
        return loaded.pop()
    raise BadRequest(
        f"model is required: {len(offered)} models are offered, and not exactly one is loaded;"
        " name one in the body or as ?model=",
        param="model",
    )
