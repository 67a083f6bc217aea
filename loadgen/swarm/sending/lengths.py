"""How text lengths are measured in every process of a swarm."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadgen.client.probe import HostFacts, count_tokens
from loadgen.swarm.engine import Engine
from loadgen.workload.corpus import Corpus
from loadgen.workload.lengths import EstimatedTokens, MeasuredTokens, TokenizerTokens, Tokens
from loadgen.workload.passages import texts_to_measure


@dataclass(frozen=True, slots=True)
class LengthSource:
    """A tokenizer (path or name), else counts that a host gave, else an estimate."""

    tokenizer: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_estimate(self) -> bool:
        """Whether nothing is known about the model's tokens."""
        return self.tokenizer is None and not self.counts

    def tokens(self) -> Tokens:
        """The measure itself. Raises UsageError for a tokenizer that cannot be loaded."""
        if self.tokenizer is not None:
            return TokenizerTokens.from_path_or_name(self.tokenizer)
        return MeasuredTokens(self.counts) if self.counts else EstimatedTokens()


def measure_on_host(facts: HostFacts, corpus: Corpus, headers: Mapping[str, str]) -> LengthSource:
    """Have the host count the tokens of the corpus where it can. Raises HostError."""
    if not facts.has_tokenize:
        return LengthSource()
    texts = tuple(texts_to_measure(corpus))
    counts = Engine.of_process().run(count_tokens(facts.url, facts.model, texts, headers))
    return LengthSource(counts=dict(zip(texts, counts, strict=True)))
