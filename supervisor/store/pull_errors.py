"""What may keep a model from being pulled."""

from supervisor.printable import printable
from supervisor.store.errors import StoreError

MAX_TOLD = 200  # characters of what a registry says of its refusal


class PullError(StoreError):
    """A model did not come."""


class NoSuchModel(PullError):
    """The registry has no model of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__("pull model manifest: file does not exist")


class InsecureProtocol(PullError):
    """A name says http://, and nobody said that it may."""

    def __init__(self) -> None:
        super().__init__("insecure protocol http")


class RegistryRefused(PullError):
    """A registry answered, and not with what was asked for."""

    def __init__(self, *, host: str, status: int, told: str) -> None:
        self.host, self.status, self.told = host, status, told
        said = f": {printable(told[:MAX_TOLD])}" if told else ""
        super().__init__(f"{host} answered with HTTP {status}{said}")

    @property
    def may_pass(self) -> bool:
        """Whether it is worth asking once more."""
        return self.status >= 500 or self.status in (408, 425, 429)


class RegistryOdd(PullError):
    """A registry answered with what makes no sense."""

    def __init__(self, *, host: str, reason: str) -> None:
        self.host, self.reason = host, reason
        super().__init__(f"{host} sent {reason}")


class Unreachable(PullError):
    """A connection did not come about, or broke off; worth another try."""

    def __init__(self, *, host: str, why: str) -> None:
        self.host, self.why = host, why
        super().__init__(f"{host} cannot be reached: {printable(why)}")


class Stalled(PullError):
    """Nothing, or next to nothing, came for a while; worth another try."""

    def __init__(self, *, host: str, limit_s: float) -> None:
        self.host, self.limit_s = host, limit_s
        super().__init__(f"{host} sent next to nothing for {limit_s:g} s")


class RangesRefused(PullError):
    """The file is offered whole, or not as long as it should be."""

    def __init__(self, *, host: str) -> None:
        self.host = host
        super().__init__(f"{host} does not send the parts of a file that are asked for")
