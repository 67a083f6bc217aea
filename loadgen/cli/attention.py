"""`kvswarm policies attention` and `train-gqa`: what lies below what a cache holds."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.made_by import measured_now, told
from loadgen.launch.arguments import CommandParser
from loadgen.launch.target_run import model_named
from loadgen.launch.terminal import say, tell
from loadgen.runs.directory import require_writable
from loadgen.targets.trained_model import TRAINED
from loadgen.workload.corpus import load_documents

if TYPE_CHECKING:
    from dashboards.studies.page import Provenance
    from kv_policies.gqa_training import GqaPlan

NAMED = ("kvswarm", "torch", "transformers")
LENGTHS, QUICK_LENGTHS = (256, 512, 1024, 2048, 4096), (256, 1024)
BLOCKS = (16, 128)
QUICK_STEPS = 40


def attention_command(arguments: Sequence[str]) -> int:
    """Measure attention three ways and write a page. Raises UsageError and PolicyError."""
    parsed = _attention_parser().parse_args(arguments)
    require_writable(parsed.out)
    from dashboards.attention_pages import write_attention_page
    from kv_policies.exact_attention import measure_attention, reserved_tokens
    from kv_policies.policy import ModelShape
    from kv_policies.subject import config_of

    model = Path(model_named(parsed.model) or "")
    config = config_of(model).get_text_config(decoder=True)
    prompts = prompt_tokens(model, parsed.corpus)
    lengths = parsed.tokens or (QUICK_LENGTHS if parsed.quick else LENGTHS)
    rows = []
    for row in measure_attention(ModelShape.of(config), config.num_attention_heads, lengths):
        say(f"{row.tokens:,} tokens, {row.kernel}: {row.ms:.3g} ms")
        rows.append(row)
    most = max(getattr(config, "max_position_embeddings", 0), *prompts)
    paged = {block: reserved_tokens(prompts, most, block) for block in BLOCKS}
    made = _made("attention", arguments)
    parsed.out.mkdir(parents=True, exist_ok=True)
    tell(str(write_attention_page(rows, paged, made, parsed.out)))
    return 0


def train_gqa_command(arguments: Sequence[str]) -> int:
    """Train a small model with fewer and fewer KV heads. Raises UsageError and PolicyError."""
    parsed = _gqa_parser().parse_args(arguments)
    require_writable(parsed.out)
    from dashboards.attention_pages import gqa_findings, write_gqa_page
    from dashboards.studies.corpora import texts_of
    from kv_policies.gqa_training import train_variants

    plan = _plan(parsed)
    plan.check()
    text = "\n\n".join(texts_of(parsed.corpus))
    results = train_variants(text.encode(), plan, parsed.out, progress=say)
    page = write_gqa_page(results, _made("train-gqa", arguments), parsed.out)
    tell("\n".join(gqa_findings(results)))
    tell(str(page))
    return 0


def _plan(parsed: argparse.Namespace) -> "GqaPlan":
    from kv_policies.gqa_training import GqaPlan

    given = {each.name: getattr(parsed, each.name) for each in fields(GqaPlan)}
    known = {name: value for name, value in given.items() if value is not None}
    return GqaPlan(**({"steps": QUICK_STEPS, "seeds": 1} if parsed.quick else {}) | known)


def _made(name: str, arguments: Sequence[str]) -> "Provenance":
    from kv_policies.device import device_name, device_named

    words = ["kvswarm", "policies", name, *told(arguments)]
    return measured_now(words, NAMED, device=device_name(device_named()))


def prompt_tokens(model: Path, corpus: Path | None) -> list[int]:
    """Of the texts of a corpus, by the model's tokenizer."""
    from kv_policies.subject import tokenizer_of

    texts = [each.text for each in load_documents(corpus)]
    return [len(each) for each in tokenizer_of(model)(texts)["input_ids"]]


def _attention_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm policies attention",
        description="Time and memory of one layer's attention, computed naively, in blocks and by"
        " torch's fused kernel, and the bytes that each moves.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", default=TRAINED, help=f"whose head sizes are taken (default: {TRAINED})")
    add("--tokens", type=int, nargs="+", metavar="N", help="lengths of the sequence")
    add("--corpus", type=Path, help="whose prompts fill blocks (default: the demo corpus)")
    add("--quick", action="store_true", help="two lengths")
    add("--out", type=Path, default=Path("runs/attention"), metavar="DIR", help="for the page")
    return parser


def _gqa_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm policies train-gqa",
        description="Train a small model over bytes with all KV heads, with groups and with one;"
        " average the heads of the first, and train on. What is in --out is not trained again.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--steps", type=int, metavar="N", help="of each training (default: 300)")
    add("--batch", type=int, metavar="N", help="texts of a step (default: 8)")
    add("--text-bytes", dest="tokens", type=int, metavar="N", help="of a text (default: 256)")
    add("--seeds", type=int, metavar="N", help="trainings of each variant (default: 3)")
    add("--rate", type=float, metavar="X", help="the highest learning rate (default: 0.001)")
    add("--corpus", type=Path, help="texts (default: the docstrings of Python's library)")
    add("--quick", action="store_true", help=f"one seed, {QUICK_STEPS} steps")
    add("--out", type=Path, default=Path("runs/train-gqa"), metavar="DIR", help="of all files")
    return parser
