"""Text that any database, JSON document or terminal can carry."""


def printable(text: str) -> str:
    """`text` with an escape for each byte that was no UTF-8 and each control character.

    File names on Linux are bytes; Python hands those that are no UTF-8 on as lone surrogates,
    which nothing can encode.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
