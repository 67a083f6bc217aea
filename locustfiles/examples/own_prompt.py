"""The same questions with words of your own around them.

    kvswarm run locustfiles/examples/own_prompt.py --host http://127.0.0.1:8000 -u 8 -t 30s

What is put behind the context leaves the prefix alone, and the cache can still serve it. The same
words put in front of it are shared by all contexts.
"""

from dataclasses import replace

from locust import task

from kvswarm import ContextUser, Turn


class Terse(ContextUser):
    @task
    async def ask(self) -> None:
        turn = await self.next_turn()
        prompt = f"{turn.request.prompt}\nAnswer in one word."
        await self.send(Turn(replace(turn.request, prompt=prompt), turn.due_at))
