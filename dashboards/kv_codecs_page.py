"""The page about codecs of KV: bytes against error, speed, from which bandwidth on each pays."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from matplotlib.figure import Figure

from dashboards.figures.style import finished, marked_line, new_axes, new_figure, save_svg
from dashboards.studies.answer import MarkdownTable, in_short, write_rows, written
from dashboards.studies.page import Provenance, page_head
from dashboards.studies.wording import percent
from kv_policies.codec_trial import CHOSEN, COMPARED, CodecRow, CodecTrial

PAGE, CSV, SVG = "kv-codecs.md", "kv-codecs.csv", "kv-codecs.svg"
PROFILE = "cachegen.json"
KEPT_NATS = 0.01
"""KL a token up to which the model says the same, as far as one would notice."""
FAMILIES = ("lossless", "int8", "int4", "cachegen")


def write_codecs_page(trial: CodecTrial, made: Provenance, folder: Path) -> Path:
    """Page, picture, CSV and the profile of CacheGen, for use, into a folder that is there."""
    trial.profile.write(folder / PROFILE)
    save_svg(_picture(trial), folder / SVG)
    rows = [asdict(row) for row in trial.rows]
    write_rows(folder / CSV, [*rows[0]], rows)
    return written(folder / PAGE, _blocks(trial, made))


def _blocks(trial: CodecTrial, made: Provenance) -> Iterator[str]:
    head = page_head(
        "Codecs of KV: bytes, error, speed",
        "What a chunk of KV takes on its way to a slower tier, and what the model says after"
        " reading it back. Profiles were fitted to other texts than those reported.",
        made,
    )
    yield f"{head} All figures are in [{CSV}]({CSV})."
    yield in_short(codec_findings(trial))
    yield f"![KL of what the model says against the bytes of a token, by codec]({SVG})"
    yield _table(trial).markdown
    yield (
        "Errors are root mean squares over the spread of a channel; KL and agreement are of tokens"
        " read after the prompt, against exact KV. *Pays from* is the bandwidth from which on"
        f" loading is faster than computing {trial.prefill_tokens_per_s:,.0f} prompt tokens a"
        " second, as this machine does, with decoding after the transfer; nothing stands where"
        " decoding alone takes longer."
    )


def codec_findings(trial: CodecTrial) -> Iterator[str]:
    """By rules, from the rows."""
    kept = [row for row in trial.rows if row.kl_nats <= KEPT_NATS]
    best = min(kept, key=lambda row: row.share)
    yield (
        f"`{best.codec}` takes {percent(best.share)} of the bytes and is the smallest after which"
        f" the model says the same: its KL is {best.kl_nats:.2g} nats a token, at most {KEPT_NATS}."
    )
    rows = {(row.codec, row.deltas): row for row in trial.rows}
    yield f"Without loss, {percent(rows['lossless', ''].share)} of the bytes are left."
    yield from _against_int4(trial, rows["int4", ""])
    yield from _pays_first(trial, kept)
    yield (
        f"Differences to an anchor token spread less than the values themselves in"
        f" {trial.delta_layers[0]} of {trial.layers} layers for keys and in {trial.delta_layers[1]}"
        " for values."
    )
    for level in COMPARED:
        chosen = rows[f"cachegen {level}", CHOSEN]
        always = rows[f"cachegen {level}", "always"]
        yield (
            f"At level {level} choosing by layer gives {percent(chosen.share)} of the bytes at a KL"
            f" of {chosen.kl_nats:.2g}, differences everywhere {percent(always.share)} at"
            f" {always.kl_nats:.2g}."
        )


def _against_int4(trial: CodecTrial, int4: CodecRow) -> Iterator[str]:
    """The finest level that is no larger."""
    able = [row for row in trial.rows if row.deltas == CHOSEN and row.share <= int4.share]
    if not able:
        yield f"No level of CacheGen is as small as int4 ({percent(int4.share)})."
        return
    best = min(able, key=lambda row: row.kl_nats)
    word = "less" if best.kl_nats < int4.kl_nats else "more"
    yield (
        f"At no more bytes than int4 ({percent(int4.share)}), `{best.codec}`"
        f" ({percent(best.share)}) changes what the model says {word}: {best.kl_nats:.2g} against"
        f" {int4.kl_nats:.2g} nats."
    )


def _pays_first(trial: CodecTrial, kept: list[CodecRow]) -> Iterator[str]:
    """Of those that change nothing one would notice, by time."""
    paying = [(found, row) for row in kept if (found := trial.pays_from_mb_per_s(row)) is not None]
    if paying:
        least, row = min(paying, key=lambda each: each[0])
        yield (
            f"Loading pays from the slowest link with `{row.codec}`: from {least:,.3g} MB/s on it"
            " is faster than computing on this machine."
        )
    slow = sorted({row.codec for row in kept if trial.pays_from_mb_per_s(row) is None})
    if slow:
        named = ", ".join(f"`{name}`" for name in slow)
        yield f"Decoding takes longer than computing here with {named}: no link is fast enough."


def _table(trial: CodecTrial) -> MarkdownTable:
    return MarkdownTable(
        (
            *("codec", "differences", "bytes a token", "share", "error of keys", "of values"),
            *("KL, nats", "same token", "encode", "decode", "pays from"),
        ),
        tuple(
            (
                f"`{row.codec}`",
                row.deltas,
                f"{row.bytes_per_token:,.0f}",
                percent(row.share),
                f"{row.key_error:.3f}",
                f"{row.value_error:.3f}",
                f"{row.kl_nats:.2g}",
                percent(row.top1_agreement),
                f"{row.encode_mb_per_s:,.0f} MB/s",
                f"{row.decode_mb_per_s:,.0f} MB/s",
                "" if pays_from is None else f"{pays_from:,.3g} MB/s",
            )
            for row, pays_from in ((row, trial.pays_from_mb_per_s(row)) for row in trial.rows)
        ),
    )


def _picture(trial: CodecTrial) -> Figure:
    figure = new_figure(8.0, 4.4)
    axes = new_axes(figure, "KL of the tokens read, nats", "KV bytes, % of bfloat16", "")
    for at, family in enumerate(FAMILIES):
        shown = [row for row in trial.rows if row.deltas in ("", CHOSEN)]
        own = [row for row in shown if row.codec.split()[0] == family]
        marked_line(axes, [(100 * row.share, max(row.kl_nats, 1e-6)) for row in own], at, family)
    axes.set_yscale("log")
    return finished(figure)
