"""The one place that says how a context and a question become a prompt."""

QUESTION_MARKER = "\n\nQuestion: "


def join_prompt(context: str, question: str) -> str:
    """Context first and unchanged, question last: what requests share is a prefix."""
    return f"{context}{QUESTION_MARKER}{question}"


def bare_prompt(question: str) -> str:
    """The prompt of a question that has no context."""
    return QUESTION_MARKER.lstrip() + question
