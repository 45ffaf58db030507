"""Whether our packages are our own: PyPI knows other projects called supervisor and proxy.

Imports none of them, so that it can say so in a sentence where an import would end in a traceback.
"""

import importlib.util
from pathlib import Path

SIBLINGS = ("supervisor", "proxy", "planners")


def strangers() -> str | None:
    """One sentence where a sibling package is missing or another's; None where all is well."""
    own = Path(__file__).resolve().parent.parent
    for name in SIBLINGS:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            return f"the package {name} is missing from {own}; install inferenceosd again"
        found = Path(spec.origin).resolve().parent.parent
        if found != own:
            return (
                f"the package {name} in {found} hides the one of inferenceosd in {own};"
                " install inferenceosd into an environment of its own"
            )
    return None
