"""Pins and groups that contradict each other: each is well-formed, no machine could keep both."""

from collections.abc import Sequence
from itertools import combinations

from inferenceosd.settings.error import ConfigError
from inferenceosd.settings.lines import key_lines, nearest_line
from planners.instances.groups import Group
from planners.settings import ModelRule


def check_pins(
    rules: Sequence[ModelRule], groups: Sequence[Group], *, file: str | None, text: str | None
) -> None:
    """Raises ConfigError for a group that keeps two pinned models apart."""
    pinned = [rule for rule in rules if rule.settings.pin]
    for index, group in enumerate(groups):
        for one, other in combinations(pinned, 2):
            why = group.keeps_apart(_is_member(group, one), _is_member(group, other))
            if why is not None:
                raise ConfigError(
                    f"{why}, and both {one.name!r} and {other.name!r} are pinned",
                    source=file or "the configuration",
                    line=nearest_line(key_lines(text or ""), ("group", index)),
                    key=f"group[{index + 1}]",
                    allowed="one of the two pinned",
                )


def _is_member(group: Group, rule: ModelRule) -> bool:
    return group.names_any((rule.name, *rule.aliases))
