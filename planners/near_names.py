"""Names like one that nobody has: what a caller may have meant. Pure."""

from collections.abc import Iterable
from itertools import islice

from planners.model import folded

MOST_TOLD = 3
SHORTEST, LONGEST = 3, 100  # shorter is part of everything; difflib's time grows with the length
MOST_KNOWN = 1000  # looked through, a few milliseconds; longer lists are for `models` to show


def near_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Of `known` those that `name` is a part of, shortest first, then those that look like it."""
    wanted = folded(name)
    if not SHORTEST <= len(wanted) <= LONGEST:
        return ()
    by_fold = {folded(each): each for each in islice(known, MOST_KNOWN)}
    within = sorted((each for each in by_fold if wanted in each), key=len)
    from difflib import get_close_matches  # late: seldom wanted, and not small

    alike = get_close_matches(wanted, by_fold, n=MOST_TOLD)
    return tuple(by_fold[each] for each in dict.fromkeys((*within, *alike)))[:MOST_TOLD]
