"""Models that may not run at once, as the operator grouped them. Pure."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from planners.model import ServedModel, folded


class Group(Struct, frozen=True):
    """`[[group]]`: models by name or alias, without case."""

    name: str
    models: tuple[str, ...]
    exclusive: bool
    """One member at a time."""
    alone: bool
    """No model outside of the group runs beside a member."""

    def has(self, served: ServedModel) -> bool:
        """Whether the model is a member."""
        return self.names_any((served.model_id, *served.aliases))

    def names_any(self, names: Iterable[str]) -> bool:
        """Whether the model of these names, aliases included, is a member."""
        members = {folded(name) for name in self.models}
        return any(folded(name) in members for name in names)

    def keeps_apart(self, has_one: bool, has_other: bool) -> str | None:
        """Why two models may not run at once, by membership; None where they may."""
        if self.exclusive and has_one and has_other:
            return f"group {self.name!r} runs one model at a time"
        if self.alone and has_one != has_other:
            return f"group {self.name!r} runs alone"
        return None


def unknown_members(groups: Iterable[Group], names: Iterable[str]) -> Iterator[str]:
    """Half a sentence per group with members that are none of `names`, aliases included."""
    known = {folded(name) for name in names}
    for group in groups:
        unknown = [repr(name) for name in group.models if folded(name) not in known]
        if unknown:
            yield f"group {group.name!r} names no model with {', '.join(unknown)}"


def conflict(one: ServedModel, other: ServedModel, groups: Iterable[Group]) -> str | None:
    """Why the two may not run at once, as half a sentence; None where they may."""
    for group in groups:
        if (why := group.keeps_apart(group.has(one), group.has(other))) is not None:
            return why
    return None
