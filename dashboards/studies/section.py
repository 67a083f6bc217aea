"""A question of a study as a section of its page."""

from collections.abc import Iterator

from dashboards.studies.answer import Answer


def section(key: str, answer: Answer, name: str) -> Iterator[str]:
    """Its paragraphs in Markdown; `name` is that of the study, with which its pictures begin."""
    yield f'<a id="{key}"></a>\n## {answer.question}'
    yield f"**{answer.short}**"
    if answer.sentences[1:]:
        yield "\n".join(f"- {sentence}" for sentence in answer.sentences[1:])
    for picture in answer.pictures:
        yield f"![{picture.shows}]({name}-{picture.name}.svg)"
    for table in answer.tables:
        yield table.markdown
