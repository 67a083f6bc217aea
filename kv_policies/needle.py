"""A made-up fact in a long text, and whether a model can say it again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

SYLLABLES = ("bal", "cor", "dun", "fen", "gil", "har", "kel", "lom", "mar", "nor", "sil", "wen")
THINGS = ("gate code", "locker number", "vault code", "ticket number", "badge number")
DIGITS = 5


@dataclass(frozen=True, slots=True)
class Needle:
    """`sentence` goes into the text at `depth`, 0 its beginning and 1 its end; `question` ends
    where `answer` is to come."""

    sentence: str
    question: str
    answer: str
    depth: float

    def is_recalled(self, said: str) -> bool:
        """Whether the first number of what the model says is the answer, to the digit."""
        words = said.strip()
        return words.startswith(self.answer) and not words[len(self.answer) :][:1].isdigit()


def needles(count: int, seed: int) -> Iterator[Needle]:
    """As many facts that no text has, one at a random place of each `count`-th part of the depth,
    in random order."""
    random = Random(seed)
    places = list(range(count))
    random.shuffle(places)
    for place in places:
        town = "".join(random.choices(SYLLABLES, k=3)).capitalize()
        thing = random.choice(THINGS)
        answer = str(random.randrange(10 ** (DIGITS - 1), 10**DIGITS))
        fact = f"The {thing} of {town} is"
        yield Needle(
            sentence=f"\n\n{fact} {answer}.\n\n",
            question=f"\n\nQuestion: What is the {thing} of {town}?\nAnswer: {fact}",
            answer=answer,
            depth=(place + random.random()) / count,
        )


def planted(haystack: Sequence[int], needle: Sequence[int], tokens: int, depth: float) -> list[int]:
    """A context of exactly so many tokens with the needle's at its depth."""
    hay = list(haystack[: tokens - len(needle)])
    at = round(depth * len(hay))
    return [*hay[:at], *needle, *hay[at:]]
