"""The site of `make docs`, by Sphinx and MyST: pages stay Markdown that GitHub shows as well."""

import os
import re
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

project = "kvswarm"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "fixed_sidebar": True, "show_powered_by": False}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_show_copyright = html_copy_source = False
html_static_path: list[str] = []
myst_heading_anchors = 4
suppress_warnings = ["myst.header", "misc.highlighting_failure", "toc.empty_glob"]

DOCS = Path(__file__).parent
SOURCE = "https://github.com/kvswarm/kvswarm/blob/main/"
LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)")
ANCHOR = re.compile(r'<a id="([^"]+)"></a>')


def link_outside(app: Sphinx, page: str, source: list[str]) -> None:
    """Links that leave `docs` lead to the repository; what is not in it is a broken link."""
    folder = (DOCS / page).parent

    def lead(found: re.Match[str]) -> str:
        at = Path(os.path.normpath(folder / found[1]))
        if at.is_relative_to(DOCS):
            return found[1]
        if not at.exists():
            logging.getLogger(__name__).warning("broken link: %s", found[1], location=page)
        return SOURCE + at.relative_to(DOCS.parent).as_posix()

    text = LINK.sub(lead, source[0])
    for name in ANCHOR.findall(text):  # MyST takes them for anchors of this page only by its name
        text = text.replace(f"](#{name})", f"]({Path(page).name}.md#{name})")
    source[0] = text


def know_anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Links may lead to `<a id="…"></a>`, which MyST alone would not find."""
    page = app.env.docname
    slugs = app.env.metadata[page].setdefault("myst_slugs", {})
    for name in ANCHOR.findall(Path(app.env.doc2path(page)).read_text()):
        slugs.setdefault(name, (0, name, name))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", link_outside)
    app.connect("doctree-read", know_anchors)
