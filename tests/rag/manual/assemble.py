"""Makes the manual corpus: 64 sections of the PostgreSQL 15 manual, cut from its HTML pages.

    python tests/rag/manual/assemble.py UNPACKED_PACKAGE_FOLDER OUT.jsonl

The folder is searched for the pages, so it may be the unpacked package or any folder inside it.
Each line of OUT.jsonl has `doc_id`, `title` and `text`, in the order of `sections.txt`. The exit
code is 0, 1 if the text is not the one the questions were written for, 2 if none could be made.
"""

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

VERSION = "15.20"
SHA256 = "756142e881c71a234dfb66aaae51003eef80e7a30980c8ea7f7c3c3d7c63a7dd"
SECTIONS = Path(__file__).with_name("sections.txt")

BLOCKS = frozenset({"dd", "div", "dt", "h1", "h2", "h3", "h4", "li", "p", "pre", "table", "tr"})
CELLS = frozenset({"td", "th"})


class AssemblyError(Exception):
    """Nothing can be assembled; the message is one line with the next step."""


@dataclass(slots=True)
class Section:
    """What stands in one `div` with an id; `depth` counts the `div`s around it, and itself."""

    depth: int
    inside: "Section | None" = None
    headings: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def title(self) -> str:
        """The headings down to this one, without numbers: a bare "Caveats" would say too little."""
        own = unnumbered("".join(self.headings))
        return f"{self.inside.title()}: {own}" if self.inside else own

    def text(self) -> str:
        """A line for each paragraph, item or row of a table, with single spaces."""
        lines = (" ".join(line.split()) for line in "".join(self.pieces).split("\f"))
        return "\n".join(line for line in lines if line)


def unnumbered(heading: str) -> str:
    """`Checkpoints` for `20.5.2. Checkpoints`, and `Replication` for `Chapter 27. Replication`."""
    return re.sub(r"^(Chapter\s+)?[\d.]+\s+", "", " ".join(heading.split()))


def chapter_of(page: str) -> str:
    """The chapter's title, which stands in the page's header only."""
    found = re.search(r'<th width="60%"[^>]*>(.*?)</th>', page)
    return unnumbered(re.sub("<[^>]*>", "", found.group(1))) if found else ""


class Page(HTMLParser):
    """Reads one page into `sections`, by id in lower case; a section holds those inside it too.

    Headings of a section become its title, and lists of contents are left out.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.sections: dict[str, Section] = {}
        self._open: list[Section] = []
        self._classes: list[str] = []
        self.chapter = chapter_of(page)
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "div":
            self._enter(dict(attrs))
        self._part(tag)

    def handle_endtag(self, tag: str) -> None:
        self._part(tag)
        if tag == "div":
            self._leave()

    def handle_data(self, data: str) -> None:
        if "toc" in self._classes or not self._open:
            return
        if "titlepage" in self._classes:
            self._open[-1].headings.append(data)
        around = self._open[:-1] if "titlepage" in self._classes else self._open
        for section in around:
            section.pieces.append(data)

    def _enter(self, attributes: dict[str, str | None]) -> None:
        self._classes.append(attributes.get("class") or "")
        if identity := attributes.get("id"):
            inside = self._open[-1] if self._open else None
            section = self.sections[identity.lower()] = Section(len(self._classes), inside)
            self._open.append(section)

    def _leave(self) -> None:
        if self._open and self._open[-1].depth == len(self._classes):
            self._open.pop()
        if self._classes:
            self._classes.pop()

    def _part(self, tag: str) -> None:
        mark = "\f" if tag in BLOCKS else " " if tag in CELLS else ""
        for section in self._open:
            section.pieces.append(mark)


def wanted_sections() -> list[tuple[str, str]]:
    """Name of the page and id of each section of the corpus."""
    lines = SECTIONS.read_text(encoding="utf-8").split()
    return [(page, identity) for page, _, identity in (line.partition("#") for line in lines)]


def html_folder(folder: Path) -> Path:
    """The folder with the manual's pages, at or below `folder`; the error names what was sought."""
    indexes = sorted(folder.rglob("index.html")) if folder.is_dir() else []
    for index in indexes:
        if (index.parent / wanted_sections()[0][0]).is_file():
            return index.parent
    raise AssemblyError(
        f"{folder} holds no pages of the PostgreSQL manual: unpack postgresql-doc-15 there first "
        "(dpkg-deb -x PACKAGE.deb FOLDER)"
    )


def manual_version(folder: Path) -> str:
    """The version in the title of the manual's first page, or `unknown`."""
    index = (folder / "index.html").read_text(encoding="utf-8")
    found = re.search(r"<title>PostgreSQL\s+(\S+)\s", index)
    return found.group(1) if found else "unknown"


def corpus_lines(folder: Path, wanted: Iterable[tuple[str, str]]) -> list[str]:
    """One JSON line a section; AssemblyError names the page or section that is missing."""
    pages: dict[str, Page] = {}
    lines = []
    for name, identity in wanted:
        if name not in pages:
            pages[name] = read_page(folder / name)
        section = pages[name].sections.get(identity)
        if section is None:
            raise AssemblyError(f"{folder / name} has no section {identity}: take PostgreSQL 15's")
        title = f"{pages[name].chapter}: {section.title()}"
        row = {"doc_id": identity, "title": title, "text": section.text()}
        lines.append(json.dumps(row, ensure_ascii=False))
    return lines


def read_page(path: Path) -> Page:
    """The sections of the page at `path`; AssemblyError if it cannot be read."""
    try:
        return Page(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise AssemblyError(f"{path} cannot be read ({error}): unpack the package anew") from error


def assemble(folder: Path, out: Path) -> int:
    """Writes the corpus and returns the exit code; AssemblyError if it cannot be made."""
    pages = html_folder(folder)
    lines = corpus_lines(pages, wanted_sections())
    corpus = "".join(f"{line}\n" for line in lines).encode()
    try:
        out.write_bytes(corpus)
    except OSError as error:
        raise AssemblyError(f"{out} cannot be written: {error.strerror}") from error
    sys.stdout.write(f"{len(lines)} sections in {out}\n")
    return verdict(manual_version(pages), hashlib.sha256(corpus).hexdigest())


def verdict(version: str, sha256: str) -> int:
    """The exit code; one line on stderr where the version or the text is not the expected one."""
    if sha256 != SHA256:
        tell(
            f"these sections of PostgreSQL {version} are not the text the questions were written "
            f"for: take postgresql-doc-15 of {VERSION}, or compare no figures"
        )
        return 1
    if version != VERSION:
        tell(f"PostgreSQL {version} instead of {VERSION}: the sections have the same text")
    return 0


def tell(line: str) -> None:
    """Writes the line to stderr."""
    sys.stderr.write(f"{line}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Cuts the manual corpus out of its package.")
    parser.add_argument("folder", type=Path, metavar="UNPACKED_PACKAGE_FOLDER")
    parser.add_argument("out", type=Path, metavar="OUT.jsonl")
    options = parser.parse_args(arguments)
    try:
        return assemble(options.folder, options.out)
    except AssemblyError as error:
        tell(str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
