"""`kvswarm policies`: what KV cache policies save and what they break, on a trained model."""

import argparse
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.attention import NAMED, attention_command, train_gqa_command
from loadgen.cli.made_by import measured_now, told
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.launch.target_run import model_named
from loadgen.launch.terminal import say, tell
from loadgen.runs.directory import require_writable
from loadgen.targets.trained_model import TRAINED
from loadgen.workload.corpus import load_documents
from rag_store.cli.output import aligned

if TYPE_CHECKING:
    from dashboards.studies.page import Provenance
    from kv_policies import PolicyPlan, PolicyRow

DEFAULT_OUT, MEASURED = Path("runs") / "policies", "measured.json"
QUICK = {"prompt_tokens": 512, "generate_tokens": 96, "repeats": 2, "needles": 12}
BELOW = {"attention": attention_command, "train-gqa": train_gqa_command}
"""Commands of their own behind `kvswarm policies`."""
COLUMNS = (
    ("kv_share", "KV bytes", "{:.0%}"),
    ("perplexity_decode", "perplexity", "{:.4g}"),
    ("kl_nats", "KL, nats", "{:.3g}"),
    ("top1_agreement", "same token", "{:.0%}"),
    ("recall", "recall", "{:.0%}"),
    ("ttft_ms", "TTFT, ms", "{:.0f}"),
    ("decode_ms_per_token", "ms/token", "{:.3g}"),
)
"""Of the table on the terminal; the CSV has all."""


def policies_study(arguments: list[str]) -> int:
    """The same as a study, with a folder and a page as studies have. Raises UsageError."""
    out = Path("runs") / f"study-policies{'-quick' if '--quick' in arguments else ''}"
    with needs("trained,report"), told_refusals():
        parsed = _parser("kvswarm study policies", out).parse_args(arguments)
        return _measure(parsed, arguments, ("study", "policies"))


def policies_command(arguments: list[str]) -> int:
    """Measure policies, print a table and write files, picture and page. Raises UsageError."""
    if (command := BELOW.get(arguments[0] if arguments else "")) is not None:
        with needs("trained,report"), told_refusals():
            return command(arguments[1:])
    parsed = _parser().parse_args(arguments)
    with needs("trained,report"), told_refusals():
        if parsed.list:
            tell("\n".join(_catalogue()))
            return 0
        if parsed.check:
            return _check(parsed.policy or [])
        return _measure(parsed, arguments)


def _check(names: Sequence[str]) -> int:
    """Try policies on a tiny model. Raises UsageError for the first broken promise."""
    from kv_policies import known_policies, policy_named
    from kv_policies.checks import broken_promises, what_it_does
    from kv_policies.runner import told_failure

    for name in names or known_policies():
        policy = policy_named(name)
        with told_failure(policy.label, policy):
            if broken := next(broken_promises(policy), ""):
                raise UsageError(f"policy {policy.label} is not to be used: {broken}")
            tell(f"{policy.label}: {what_it_does(policy)}")
    return 0


def _measure(
    parsed: argparse.Namespace, arguments: list[str], command: Sequence[str] = ("policies",)
) -> int:
    from dashboards.kv_policies_page import write_policies_page
    from kv_policies import ROWS_CSV, note_of, run_policies, usual_policies, write_csv

    plan = _plan(parsed)
    folder: Path = parsed.page or parsed.out
    require_writable(parsed.out)
    require_writable(folder, "--page")
    model = Path(model_named(parsed.model) or "")
    names = parsed.policy or usual_policies(model, plan, parsed.quick)
    texts = [each.text for each in load_documents(parsed.corpus)]
    since_s, new = time.monotonic(), set[str]()

    def progress(done: int, total: int, name: str) -> None:
        if name:
            new.add(name)
            say(f"{done} of {total} measured after {time.monotonic() - since_s:.0f} s: {name} …")

    rows = run_policies(model, texts, names, parsed.out, plan=plan, progress=progress)
    note = note_of(parsed.out)
    made = _made(shlex.join(["kvswarm", *command, *told(arguments)]), parsed.out, is_new=bool(new))
    sizes = f"{plan.prompt_tokens} tokens of prompt and {plan.generate_tokens} behind it"
    made = replace(made, versions=f"{made.versions}, model {model.name}, texts of {sizes}")
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(rows, folder / ROWS_CSV)
    page = write_policies_page(rows, note, made, folder)
    tell("\n".join(_table(rows)))
    if note:
        tell(note)
    tell(str(page))
    return 0


def _made(command: str, out: Path, *, is_new: bool) -> "Provenance":
    """As noted when the latest figure of a folder was measured; noted now where one is new."""
    from dashboards.studies.page import Provenance
    from kv_policies import device_of
    from kv_policies.rows import read_object, write_object

    noted = read_object(out / MEASURED)
    if is_new or noted.keys() != {each.name for each in fields(Provenance)}:
        at_s = max(each.stat().st_mtime for each in out.glob("policy-*.json"))
        noted = asdict(measured_now((), NAMED, at_s, device_of(out)))
        write_object(out / MEASURED, noted)
    return Provenance(**noted | {"command": command})


@contextmanager
def told_refusals() -> Iterator[None]:
    """The package's errors as ours: the same line."""
    from kv_policies import PolicyError

    try:
        yield
    except PolicyError as error:
        raise UsageError(str(error)) from error
    except (MemoryError, RuntimeError) as error:
        if "allocate" not in str(error) and not isinstance(error, MemoryError):
            raise
        raise UsageError("this takes more memory than there is: give fewer or less") from error


def _plan(parsed: argparse.Namespace) -> "PolicyPlan":
    from kv_policies import PolicyPlan

    given = {each.name: getattr(parsed, each.name) for each in fields(PolicyPlan)}
    quick = QUICK if parsed.quick else {}
    return PolicyPlan(**(quick | {name: each for name, each in given.items() if each is not None}))


def _catalogue() -> Iterator[str]:
    from kv_policies import known_policies

    return aligned((each.example, each.summary) for each in known_policies().values())


def _table(rows: Sequence["PolicyRow"]) -> Iterator[str]:
    lines = [("policy", *(title for _, title, _ in COLUMNS))]
    for row in rows:
        spreads = [(getattr(row, name), form) for name, _, form in COLUMNS]
        cells = ["" if each is None else form.format(each.mean) for each, form in spreads]
        lines.append((row.policy, *cells))
    return aligned(lines, figures=True)


def _parser(prog: str = "kvswarm policies", out: Path = DEFAULT_OUT) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=prog,
        description="Measure KV cache policies side by side on one model and the same texts:"
        " meaning, bytes, time. No engine. What is in --out already is not measured again.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--list", action="store_true", help="name the policies there are, with their parameters")
    add("--check", action="store_true", help="try policies on a tiny model, in seconds")
    add(
        "--policy",
        action="append",
        metavar="NAME",
        help="as sink-window:4+128 or my_policy.py:MyPolicy; again for more (default: the usual)",
    )
    add("--model", default=TRAINED, help=f"a model's folder (default: {TRAINED})")
    add("--corpus", type=Path, help="folder or JSONL of documents (default: the demo corpus)")
    _add_plan(parser)
    add("--quick", action="store_true", help="fewer policies, tokens, repeats and facts")
    add("--out", type=Path, default=out, metavar="DIR", help=f"default: {out}")
    add("-o", "--page", type=Path, metavar="FOLDER", help="where the page goes (default: --out)")
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    """The fields of `PolicyPlan`; None where its default, or that of --quick, holds."""
    for flag, name, said in (
        ("--prompt-tokens", "prompt_tokens", "of each text, computed at once (default: 1024)"),
        ("--generate", "generate_tokens", "tokens read one at a time after it (default: 256)"),
        ("--batch", "batch", "texts at a time (default: 1)"),
        ("--repeats", "repeats", "texts, or batches of them, for each policy (default: 3)"),
        ("--needles", "needles", "made-up facts to find again, in all (default: 42)"),
        ("--prefill-chunk", "prefill_chunk", "tokens of a pass of the prompt (default: all)"),
        ("--seed", "seed", "of facts and of the order of policies (default: 0)"),
    ):
        parser.add_argument(flag, dest=name, type=int, metavar="N", help=said)
