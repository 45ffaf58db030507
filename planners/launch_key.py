"""What a launch is planned from, in a word: another one calls for another launch."""

import hashlib

from msgspec.structs import replace

from planners.model import ServedModel
from planners.settings import PlacementRules


def launch_key(served: ServedModel, rules: PlacementRules) -> str:
    """12 hex digits that change when what the operator or the file says calls for another launch.

    Free memory, and settings that act without a launch (keep_alive, pin), are left out.
    """
    settings = replace(served.settings, keep_alive_s=0.0, pin=False)
    effective = (served.path, served.file_key, settings, rules.context, rules.parallel)
    told = (*effective, rules.type_k, rules.type_v)
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]
