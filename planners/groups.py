"""Models that may not run at once, as the operator grouped them. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planners.model import ServedModel, folded


@dataclass(frozen=True, slots=True)
class Group:
    """`[[group]]`: models by name or alias, without case."""

    name: str
    models: tuple[str, ...]
    exclusive: bool
    """One member at a time."""
    alone: bool
    """No model outside of the group runs beside a member."""

    def has(self, served: ServedModel) -> bool:
        """Whether the model is a member."""
        names = {folded(name) for name in (served.model_id, *served.aliases)}
        return any(folded(name) in names for name in self.models)


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
        has_one, has_other = group.has(one), group.has(other)
        if group.exclusive and has_one and has_other:
            return f"group {group.name!r} runs one model at a time"
        if group.alone and has_one != has_other:
            return f"group {group.name!r} runs alone"
    return None
