"""Which priority a caller has: by its id or name, its address, or its network. Pure."""

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from planners.waiting.line import Priority


class BadNetwork(ValueError):
    """A name with a slash that is no network."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name[:80]!r} is no network")


class CallerRule(NamedTuple):
    """`[[caller]]`: a key's id or name, an address or a network, and its priority."""

    name: str
    priority: Priority


class Callers(Struct, frozen=True):
    """The rules, ready to be asked."""

    names: Mapping[str, Priority] = field(default_factory=dict)
    networks: tuple[tuple[IPv4Network | IPv6Network, Priority], ...] = ()
    """The narrowest first; an address is the narrowest of all."""

    def priority(self, caller: str) -> Priority:
        """Of a caller; the narrowest rule counts, `normal` without any."""
        if (named := self.names.get(caller)) is not None:
            return named
        if not self.networks:
            return Priority.NORMAL
        try:
            address = ip_address(caller)
        except ValueError:
            return Priority.NORMAL
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped  # as a socket for both families tells an IPv4 peer
        found = (priority for network, priority in self.networks if address in network)
        return next(found, Priority.NORMAL)

    def knowing(self, called: Mapping[str, str]) -> "Callers":
        """The same, in which a caller is also found by what it is called: `called`, by caller.

        A rule for the caller itself goes before one for its name.
        """
        named = {who: self.names[name] for who, name in called.items() if name in self.names}
        return replace(self, names={**named, **self.names})


def network_of(name: str) -> IPv4Network | IPv6Network | None:
    """What a rule's name says as an address or a network; None for a name. Raises BadNetwork."""
    try:
        return ip_network(name, strict=False)
    except ValueError as exc:
        if "/" in name:
            raise BadNetwork(name) from exc
        return None


def callers_of(rules: Iterable[CallerRule]) -> Callers:
    """The rules, names apart from networks. Raises BadNetwork."""
    names: dict[str, Priority] = {}
    networks: list[tuple[IPv4Network | IPv6Network, Priority]] = []
    for name, priority in rules:
        if (network := network_of(name)) is None:
            names[name] = priority
        else:
            networks.append((network, priority))
    networks.sort(key=lambda rule: rule[0].max_prefixlen - rule[0].prefixlen)
    return Callers(names, tuple(networks))
