"""The clients that are compared, each run once as a metered child process."""

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from children import CLIENT_CORE, HERE, Metered, run_metered
from client_replies import Reported, replies_of_kvswarm, replies_of_times

from loadgen.client.protocol import ROUTES, request_body
from loadgen.client.settings import ClientSettings, Endpoint
from loadgen.workload.corpus import load_corpus
from loadgen.workload.lengths import EstimatedTokens
from loadgen.workload.settings import Span, WorkloadSettings
from loadgen.workload.workload import Workload

CONTEXT_TOKENS = 64
BODIES = 512
SATURATED = 5
GRACE_S = 30.0
REPLIES = "replies.json"


@dataclass(frozen=True, slots=True)
class Job:
    """What a client is to do: `users` requests at once, replies of `tokens`, for `seconds`.

    `requests` is about how many that will be, for clients that want a number. Only kvswarm and the
    bare loop know another `endpoint`.
    """

    url: str
    users: int
    tokens: int
    seconds: float
    folder: Path
    requests: int = 0
    endpoint: Endpoint = "completions"


@dataclass(frozen=True, slots=True)
class Command:
    """What a client's process is: `allowed` are its exit codes after a run that counts."""

    words: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    allowed: tuple[int, ...] = (0,)
    grace_s: float = GRACE_S
    cores: tuple[int, ...] = (CLIENT_CORE,)


@dataclass(frozen=True, slots=True)
class Client:
    """A client: its command for a job, and what it reported, read from the job's folder.

    A slow one runs once in each scenario.
    """

    name: str
    command: Callable[[Job], Command]
    reported: Callable[[Path], list[Reported]]
    slow: bool = False

    def run(self, job: Job) -> Metered:
        """Run it to its end. Raises RuntimeError with its log when it fails."""
        command, log = self.command(job), job.folder / "client.log"
        timeout_s = job.seconds + command.grace_s
        metered = run_metered(command.words, log, timeout_s, command.environment, command.cores)
        if metered.exit_code not in command.allowed:
            raise RuntimeError(f"{self.name} ended with {metered.exit_code}:\n{log.read_text()}")
        return metered


def kvswarm_client(name: str, options: tuple[str, ...] = ()) -> Client:
    """`kvswarm run`, as users run it: inside Locust, with every metric on."""

    def command(job: Job) -> Command:
        workload = ["--arrivals", "closed", "--context-tokens", str(CONTEXT_TOKENS)]
        workload += ["--output-tokens", str(job.tokens)]
        words = [sys.executable, "-m", "loadgen.cli.main", "run", "unordered", "--host", job.url]
        words += [
            "--endpoint",
            job.endpoint,
            *workload,
            *_swarm(job),
            "--drain",
            "2",
            "--out",
            str(job.folder / "run"),
        ]
        return Command([*words, *options], allowed=(0, SATURATED))

    return Client(name, command, lambda folder: replies_of_kvswarm(folder / "run"))


def _loop(script: str) -> Callable[[Job], Command]:
    """A loop of ours without kvswarm; it keeps times only of paced replies, which are few."""

    def command(job: Job) -> Command:
        words = [sys.executable, str(HERE / script), "--url", f"{job.url}{ROUTES[job.endpoint]}"]
        words += ["--bodies", str(write_bodies(job)), "--concurrency", str(job.users)]
        words += ["--seconds", str(job.seconds), "--out", str(job.folder / REPLIES)]
        return Command(words)

    return command


def _fasthttp(job: Job) -> Command:
    words = [sys.executable, "-m", "locust", "-f", str(HERE / "client_fasthttp.py"), "--headless"]
    words += ["--host", job.url, *_swarm(job), "--only-summary", "--stop-timeout", "2"]
    bodies, replies = str(write_bodies(job)), str(job.folder / REPLIES)
    return Command(words, {"BODIES": bodies, "REPLIES": replies})


def _swarm(job: Job) -> list[str]:
    return ["-u", str(job.users), "-r", str(job.users), "-t", f"{math.ceil(job.seconds)}s"]


def write_bodies(job: Job) -> Path:
    """A file of the bodies that kvswarm sends first in such a job, a line each."""
    settings = WorkloadSettings(
        context_tokens=Span(CONTEXT_TOKENS, CONTEXT_TOKENS),
        output_tokens=Span(job.tokens, job.tokens),
    )
    workload = Workload(load_corpus(), settings, EstimatedTokens())
    client = ClientSettings(url=job.url, model="mock", endpoint=job.endpoint)
    requests = (workload.request_for(next(workload.stream)) for _ in range(BODIES))
    bodies = [request_body(client, each.prompt, each.max_tokens) for each in requests]
    path = job.folder / "bodies.jsonl"
    path.write_bytes(b"\n".join(bodies))
    return path


def cache_folder() -> Path:
    """Where environments of peers are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvswarm" / "peers"


def _times(folder: Path) -> list[Reported]:
    return replies_of_times(folder / REPLIES)


KVSWARM = kvswarm_client("kvswarm")
BARE = Client("bare", _loop("bare_client.py"), _times)
FLOOR = Client("floor", _loop("client_floor.py"), _times)
FASTHTTP = Client("FastHttpUser", _fasthttp, _times)
