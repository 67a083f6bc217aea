"""What fewer KV heads cost when they are trained, and when they are averaged afterwards.

The same small model is trained from the same seeds on the same batches with all KV heads, with
groups, and with one; then that with all is converted by averaging and trained on for a tenth of the
steps. All losses are of text that none was trained on.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import cos, pi
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kv_policies.device import clock_s, device_name, device_named
from kv_policies.policy import PolicyError, require_size
from kv_policies.rows import read_object, write_object
from kv_policies.toy_transformer import ToyCache, ToyShape, ToyTransformer, averaged_heads

RUNS, MODELS = "runs", "models"
HELD_OUT = 0.1
"""Of the text, its end: nothing is fitted to it."""
WARM_UP = 0.05
CHECKS = 12
"""Times at which the held-out loss is looked at."""
HELD_OUT_BATCHES = 8
DECODED = 64


@dataclass(frozen=True, slots=True)
class GqaPlan:
    """`steps` of `batch` texts of `tokens` bytes each, for every seed."""

    steps: int = 300
    batch: int = 8
    tokens: int = 256
    seeds: int = 3
    rate: float = 1e-3

    def check(self) -> None:
        """Raise PolicyError for what cannot be trained."""
        for name in ("steps", "batch", "tokens", "seeds"):
            least = 10 if name == "steps" else 2 if name == "tokens" else 1
            require_size(name, getattr(self, name), least)
        if not 0 < self.rate < 1:
            raise PolicyError(f"a learning rate of {self.rate:g}: give one above 0 and below 1")


@dataclass(frozen=True, slots=True)
class GqaVariant:
    """A model to train: from its own start, or by averaging another's heads (`averaged`), with
    `extra` of that one's steps after it."""

    name: str
    kv_heads: int
    averaged: bool = False
    extra: float = 0.0


def variants(heads: int = 8) -> tuple[GqaVariant, ...]:
    """Multi-head, two kinds of groups, multi-query; those of fewer heads by averaging too, as that
    comes and after a tenth of the steps."""
    trained = [
        GqaVariant("multi-head", heads),
        GqaVariant("4 groups", 4),
        GqaVariant("2 groups", 2),
        GqaVariant("multi-query", 1),
    ]
    made = [
        GqaVariant(f"{each.name} {said}", each.kv_heads, True, extra)
        for each in trained[1:]
        for said, extra in (("averaged", 0.0), ("averaged, then trained", 0.1))
    ]
    return (*trained, *made)


@dataclass(frozen=True, slots=True)
class GqaResult:
    """`curve` has steps and held-out nats a byte; `loss_nats` is the last of them."""

    variant: str
    seed: int
    loss_nats: float
    curve: tuple[tuple[int, float], ...]
    kv_bytes_per_token: int
    decode_ms_per_token: float
    train_s: float


Said = Callable[[str], None]


def train_variants(
    text: bytes,
    plan: GqaPlan,
    folder: Path,
    *,
    shape: ToyShape | None = None,
    device: str | None = None,
    progress: Said | None = None,
) -> list[GqaResult]:
    """Train all variants with all seeds; what `folder` has already is not trained again. Raises
    PolicyError."""
    plan.check()
    shape = shape or ToyShape()
    shape.check()
    chosen = device_named(device)
    texts = _Texts(text, plan)
    _claim(folder, plan, shape, text, device_name(chosen))
    say = progress or (lambda said: None)
    found = []
    for seed in range(plan.seeds):
        base: ToyTransformer | None = None
        for variant in variants(shape.heads):
            file = folder / RUNS / f"{variant.name.replace(' ', '-').replace(',', '')}-{seed}.json"
            if known := read_object(file):
                found.append(_result(known))
                continue
            say(f"{variant.name}, seed {seed}")
            if variant.averaged:
                base = base or _kept(folder, shape, seed, chosen)
                model = averaged_heads(base, variant.kv_heads)
            else:
                model = _begun(shape, variant.kv_heads, seed).to(chosen)
            result = _trained(model, variant, texts, plan, seed)
            if variant.name == "multi-head":
                _keep(model, folder, seed)
            write_object(file, asdict(result))
            found.append(result)
    return found


def _result(known: dict[str, Any]) -> GqaResult:
    return GqaResult(**{**known, "curve": tuple((int(s), float(n)) for s, n in known["curve"])})


def _claim(folder: Path, plan: GqaPlan, shape: ToyShape, text: bytes, device: str) -> None:
    about = {  # more seeds continue what is there
        "plan": {name: each for name, each in asdict(plan).items() if name != "seeds"},
        "shape": asdict(shape),
        "device": device,
        "text_sha256": hashlib.sha256(text).hexdigest(),
    }
    try:
        for part in (RUNS, MODELS):
            (folder / part).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PolicyError(f"{folder} cannot be written ({error.strerror})") from error
    known = read_object(folder / "run.json")
    if known and known != about:
        raise PolicyError(
            f"{folder} holds a training with another plan or text: name another --out"
        )
    write_object(folder / "run.json", about)


def _begun(shape: ToyShape, kv_heads: int, seed: int) -> ToyTransformer:
    torch.manual_seed(seed)
    return ToyTransformer(ToyShape(kv_heads, shape.heads, shape.layers, shape.width))


def _keep(model: ToyTransformer, folder: Path, seed: int) -> None:
    torch.save(model.state_dict(), folder / MODELS / f"multi-head-{seed}.pt")


def _kept(folder: Path, shape: ToyShape, seed: int, device: torch.device) -> ToyTransformer:
    model = _begun(shape, shape.heads, seed)
    file = folder / MODELS / f"multi-head-{seed}.pt"
    try:
        model.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except (OSError, RuntimeError) as error:
        raise PolicyError(
            f"{file} cannot be read ({error}): delete {folder} and train again"
        ) from error
    return model.to(device)


class _Texts:
    """Bytes in batches, the same for every variant of a seed; the end is held out."""

    def __init__(self, text: bytes, plan: GqaPlan) -> None:
        edge = int(len(text) * (1 - HELD_OUT))
        self._plan = plan
        self._train, self._held_out = (
            torch.frombuffer(bytearray(part), dtype=torch.uint8)
            for part in (text[:edge], text[edge:])
        )
        if min(len(self._train), len(self._held_out)) < 2 * plan.tokens:
            raise PolicyError(
                f"{len(text):,} bytes of text are too few for texts of {plan.tokens} bytes: give"
                " more by --corpus"
            )

    def batches(self, seed: int, steps: int) -> Iterator[Tensor]:
        """[batch, tokens + 1] from anywhere in the text."""
        random = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            yield self._cut(self._train, random)

    def held_out(self) -> list[Tensor]:
        """Always the same."""
        random = torch.Generator().manual_seed(0)
        return [self._cut(self._held_out, random) for _ in range(HELD_OUT_BATCHES)]

    def _cut(self, text: Tensor, random: torch.Generator) -> Tensor:
        length = self._plan.tokens + 1
        starts = torch.randint(len(text) - length, (self._plan.batch,), generator=random)
        return torch.stack([text[start : start + length] for start in starts.tolist()]).long()


def _trained(
    model: ToyTransformer, variant: GqaVariant, texts: _Texts, plan: GqaPlan, seed: int
) -> GqaResult:
    """AdamW with a warm-up and half a cosine down to a tenth."""
    device = next(model.parameters()).device
    steps = plan.steps if not variant.averaged else round(variant.extra * plan.steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate, weight_decay=0.1)
    checks = {round(steps * (at + 1) / CHECKS) for at in range(CHECKS)} - {0}
    held_out = [each.to(device) for each in texts.held_out()]
    curve = [(0, _loss(model, held_out))]
    since_s = clock_s(device)
    for step, batch in enumerate(texts.batches(seed, steps), 1):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate * _share(step, steps)
        optimizer.zero_grad(set_to_none=True)
        model.loss(batch.to(device)).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step in checks:
            curve.append((step, _loss(model, held_out)))
    train_s = clock_s(device) - since_s
    return GqaResult(
        variant=variant.name,
        seed=seed,
        loss_nats=curve[-1][1],
        curve=tuple(curve),
        kv_bytes_per_token=model.shape.kv_bytes_per_token(),
        decode_ms_per_token=_decode_ms(model, held_out[0]),
        train_s=train_s,
    )


def _share(step: int, steps: int) -> float:
    warm = max(1, round(WARM_UP * steps))
    if step <= warm:
        return step / warm
    return 0.1 + 0.9 * (1 + cos(pi * (step - warm) / max(1, steps - warm))) / 2


@torch.inference_mode()
def _loss(model: ToyTransformer, batches: Sequence[Tensor]) -> float:
    return float(torch.stack([model.loss(batch) for batch in batches]).mean())


@torch.inference_mode()
def _decode_ms(model: ToyTransformer, batch: Tensor) -> float:
    """Of a step with the cache of a batch of texts."""
    cache = ToyCache()
    ahead = model(batch[:, :-1], cache)[:, -1:].argmax(-1)
    since_s = clock_s(batch.device)
    for _ in range(DECODED):
        ahead = model(ahead, cache).argmax(-1)
    return 1000 * (clock_s(batch.device) - since_s) / DECODED
