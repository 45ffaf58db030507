"""`system_fingerprint` as Ollama has it, for daemons that are to be like it in everything. Pure."""

import re

# Within a text of the model's, its quotes would have a backslash before them.
_TOLD = re.compile(rb'"system_fingerprint":"[^"\\]*"')
_OLLAMAS = b'"system_fingerprint":"fp_ollama"'


def with_ollamas_fingerprint(reply: bytes) -> bytes:
    """A whole reply, or whole events of one, with Ollama's instead of the build of llama-server."""
    return _TOLD.sub(_OLLAMAS, reply)
