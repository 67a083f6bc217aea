"""Two minutes of unlike requests: what `kvswarm calibrate` needs to make a server's twin.

    kvswarm run calibrate --target vllm --out runs/calibration
    kvswarm calibrate runs/calibration -o twin.json

Short and long prompts and replies, of contexts that come back and of new ones, by one user, then by
four, then by sixteen. Give --context-tokens and --output-tokens as your traffic has them.
"""

from typing import ClassVar

from locust import LoadTestShape, task

from kvswarm import ContextUser, set_defaults

set_defaults(contexts=200, zipf=1.0, repeat=0.1, context_tokens="200-2000", output_tokens="1-64")


class CalibratingUser(ContextUser):
    """Sends whatever request is next and waits for the reply."""

    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn())


class OneFourSixteen(LoadTestShape):
    """More users at once, so that steps with few and with many sequences are told apart."""

    STAGES: ClassVar = [(40, 1), (80, 4), (120, 16)]
    """Until which second there are how many users."""

    def tick(self) -> tuple[int, float] | None:
        now_s = self.get_run_time()
        return next(((users, 100.0) for until_s, users in self.STAGES if now_s < until_s), None)
