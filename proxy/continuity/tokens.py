"""What a child makes of texts and of tokens, and how many tokens a text is in another's middle."""

from collections.abc import Sequence

import msgspec

_SPACES = (b" ", "\u2581".encode())  # the second where a vocabulary has no token for it


class Piece(msgspec.Struct):
    """One token of llama-server's /tokenize, `with_pieces`."""

    piece: str | list[int] = ""
    """Its bytes, where they are no text."""
    id: int = -1

    @property
    def bytes(self) -> bytes:
        """What it stands for."""
        return self.piece.encode() if isinstance(self.piece, str) else bytes(self.piece)


class Tokenized(msgspec.Struct):
    """A text's tokens."""

    tokens: list[Piece]


class Detokenized(msgspec.Struct):
    """What tokens stand for."""

    content: str


TOKENIZED = msgspec.json.Decoder(Tokenized)
DETOKENIZED = msgspec.json.Decoder(Detokenized)


def tokenize_body(text: str) -> bytes:
    """What /tokenize is asked."""
    return msgspec.json.encode({"content": text, "add_special": False, "with_pieces": True})


def detokenize_body(ids: Sequence[int]) -> bytes:
    """What /detokenize is asked."""
    return msgspec.json.encode({"tokens": ids})


def n_tokens(pieces: Sequence[Piece], text: str) -> int:
    """Tokens of `pieces`, without those of the space alone that some tokenizers put before a text.

    It was not written: SentencePiece models add one to what they are given (llama.cpp
    llama-vocab.cpp, add_space_prefix), in as many tokens as their vocabulary has it.
    """
    if sum(len(piece.bytes) for piece in pieces) <= len(text.encode()):
        return len(pieces)
    begun = b""
    for n, piece in enumerate(pieces, 1):
        begun += piece.bytes
        if begun in _SPACES:
            return len(pieces) - n
    return len(pieces)
