"""What `kvswarm ask` shows of a question: for a reader as it comes, or one JSON object."""

import json
from dataclasses import asdict

from loadgen.client.retrieval import Retrieval
from loadgen.launch.pipeline import Asked
from loadgen.launch.terminal import printable, say


class AskPrinter:
    """Prints questions one after another; several are told apart by their own text."""

    def __init__(self, as_json: bool, several: bool) -> None:
        self._as_json = as_json
        self._several = several

    def begin(self, question: str) -> None:
        """The next question is on its way."""
        if self._several and not self._as_json:
            print(f"> {printable(question)}", flush=True)

    def found(self, found: Retrieval) -> None:
        """Its document is known, or that there is none."""
        if self._as_json:
            return
        if found.doc_id is None:
            print(f"no document (score {found.score:.3f}): asked without one\n", flush=True)
        else:
            print(f"document {printable(found.doc_id)} (score {found.score:.3f})\n", flush=True)

    def speak(self, text: str) -> None:
        """A piece of the answer has come."""
        if not self._as_json:
            print(printable(text), end="", flush=True)

    def end(self, asked: Asked) -> None:
        """It is over, well or not."""
        if self._as_json:
            print(json.dumps(asdict(asked)), flush=True)
        elif asked.retrieval_ms is not None:
            print(f"\n\n{figures(asked)}" + ("\n" if self._several else ""), flush=True)
        if asked.outcome != "ok":
            happened = "the answer broke off" if asked.answer else "no answer"
            say(f"{happened}: {asked.error}")


def figures(asked: Asked) -> str:
    """One line; what is not known is left out."""
    parts = [f"retrieval {asked.retrieval_ms:.0f} ms" if asked.retrieval_ms is not None else ""]
    if asked.ttft_ms is not None:
        parts.append(f"TTFT with it {asked.ttft_ms:.0f} ms")
    if asked.prompt_tokens is not None:
        cached = "" if asked.cached_tokens is None else f" ({asked.cached_tokens} cached)"
        parts.append(f"{asked.prompt_tokens} prompt tokens{cached}")
    if asked.output_tokens is not None:
        parts.append(f"{asked.output_tokens} output tokens")
    if asked.tokens_per_s is not None:
        parts.append(f"{asked.tokens_per_s:.1f} tokens/s")
    return ", ".join(filter(None, parts))
