"""Headers with every request: a tenant's name, a key from the environment.

    export API_KEY=...
    kvswarm run locustfiles/examples/own_headers.py --host https://llm.example.com -u 4 -t 30s

`set_defaults` gives any option another default; the command line still wins, as `--header` here.
Run directories do not keep what the headers say.
"""

import os

from locust import task

from kvswarm import ContextUser, set_defaults

KEY = os.environ.get("API_KEY", "")

set_defaults(header=["X-Tenant: examples", f"Authorization: Bearer {KEY}"])


class Tenant(ContextUser):
    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn())
