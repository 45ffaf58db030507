"""What may keep a model from being pulled, or pushed."""

from supervisor.printable import printable
from supervisor.store.errors import StoreError

MAX_TOLD = 200  # characters of what a registry says of its refusal
MAX_LISTED = 30  # files named in an error


class PullError(StoreError):
    """A model did not come, or did not go."""

    ollamas = ""
    """Ollama's own words for it, which clients may know it by; "" where it has none."""
    remedy = ""
    """What to do, where `ollamas` is all that is said beside it."""


class NotThere(PullError):
    """Whoever was asked has nothing of that name."""

    ollamas = "pull model manifest: file does not exist"

    def __init__(self, remedy: str) -> None:
        self.remedy = remedy
        super().__init__(f"{self.ollamas}; {remedy}")


class NoSuchModel(NotThere):
    """The registry has no model of that name."""

    def __init__(self, name: str, *, host: str) -> None:
        self.name, self.host = name, host
        super().__init__(f"{host} has no {name}: check its name and its tag")


class InsecureProtocol(PullError):
    """A name says http://, and nobody said that it may."""

    ollamas = "insecure protocol http"
    remedy = (
        'name the registry without http://, or say --insecure ("insecure": true) where no TLS is'
        " meant"
    )

    def __init__(self) -> None:
        super().__init__(f"{self.ollamas}; {self.remedy}")


class RegistryRefused(PullError):
    """A registry answered, and not with what was asked for."""

    def __init__(self, *, host: str, status: int, told: str) -> None:
        self.host, self.status, self.told = host, status, told
        said = f": {printable(told[:MAX_TOLD])}" if told else ""
        super().__init__(f"{host} answered with HTTP {status}{said}; {self._remedy()}")

    def _remedy(self) -> str:
        if self.status in (401, 403):
            return "it wants an account of its own for that, and none is kept here"
        if self.may_pass:
            return "try again later: what came is kept"
        return "check the model's name, and whether that host is a registry of models"

    @property
    def may_pass(self) -> bool:
        """Whether it is worth asking once more."""
        return self.status >= 500 or self.status in (408, 425, 429)


class RegistryOdd(PullError):
    """A registry answered with what makes no sense."""

    def __init__(self, *, host: str, reason: str) -> None:
        self.host, self.reason = host, reason
        super().__init__(
            f"{host} sent {printable(reason)}; check whether it is a registry, and what stands in"
            " between"
        )


class Unreachable(PullError):
    """A connection did not come about, or broke off; worth another try."""

    def __init__(self, *, host: str, why: str) -> None:
        self.host, self.why = host, why
        super().__init__(f"{host} cannot be reached: {printable(why)}; {_way_out(why)}")


class Stalled(PullError):
    """Nothing, or next to nothing, came for a while; worth another try."""

    def __init__(self, *, host: str, limit_s: float) -> None:
        self.host, self.limit_s = host, limit_s
        super().__init__(
            f"{host} sent next to nothing for {limit_s:g} s; pull again later: what came is kept"
        )


class RangesRefused(PullError):
    """The file is offered whole, or not as long as it should be."""

    def __init__(self, *, host: str) -> None:
        self.host = host
        super().__init__(
            f"{host} does not send the parts of a file that are asked for; pull again later, or"
            " from another registry"
        )


class WrongBytes(PullError):
    """A small file is not what its repository lists."""

    def __init__(self, *, host: str, path: str) -> None:
        self.host, self.path = host, path
        super().__init__(
            f"{host} sent other bytes of {printable(path)} than it lists; pull again, and where"
            " that does not help ask who keeps the repository"
        )


class NoSuchRepository(NotThere):
    """A hub shows no repository of that name, not to us."""

    def __init__(self, *, host: str, repository: str, has_token: bool) -> None:
        self.host, self.repository, self.has_token = host, repository, has_token
        private = (
            "one that is private needs HF_TOKEN of an account that may see it"
            if has_token
            else "one that is private needs HF_TOKEN in the daemon's environment"
        )
        super().__init__(f"{host} shows no repository {repository}: check its name; {private}")


class Gated(PullError):
    """A repository is for accounts that accepted its terms."""

    def __init__(self, *, host: str, repository: str, has_token: bool) -> None:
        self.host, self.repository, self.has_token = host, repository, has_token
        do = (
            "with the account of HF_TOKEN, or give the daemon the token of one that has"
            if has_token
            else "and give the daemon that account's token as HF_TOKEN in its environment"
        )
        super().__init__(
            f"{repository} is gated: accept its terms at https://{host}/{repository} {do}"
        )


class TokenRefused(PullError):
    """A hub does not take our token."""

    def __init__(self, *, host: str) -> None:
        self.host = host
        super().__init__(
            f"{host} does not take the daemon's HF_TOKEN; make another one there"
            " (settings, access tokens) and start the daemon with it, or without one"
        )


class NoRepository(PullError):
    """A name means a model of a registry, which lists no files to choose from."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"{name} is no repository whose files could be ranked; name one of Hugging Face, as"
            " hf.co/ORG/REPO"
        )


class NoGguf(PullError):
    """A file that is called a GGUF file is none, or not whole."""

    def __init__(self, *, host: str, path: str, reason: str) -> None:
        self.host, self.path, self.reason = host, path, reason
        super().__init__(f"{host}'s {printable(path)} is no GGUF model: {reason}; pull another")


class NoModelThere(PullError):
    """A repository has no GGUF file."""

    def __init__(self, *, host: str, repository: str) -> None:
        self.host, self.repository = host, repository
        super().__init__(
            f"{host}/{repository} has no GGUF file; pull a repository that has some, mostly named"
            " …-GGUF, or convert it with llama.cpp's convert_hf_to_gguf.py"
        )


class NoSuchVariant(PullError):
    """A repository has no file that the tag means."""

    def __init__(self, *, name: str, tag: str, tags: tuple[str, ...]) -> None:
        self.name, self.tag, self.tags = name, tag, tags
        shown = ", ".join(printable(each[:MAX_TOLD]) for each in tags[:MAX_LISTED])
        super().__init__(f"{name} has no {tag}; pull one of {shown}")


def _way_out(why: str) -> str:
    """What to do about a connection that did not come about."""
    if "certificate" in why.lower():
        return "if that host is meant, name its certificate authority in SSL_CERT_FILE"
    if "ssl" in why.lower():
        return "if it speaks no TLS, say --insecure, which counts for this machine's network"
    return "check its name, the network and HTTPS_PROXY, then try again: what came is kept"
