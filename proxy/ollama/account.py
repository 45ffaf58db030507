"""The routes of ollama.com's account and cloud, as a server answers that reaches neither."""

from proxy.door import Door
from proxy.errors import BadRequest
from proxy.exchange import Exchange

KEYS_PREFIX = "/api/user/keys/"
KEYS_ROUTE = f"{KEYS_PREFIX}{{key}}"


class NoAccount(BadRequest):
    """Something of an account at ollama.com was asked for."""

    status = 503
    code = "account_unavailable"

    def __init__(self) -> None:
        super().__init__("account unavailable")


class NoCloud(BadRequest):
    """Something that ollama.com does was asked for."""

    status = 403
    code = "cloud_disabled"

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(f"ollama cloud is disabled: {what} is unavailable")


async def account(_door: Door, _exchange: Exchange) -> None:
    """POST /api/me, POST /api/signout, DELETE /api/user/keys/:key."""
    raise NoAccount


async def web_search(_door: Door, _exchange: Exchange) -> None:
    """POST /api/experimental/web_search."""
    raise NoCloud("web search")


async def web_fetch(_door: Door, _exchange: Exchange) -> None:
    """POST /api/experimental/web_fetch."""
    raise NoCloud("web fetch")


async def recommendations(_door: Door, exchange: Exchange) -> None:
    """GET /api/experimental/model-recommendations: none is made."""
    await exchange.reply_json({"recommendations": []})
