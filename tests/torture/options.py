"""Absurd values for every option of every command: one clear line, or a run like any other.

    python tests/torture/options.py [--command NAME …] [--option FLAG …] [--share N] [--at-once N]

The options are those that each command's own help names. What breaks an invariant is printed with
the command that replays it, and the exit code is then 1. `--share 10` tries each tenth case.
"""

import argparse
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))
sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from fake_engine import CATALOG
from run_process import KVSWARM, host_process, run_swarm

from loadgen.targets.demo_model import build_model
from loadgen.twin.engine import EngineShape
from loadgen.twin.model import FrontTime, TwinModel
from loadgen.twin.shape_of import CalibratedEngine
from loadgen.twin.step_time import StepTime
from loadgen.workload.corpus import load_corpus

ABSURD = (
    *("", " ", "-1", "0", "0.5", "1e309", "nan", "inf", "-inf", "1e18", "9" * 30, "-0"),
    *("5-", "-5", "10-5", "0-0", "1-1e18", "é", "None", "[]", "{", '{"a": NaN}', "a,b", ",", "a=b"),
    *("%s%n", "\n", "x" * 5_000, "../../..", "/dev/null", "/dev/full", "/proc/1/mem", "."),
    *("http://", "::", "--help-me", "<=", "ttft_ms<=nan", "1h-", "-1s", "99999999h"),
)
LONGEST_S = 60.0
SERVED_S = 8.0
"""What serves until Ctrl-C is then sent one."""
MEMORY_BYTES = 12 << 30
"""Of address space, most of which Python's libraries only map."""
WIDEST = 1_000
"""Characters of a refusal; more is a value thrown back at its user."""
USAGE = 2
CODES = frozenset({*range(7), 130})
OPTION = re.compile(r"^  (?:-\w(?: [^-\s]\S*)?, )?(--[a-z][\w-]*)(?:[ =]([A-Z\[{]\S*))", re.M)
SKIPPED = {
    "run": {"--target", "--targets", "--host", "--web-port", "--master-host", "--master-port"},
    "saturate": {"--target", "--targets", "--host"},
    "sweep": {"--target", "--targets", "--host"},
    "serve": {"--targets"},
}
"""Those that say what is loaded: any name is as good as another, and some would be asked for."""
SERVING = frozenset({"serve", "kv link", "kv serve", "rag serve"})
QUESTIONS = ("what is paged?", "who leads the cluster?", "how does bread rise?", "why is it cold?")
DOCUMENTS = (
    "Blocks of the cache are paged.",
    "A leader leads the cluster.",
    "Yeast makes it rise.",
)


@dataclass(frozen=True, slots=True)
class OptionCase:
    """`base` is a call of `command` that is right without the option."""

    command: str
    base: tuple[str, ...]
    option: str
    value: str

    @property
    def words(self) -> list[str]:
        """As one word, so that a value with a dash is no option of its own."""
        return [*KVSWARM, *self.base, f"{self.option}={self.value}"]


def make_twin(folder: Path) -> Path:
    """Of a server with a small cache that nobody measured."""
    texts = [document.text for document in load_corpus().documents]
    tokenizer = str(build_model(folder / "model", "tiny", texts))
    shape = EngineShape(usable_blocks=40, max_model_len=4096)
    engine = CalibratedEngine(shape, ("python", "-m", "vllm"), tokenizer, 1024)
    step, front = StepTime(0.02, 2e-4, 8e-8, 1e-3, 4e-7), FrontTime(0.003, 2e-6, 0.002)
    TwinModel(step, front, 0.02, 3, 0.01, {}, engine=engine.to_json()).write(folder / "twin.json")
    return folder / "twin.json"


def make_library(folder: Path) -> None:
    """Documents and questions about them, indexed by hashes."""
    for number, text in enumerate(DOCUMENTS):
        (folder / "texts").mkdir(exist_ok=True)
        (folder / "texts" / f"d{number}.txt").write_text(text)
    for name in ("known", "strange"):
        rows = [
            {"qid": f"q{at}", "question": text, "doc_id": f"d{at % len(DOCUMENTS)}"}
            for at, text in enumerate(QUESTIONS)
        ]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = [*KVSWARM, "rag", "index", str(folder / "texts"), *library(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def library(folder: Path) -> tuple[str, ...]:
    return ("--path", str(folder / "library"), "--embedder", "hashing")


def rag_bases(folder: Path) -> dict[str, tuple[str, ...]]:
    """Of the service that finds documents."""
    texts, known, strange = (str(folder / n) for n in ("texts", "known.jsonl", "strange.jsonl"))
    calls = {
        "index": (texts,),
        "label": (QUESTIONS[0],),
        "explain": (QUESTIONS[0],),
        "eval": ("--questions", known),
        "fit-threshold": (known, strange),
        "serve": ("--port", "0"),
    }
    return {f"rag {name}": ("rag", name, *words, *library(folder)) for name, words in calls.items()}


def other_bases(folder: Path) -> dict[str, tuple[str, ...]]:
    """Of what loads nothing and needs no engine of a real kind."""
    catalog = folder / "targets.toml"
    catalog.write_text(CATALOG)
    model, texts = str(folder / "model"), str(folder / "texts")
    short = ("--prompt-tokens", "64", "--generate", "4", "--needles", "2", "--repeats", "1")
    once = ("--generated", "4", "--prompts", "8", "--batches", "1", "--profile-tokens", "8")
    own = ("--model", model, "--corpus", texts)
    return {
        "serve": ("serve", "sound", "--targets", str(catalog), "--model", "m"),
        "model build": ("model", "build", model),
        "ladder": ("ladder", "--quick", *own, *once),
        "policies": ("policies", "--quick", "--policy", "full", *own, *short),
        "kv link": ("kv", "link", "--listen", "0", "--to", "127.0.0.1:9", "--rate-mbit", "8"),
        "kv serve": ("kv", "serve", "--model", model, "--port", "0"),
        "kv codecs": ("kv", "codecs", *own, "--texts", "2", "--prompt-tokens", "64"),
        "kv extract": ("kv", "extract", texts),
    }


def bases(url: str, run: Path, twin: Path) -> dict[str, tuple[str, ...]]:
    """A right call of each command that ends soon."""
    load = ("-u", "2", "-r", "2", "-t", "1s", "--output-tokens", "2", "--max-lag-ms", "60000")
    fixed = ("--model", "normal", "--tokenizer", "", "--drain", "1", "--max-silence", "2")
    few = ("--batches", "2", "--batch-size", "2", "-u", "1", "-r", "1")
    return {
        "run": ("run", "--host", url, *fixed, *load),
        "saturate": ("saturate", "--host", url, "--slo", "ttft_ms<=500", *fixed, *load),
        "compare": ("compare", str(run), str(run)),
        "report": ("report", str(run)),
        "curve": ("curve", str(run)),
        "why": ("why", str(run)),
        "tiers": ("tiers", "--bytes-per-token", "4096", "--prefill-rate", "1000"),
        "calibrate": ("calibrate", str(run)),
        "simulate": ("simulate", "batched", "--twin", str(twin), *few),
        "advise": ("advise", "batched", "--twin", str(twin), "--slo", "ttft_ms<=900", *few),
    }


def options_of(command: str) -> list[str]:
    """The flags of its help that take a value."""
    shown = subprocess.run(
        [*KVSWARM, *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        timeout=LONGEST_S,
    )
    found = dict.fromkeys(match[1] for match in OPTION.finditer(shown.stdout))
    return [flag for flag in found if flag not in SKIPPED.get(command, ())]


def cases_of(known: dict[str, tuple[str, ...]], only: argparse.Namespace) -> Iterator[OptionCase]:
    """Every absurd value for every option that was chosen."""
    for command, base in known.items():
        if only.command and command not in only.command:
            continue
        for option in options_of(command):
            if only.option and option not in only.option:
                continue
            for value in ABSURD:
                yield OptionCase(command, base, option, value)


def try_case(case: OptionCase) -> list[str]:
    """What is wrong with how the command ended."""
    with tempfile.TemporaryDirectory(prefix="options-") as folder:
        process = subprocess.Popen(
            case.words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env={**os.environ, "COLUMNS": "80", "TMPDIR": folder},
            preexec_fn=partial(resource.setrlimit, resource.RLIMIT_AS, (MEMORY_BYTES,) * 2),
        )
        try:
            out, err = ended(process, case.command in SERVING)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return [f"not ended after {LONGEST_S:.0f} s"]
    return list(faults(process.returncode, out, err))


def ended(process: "subprocess.Popen[str]", is_serving: bool) -> tuple[str, str]:
    """What it has said by its end, or by Ctrl-C where it serves."""
    if is_serving:
        try:
            return process.communicate(timeout=SERVED_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
    return process.communicate(timeout=LONGEST_S)


def faults(code: int, out: str, err: str) -> Iterator[str]:
    """Invariants that such an end breaks."""
    if code not in CODES:
        yield f"exit code {code}"
    if "Traceback" in out + err:
        yield f"a traceback: {(out + err)[-600:]}"
    lines = [line for line in err.splitlines() if line.strip()]
    if code == USAGE and len(lines) != 1:
        yield f"{len(lines)} lines instead of one: {err[-600:]}"
    if code == USAGE and len(err) > WIDEST:
        yield f"a refusal of {len(err):,} characters"


def run_all(cases: Sequence[OptionCase], at_once: int) -> int:
    """All cases; the number of those that broke something."""
    begun_s, broken = time.monotonic(), 0
    tried: Counter[str] = Counter()
    with ThreadPoolExecutor(at_once) as threads:
        for case, wrong in zip(cases, threads.map(try_case, cases), strict=True):
            tried[case.command] += 1
            if wrong:
                broken += 1
                print(f"BROKEN {'; '.join(wrong)}\n  replay: {shlex.join(case.words)[:600]}")
                sys.stdout.flush()
    for command, count in sorted(tried.items()):
        print(f"{count:5} {command}")
    spent_s = time.monotonic() - begun_s
    print(f"{len(cases)} absurd values, {broken} broke an invariant, {spent_s:.0f} s")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--command", action="append")
    parser.add_argument("--option", action="append")
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2)
    parsed = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="options-") as folder, host_process() as host:
        run = Path(folder) / "run"
        run_swarm(host.url, run, "-u", 2, "-r", 2, "-t", "2s", "--output-tokens", 4)
        known = bases(host.url, run, make_twin(Path(folder)))
        make_library(Path(folder))
        known |= rag_bases(Path(folder)) | other_bases(Path(folder))
        cases = list(cases_of(known, parsed))[:: parsed.share]
        return int(run_all(cases, parsed.at_once) > 0)


if __name__ == "__main__":
    sys.exit(main())
