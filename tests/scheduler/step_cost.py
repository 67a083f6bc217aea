"""How long one engine step takes, as measured once on the demo model."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepWork:
    """What one step computes.

    `attended` is the sum over prefill chunks of tokens x mean attended length, the quadratic part.
    """

    prefill_tokens: int = 0
    attended: float = 0.0
    decodes: int = 0


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: a fixed part, one per token, one per attended pair, one per decode.

    The defaults are a least-squares fit of the relative error to 300 steps of vLLM 0.32 with the
    tiny demo model on one CPU core (median error 4 %): a cold prompt of 1630 tokens takes 0.25 s,
    the same with its first 1536 tokens cached 0.03 s, a decode of eight requests 0.012 s.
    """

    step_s: float = 0.009
    prefill_token_s: float = 1.05e-4
    attended_s: float = 5.0e-8
    decode_s: float = 3.5e-4
    empty_step_s: float = 1.0e-3

    def seconds(self, work: StepWork) -> float:
        """Duration of one step in seconds; a step without tokens costs `empty_step_s`."""
        if not work.prefill_tokens and not work.decodes:
            return self.empty_step_s
        return (
            self.step_s
            + self.prefill_token_s * work.prefill_tokens
            + self.attended_s * work.attended
            + self.decode_s * work.decodes
        )
