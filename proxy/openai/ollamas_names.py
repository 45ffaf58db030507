"""What Ollama names otherwise, for daemons that are to be like it in everything. Pure."""

import re

# Within a text of the model's, its quotes would have a backslash before them.
_TOLD = re.compile(rb'"system_fingerprint":"[^"\\]*"')
_OLLAMAS = b'"system_fingerprint":"fp_ollama"'
_THOUGHT, _OLLAMAS_THOUGHT = b'"reasoning_content":', b'"reasoning":'


def in_ollamas_names(reply: bytes) -> bytes:
    """A whole reply, or whole events of one, with Ollama's fingerprint and name of thoughts."""
    return _TOLD.sub(_OLLAMAS, reply).replace(_THOUGHT, _OLLAMAS_THOUGHT)
