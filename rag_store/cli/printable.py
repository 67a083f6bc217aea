"""Text of others, fit for a line of a terminal."""


def printable(text: str) -> str:
    """In one line, without what a terminal obeys."""
    return "".join(each if each.isprintable() else " " for each in text)
