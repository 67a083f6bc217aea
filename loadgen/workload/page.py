"""A context and what can be asked about it."""

from dataclasses import dataclass

from loadgen.context import Context, Question


@dataclass(frozen=True, slots=True)
class Page:
    """A context with its questions, whose texts all differ."""

    context: Context
    questions: tuple[Question, ...]

    def ask(self, number: int) -> tuple[str, str]:
        """Id and text of the context's question `number`, each text another one for ever.

        When the questions are used up they come again with a new ending and `~2`, `~3`, ... in
        the id.
        """
        again, position = divmod(number, len(self.questions))
        question = self.questions[position]
        if again == 0:
            return question.question_id, question.text
        version = again + 1
        return f"{question.question_id}~{version}", question.text + variation(version)


def variation(version: int) -> str:
    """What is appended to a question that is asked again."""
    return f" Answer in a new way, version {version}."
