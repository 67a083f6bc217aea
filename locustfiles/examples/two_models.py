"""Two models behind one address, asked in the proportion of three to one.

    kvswarm run locustfiles/examples/two_models.py --host http://127.0.0.1:8000 \
        --model small --second-model large -u 16 -t 1m

`--second-model` is an option of this file alone; Locust shows it in its web form too.
"""

from argparse import ArgumentParser
from typing import Any

from locust import events, task

from kvswarm import ContextUser


@events.init_command_line_parser.add_listener
def add_option(parser: ArgumentParser, **_: Any) -> None:
    parser.add_argument("--second-model", required=True, help="the model that one in four asks")


class FirstModel(ContextUser):
    weight = 3

    @task
    async def ask(self) -> None:
        await self.send(await self.next_turn())


class SecondModel(ContextUser):
    @task
    async def ask(self) -> None:
        model = self.environment.parsed_options.second_model
        await self.send(await self.next_turn(), {"model": model})
