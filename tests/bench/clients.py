"""The two clients that are compared, each run once as a metered child process."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from children import HERE, Metered, run_metered
from figures import Reported, reported_by_bare, reported_by_kvswarm

from loadgen.client.protocol import request_body
from loadgen.client.settings import ClientSettings
from loadgen.workload.corpus import load_corpus
from loadgen.workload.lengths import EstimatedTokens
from loadgen.workload.settings import Span, WorkloadSettings
from loadgen.workload.workload import Workload

CONTEXT_TOKENS = 64
BODIES = 512
SATURATED = 5
GRACE_S = 30.0


@dataclass(frozen=True, slots=True)
class Job:
    """What a client is to do: `users` requests at once, replies of `tokens`, for `seconds`."""

    url: str
    users: int
    tokens: int
    seconds: float
    folder: Path


@dataclass(frozen=True, slots=True)
class Client:
    """A client: how it is run, and how what it reported is read from the job's folder."""

    name: str
    run: Callable[[Job], Metered]
    reported: Callable[[Path], list[Reported]]


def run_kvswarm(job: Job) -> Metered:
    """`kvswarm run`, as users run it."""
    workload = ["--arrivals", "closed", "--context-tokens", str(CONTEXT_TOKENS)]
    workload += ["--output-tokens", str(job.tokens)]
    swarm = ["-u", str(job.users), "-r", str(job.users), "-t", f"{math.ceil(job.seconds)}s"]
    command = ["-m", "loadgen.cli.main", "run", "unordered", "--host", job.url, *workload, *swarm]
    return _run([*command, "--drain", "2", "--out", str(job.folder / "run")], job)


def run_bare(job: Job) -> Metered:
    """The bare loop; it keeps times only of paced replies, which are few."""
    bodies = job.folder / "bodies.jsonl"
    bodies.write_bytes(b"\n".join(make_bodies(job)))
    command = [str(HERE / "bare_client.py"), "--url", f"{job.url}/v1/completions"]
    command += ["--bodies", str(bodies), "--concurrency", str(job.users)]
    command += ["--seconds", str(job.seconds), "--out", str(job.folder / "replies.json")]
    return _run(command, job)


def make_bodies(job: Job) -> list[bytes]:
    """The bodies that kvswarm sends first in such a job."""
    settings = WorkloadSettings(
        context_tokens=Span(CONTEXT_TOKENS, CONTEXT_TOKENS),
        output_tokens=Span(job.tokens, job.tokens),
    )
    workload = Workload(load_corpus(), settings, EstimatedTokens())
    client = ClientSettings(url=job.url, model="mock")
    requests = (workload.next_request() for _ in range(BODIES))
    return [request_body(client, each.prompt, each.max_tokens) for each in requests]


def _run(command: list[str], job: Job) -> Metered:
    log = job.folder / "client.log"
    metered = run_metered(command, log, job.seconds + GRACE_S)
    if metered.exit_code not in (0, SATURATED):
        raise RuntimeError(f"{' '.join(command)} failed:\n{log.read_text()}")
    return metered


KVSWARM = Client("kvswarm", run_kvswarm, lambda folder: reported_by_kvswarm(folder / "run"))
BARE = Client("bare", run_bare, lambda folder: reported_by_bare(folder / "replies.json"))
