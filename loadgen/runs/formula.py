"""Text of others in a cell, which a spreadsheet would run."""

_BEGINNINGS = ("=", "+", "-", "@", "\t", "\r")


def without_formula(text: str) -> str:
    """`text` behind an apostrophe where a spreadsheet would take it for a formula.

    Different texts stay different: one that has its apostrophe already gets another.
    """
    return f"'{text}" if text.lstrip("'").startswith(_BEGINNINGS) else text
