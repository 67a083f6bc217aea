"""The Locust process's line to the kvswarm process that runs the engine, where there is one.

`kvswarm run --target` starts the engines in its own process and names, in one environment
variable, a JSON file with the target's facts and a Unix socket. Over the socket this side asks,
a JSON object a line, for cold caches before each swarm, and which engines of a fleet have died.
"""

import hashlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import TIMEOUT_MAX
from typing import Any

from loadgen.errors import TargetError, UsageError
from loadgen.targets.fleet import EngineDeath

ENVIRONMENT_VARIABLE = "KVSWARM_TARGET"
CHECK_VARIABLE = "KVSWARM_CHECK"
"""Set by `kvswarm run` to have everything checked that needs no host, and nothing started.

It names the file into which the options go, as the swarm will see them.
"""
COLD_TIMEOUT_S, DEATHS_TIMEOUT_S = 900.0, 5.0
"""The first is for all but the start of services, which the process above tells of."""


class Supervisor:
    """What the process above knows and can do; every answer is "unknown" without one."""

    def __init__(
        self,
        facts: Mapping[str, Any],
        control: str | None,
        command_line: Sequence[str],
        folder: Path | None = None,
        cold_timeout_s: float = COLD_TIMEOUT_S,
    ) -> None:
        self.facts = facts
        self.command_line = command_line
        self._control = control
        self._folder = folder
        self._cold_timeout_s = cold_timeout_s

    @classmethod
    def of_process(cls) -> "Supervisor":
        """The supervisor named in the environment, or one that knows nothing."""
        path = os.environ.get(ENVIRONMENT_VARIABLE)
        if not path:
            return cls({}, None, sys.argv)
        wire = json.loads(Path(path).read_text(encoding="utf-8"))
        cold_timeout_s = min(COLD_TIMEOUT_S + wire.get("start_s", 0.0), TIMEOUT_MAX)
        return cls(
            wire["facts"], wire["control"], wire["command_line"], Path(path).parent, cold_timeout_s
        )

    def check_host(self, host: str) -> None:
        """Raise UsageError for another host than the target: its facts would be wrong there."""
        url = self.facts.get("url")
        if url is not None and host.rstrip("/") != url:
            raise UsageError(
                f"this swarm is for its target at {url}, not {host}: use --host for that"
            )

    @property
    def tokenizer(self) -> str | None:
        """A local folder with the tokenizer of the target's model."""
        return self.facts.get("tokenizer")

    @property
    def max_model_len(self) -> int | None:
        """The longest prompt plus reply the target takes, in tokens."""
        return self.facts.get("max_model_len")

    @property
    def cache_tokens(self) -> int | None:
        """Usable tokens of the engine's own KV cache."""
        return self.facts.get("usable_tokens")

    @property
    def body(self) -> Mapping[str, Any]:
        """Fields that every request to the target has."""
        return self.facts.get("body") or {}

    def has_tried(self, what: str) -> bool:
        """Whether an earlier swarm of this supervisor has noted that."""
        return self._folder is not None and self._mark(self._folder, what).exists()

    def note_tried(self, what: str) -> None:
        """Let the swarms to come know."""
        if self._folder is not None:
            self._mark(self._folder, what).touch()

    def _mark(self, folder: Path, what: str) -> Path:
        return folder / f"tried-{hashlib.sha256(what.encode()).hexdigest()}"

    def make_cold(self, keep: bool) -> str:
        """Empty the target's caches unless told to keep them: `cold`, `warm` or `unknown`.

        Raises TargetError when the engine cannot be made cold.
        """
        if self._control is None:
            return "unknown"
        timeout_s = self._cold_timeout_s
        try:
            answer = self._ask({"op": "warm" if keep else "cold"}, timeout_s)
        except TimeoutError:
            raise TargetError(f"the engine was not cold again within {timeout_s:g} s") from None
        except OSError as error:
            raise TargetError(
                f"the process that runs the engine does not answer: {error}"
            ) from None
        if "error" in answer:
            raise TargetError(str(answer["error"]))
        self.facts = {**self.facts, **answer["facts"]}
        return str(answer["cache_state"])

    @property
    def has_fleet(self) -> bool:
        """Whether it runs several engines behind a router."""
        return self._control is not None and "router" in self.facts

    def deaths(self) -> tuple[list[EngineDeath], str | None]:
        """The engines of a fleet that have died, and why it serves no more, None while it does.

        Raises OSError where the process above is gone.
        """
        answer = self._ask({"op": "deaths"}, DEATHS_TIMEOUT_S)
        return [EngineDeath(**each) for each in answer.get("deaths", [])], answer.get("fault")

    def _ask(self, question: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(timeout_s)
            line.connect(self._control or "")
            line.sendall(json.dumps(question).encode() + b"\n")
            with line.makefile("rb") as answers:
                return dict(json.loads(answers.readline() or b'{"error": "no answer"}'))
