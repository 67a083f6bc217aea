"""Measure policies on the same texts: shuffled, repeated, continued where it was stopped.

from kv_policies import run_policies
rows = run_policies("models/trained", texts, ["full", "window:132"], "runs/policies")
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from kv_policies.catalog import policy_named, source_sha256
from kv_policies.device import device_name
from kv_policies.measuring import (
    ForcedText,
    NeedlePrompt,
    PolicyMeasurement,
    PolicyPlan,
    forced,
    measured,
    perplexity,
    tokens_after_prompt,
    tokens_asked,
)
from kv_policies.needle import needles
from kv_policies.policy import KvPolicy, ModelShape, PolicyError
from kv_policies.rows import PolicyRow, read_object, write_csv, write_object
from kv_policies.subject import Subject, config_of, subject_of, weights_sha256

FULL = "full"
RUN_JSON, ROWS_CSV = "run.json", "policies.csv"
GUESSING = 0.1
"""A model whose perplexity is above this share of its vocabulary knows nothing of text."""

Progress = Callable[[int, int, str], None]
"""Told how many of how many measurements are made, and what is measured next."""


def run_policies(
    model: str | Path,
    texts: Sequence[str],
    policies: Sequence[str],
    out: str | Path,
    *,
    plan: PolicyPlan | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> list[PolicyRow]:
    """A row for each policy, in the order of their names given.

    `model` is a folder, `texts` are long and real, read one after the other; `policies` are names
    as `policy_named` takes them. `out` gets a JSON file for each policy and `policies.csv`; what is
    there already is not measured again. Raises PolicyError.
    """
    plan = plan or PolicyPlan()
    chosen = _chosen(policies)
    folder = Path(out)
    with subject_of(Path(model), device) as subject:
        for policy in chosen.values():
            subject.cache(policy)  # refuses what the model cannot have, before anything is measured
            if plan.prefill_chunk and policy.needs_whole_prompt:
                raise PolicyError(
                    f"policy {policy.label} acts once, on the whole prompt: give no --prefill-chunk"
                )
        tokens = _texts(subject, texts, plan)
        run = _Run(subject, plan, tokens, chosen, folder)
        run.begin(Path(model).resolve())
        run.measure(progress or (lambda done, total, name: None))
    rows = run.rows()
    write_csv(rows, folder / ROWS_CSV)
    return rows


def usual_policies(model: str | Path, plan: PolicyPlan, is_quick: bool = False) -> list[str]:
    """Names of policies worth setting side by side: those that evict at a half and at a quarter of
    the tokens, those that encode, those that merge; only what the model can have. Raises
    PolicyError."""
    shape = ModelShape.of(config_of(Path(model)))
    half, quarter = ((plan.prompt_tokens + plan.generate_tokens) // part for part in (2, 4))
    recent = min(32, quarter // 2)
    names = [
        FULL,
        f"sink-window:4+{quarter - 4}",
        f"window:{quarter}",
        f"heavy-hitters:{quarter - recent}+{recent}",
        "int4-mixed",
        "int2-token:0+0",
        "mean-heads:1",
        f"minicache:{shape.layers // 2}+64",
        f"two-tier:{quarter // 2}+{max(1, quarter // 2 // 32 - 1)}",
    ]
    if not is_quick:
        names += [
            f"sink-window:4+{half - 4}",
            f"l2-norm:{half - recent}+{recent}",
            f"l2-norm:{quarter - recent}+{recent}",
            f"heavy-hitters:{half - recent}+{recent}",
            f"layer-budget:4+{quarter - 4}",
            "int8-mixed",
            "int4-token",
            "int2-mixed",
            "int2-mixed:0+0",
            "low-rank",
            f"three-tier:{quarter // 2}+{max(1, quarter // 2 // 32 - 1)}+{max(1, half // 32)}",
        ]
    return [name for name in names if _suits(name, shape)]


def _suits(name: str, shape: ModelShape) -> bool:
    try:
        policy_named(name).check(shape)
    except PolicyError:
        return False
    return True


def note_of(out: str | Path) -> str:
    """A sentence on what the figures of a folder do not say, empty where they say all."""
    return str(read_object(Path(out) / RUN_JSON).get("note") or "")


def device_of(out: str | Path) -> str:
    """What the figures of a folder were computed on: `cpu`, or the name of a GPU."""
    return str(read_object(Path(out) / RUN_JSON).get("device") or "")


class _Run:
    """What there is of each policy, and what is left to measure."""

    def __init__(
        self,
        subject: Subject,
        plan: PolicyPlan,
        texts: Tensor,
        policies: dict[str, KvPolicy],
        folder: Path,
    ) -> None:
        self._subject, self._plan, self._texts = subject, plan, texts
        self._policies, self._folder = policies, folder
        self._made: dict[str, dict[int, PolicyMeasurement]] = {name: {} for name in policies}
        self._needles = [*needles(plan.needles, plan.seed)]
        self._sources = {name: source_sha256(policy) for name, policy in policies.items()}
        self._about: dict[str, Any] = {}

    def begin(self, model: Path) -> None:
        """Read what is there. Raises PolicyError for a folder of another run."""
        self._about = {
            "model": str(model),
            "weights_sha256": weights_sha256(model),
            "device": device_name(self._subject.device),
            "texts_sha256": sha256(self._texts.numpy().tobytes()).hexdigest(),
            "plan": asdict(self._plan),
        }
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PolicyError(f"{self._folder} cannot be written ({error.strerror})") from error
        known = read_object(self._folder / RUN_JSON)
        # Folders made before have none.
        found = {"weights_sha256": self._about["weights_sha256"], **known}
        for key, value in self._about.items():
            if known and found.get(key) != value:
                raise PolicyError(
                    f"{self._folder} holds a run with another {key}: name another --out"
                )
        self._about["note"] = known.get("note")
        for name in self._policies:
            told = read_object(self._file(name))
            if told and told.get("source_sha256") != self._sources[name]:
                raise PolicyError(
                    f"{self._file(name)} is of another version of {name}: delete it or name another"
                    " --out"
                )
            self._made[name] = _measurements(told, self._file(name))
        write_object(self._folder / RUN_JSON, self._about)

    def measure(self, progress: Progress) -> None:
        """All that is missing; each measurement is on disk before the next."""
        total = len(self._policies) * self._plan.repeats
        for repeat in range(self._plan.repeats):
            left = [name for name, made in self._made.items() if repeat not in made]
            if not left:
                continue
            Random(f"{self._plan.seed} {repeat}").shuffle(left)
            progress(self._count(), total, "the reference")
            reference = self._reference(repeat)
            facts = [] if self._about["note"] else self._facts(repeat)
            for name in left:
                progress(self._count(), total, name)
                self._made[name][repeat] = self._measured(
                    name, self._text(repeat), facts, reference
                )
                self._write(name)
        progress(total, total, "")

    def rows(self) -> list[PolicyRow]:
        full = self._made.get(FULL)
        full_bytes = next(iter(full.values())).kv_bytes if full else None
        return [
            PolicyRow.of(name, [made[repeat] for repeat in sorted(made)], full_bytes)
            for name, made in self._made.items()
        ]

    def _reference(self, repeat: int) -> ForcedText:
        found = forced(self._subject, policy_named(FULL), self._text(repeat), self._plan)
        if self._about["note"] is None:
            self._about["note"] = self._judged(perplexity(found.decode_nats))
            write_object(self._folder / RUN_JSON, self._about)
        return found

    def _judged(self, found: float) -> str:
        vocabulary = self._subject.model.config.get_text_config(decoder=True).vocab_size
        if found < GUESSING * vocabulary:
            return ""
        return (
            f"The model guesses, as random weights do: its perplexity is {found:,.0f}, of a"
            f" vocabulary of {vocabulary:,}. Perplexity and recall are left out; KL and agreement"
            " tell numerical fidelity only."
        )

    def _measured(
        self, name: str, text: Tensor, facts: Sequence[NeedlePrompt], reference: ForcedText
    ) -> PolicyMeasurement:
        policy = self._policies[name]
        with told_failure(name, policy):
            return measured(
                self._subject, policy, text, facts, plan=self._plan, reference=reference
            )

    def _text(self, repeat: int) -> Tensor:
        batch = self._plan.batch
        return self._texts[repeat * batch : (repeat + 1) * batch]

    def _facts(self, repeat: int) -> list[NeedlePrompt]:
        asked, what = tokens_asked(self._subject, self._needles), "a question and its answer"
        self._subject.require_positions(self._plan.prompt_tokens, asked, what)
        haystack = self._text(repeat)[0].tolist()
        own = self._needles[repeat :: self._plan.repeats]
        return [NeedlePrompt(self._subject, haystack, each, self._plan) for each in own]

    def _count(self) -> int:
        return sum(len(made) for made in self._made.values())

    def _write(self, name: str) -> None:
        made = self._made[name]
        repeats = {str(each): made[each].as_object() for each in sorted(made)}
        told = {"policy": name, "source_sha256": self._sources[name], "repeats": repeats}
        write_object(self._file(name), told)

    def _file(self, name: str) -> Path:
        return self._folder / f"policy-{re.sub(r'[^A-Za-z0-9+-]+', '_', name)}.json"


def _chosen(names: Sequence[str]) -> dict[str, KvPolicy]:
    """By their labels. Raises PolicyError for none and for one that is named twice."""
    chosen: dict[str, KvPolicy] = {}
    for name in names:
        policy = policy_named(name)
        if policy.label in chosen:
            raise PolicyError(f"policy {policy.label} is named twice: name it once")
        chosen[policy.label] = policy
    if not chosen:
        raise PolicyError("no policy is named: name one at least, such as full")
    return chosen


def _texts(subject: Subject, texts: Sequence[str], plan: PolicyPlan) -> Tensor:
    """[repeats · batch, tokens of a text], no token in two of them. Raises PolicyError."""
    subject.require_positions(plan.prompt_tokens, tokens_after_prompt(plan), "generated or timed")
    rows, wanted = plan.repeats * plan.batch, plan.repeats * plan.batch * plan.text_tokens
    tokens: list[int] = []
    for text in texts:
        tokens += subject.tokens(f"{text}\n\n")
        if len(tokens) >= wanted:
            return torch.tensor(tokens[:wanted]).reshape(rows, plan.text_tokens)
    raise PolicyError(
        f"the texts have {len(tokens)} tokens, {rows} of {plan.text_tokens} need {wanted}: give"
        " more text, or fewer tokens or repeats"
    )


def _measurements(told: dict[str, Any], file: Path) -> dict[int, PolicyMeasurement]:
    try:
        repeats = told.get("repeats", {})
        return {int(each): PolicyMeasurement.parsed(made) for each, made in repeats.items()}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise PolicyError(f"{file} is not whole: delete it, and it is measured again") from error


@contextmanager
def told_failure(name: str, policy: KvPolicy) -> Iterator[None]:
    """What fails in a user's own policy is a PolicyError; what fails in ours shows its place."""
    try:
        yield
    except PolicyError:
        raise
    except Exception as error:
        if type(policy).__module__.startswith("kv_policies."):
            raise
        lines = str(error).splitlines() or [""]
        raise PolicyError(f"policy {name} fails: {type(error).__name__}: {lines[0]}") from error
