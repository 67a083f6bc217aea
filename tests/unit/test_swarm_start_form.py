"""The start form of Locust's page: which options it has."""

from typing import Any

from loadgen.swarm.options.flags import FORM_OPTIONS, add_options


class Parser:
    """Remembers the options it is given."""

    def __init__(self) -> None:
        self.shown: dict[str, bool] = {}

    def add_argument(self, flag: str, *, include_in_web_ui: bool, **_: Any) -> None:
        self.shown[flag.removeprefix("--").replace("-", "_")] = include_in_web_ui


def test_the_form_has_what_people_change_and_neither_paths_nor_keys() -> None:
    parser = Parser()
    add_options(parser)
    assert {name for name, is_shown in parser.shown.items() if is_shown} == set(FORM_OPTIONS)
    assert 12 <= len(FORM_OPTIONS) <= 16
    hidden = {"header", "extra_body", "out", "corpus", "questions", "tokenizer", "trace", "rag_url"}
    assert hidden < parser.shown.keys() - set(FORM_OPTIONS)
