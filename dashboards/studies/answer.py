"""A question with what was measured of it."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from dashboards.studies.table import Table


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, the name of its file, and what it shows for those who do not see it."""

    name: str
    figure: Figure
    shows: str


@dataclass(frozen=True, slots=True)
class Answer:
    """`sentences` are made from the figures of the cells; the first is the answer in short."""

    question: str
    sentences: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()

    @property
    def short(self) -> str:
        """The answer in one sentence."""
        return self.sentences[0] if self.sentences else "Not measured."
