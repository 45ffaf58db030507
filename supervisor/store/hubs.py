"""Which hub of repositories names of the form hf.co/ORG/REPO mean, and who asks it. Pure."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from msgspec import Struct

from supervisor.store.names import StoreName

SHORT_HOST = "hf.co"
HOSTS = (SHORT_HOST, "huggingface.co", "www.huggingface.co")
ENDPOINT = "https://huggingface.co"


class Hub(Struct, frozen=True):
    """Where repositories are, and who asks."""

    endpoint: str = ENDPOINT
    token: str = ""

    @property
    def host(self) -> str:
        """Of the endpoint, with its port where it has one."""
        return urlsplit(self.endpoint).netloc

    @property
    def is_plain(self) -> bool:
        """Whether whoever set it up said that it speaks no TLS."""
        return urlsplit(self.endpoint).scheme == "http"

    def has(self, name: StoreName) -> bool:
        """Whether `name` is one of its repositories."""
        return name.host.lower() in (*HOSTS, self.host.lower())


HUB = Hub()


def hub_of(environ: Mapping[str, str]) -> Hub:
    """The hub that HF_ENDPOINT and HF_TOKEN name, as Hugging Face's own programs read them."""
    endpoint = environ.get("HF_ENDPOINT", "").strip().rstrip("/")
    token = environ.get("HF_TOKEN", "").strip()
    is_address = endpoint.startswith(("https://", "http://")) and bool(urlsplit(endpoint).netloc)
    return Hub(endpoint if is_address else ENDPOINT, token if token.isascii() else "")
