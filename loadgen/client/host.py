"""One host, asked what it is: its answers, and in one line why there is none."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from loadgen.client.failures import ConnectFailed, Malformed, Truncated
from loadgen.client.fault_text import host_message, one_line, redacted, secrets_of
from loadgen.client.question import Answer, Questioner, TooLong
from loadgen.client.url import base_url
from loadgen.errors import HostError


class Host:
    """One host's questions and answers; every failure to reach it is a HostError."""

    def __init__(self, url: str, headers: Mapping[str, str], questioner: Questioner) -> None:
        self.url = url
        self.has_key = "authorization" in {name.lower() for name in headers}
        self._secrets = secrets_of(headers)
        self._questioner = questioner

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, url: str, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator["Host"]:
        """A host at `url` whose answers may take `timeout_s` each. Raises HostError for no URL."""
        address = base_url(url)
        async with Questioner(address, headers, timeout_s) as questioner:
            yield cls(address, headers, questioner)

    async def ask(self, method: str, path: str, body: object = None) -> Answer:
        """The answer to one question, with a JSON body or none. Raises HostError for no answer."""
        try:
            return await self._questioner.ask(method, path, body)
        except TimeoutError:
            raise HostError(
                f"host {self.url} did not answer {path} within {self._questioner.timeout_s:g} s: "
                "is it still starting, or overloaded?"
            ) from None
        except Malformed as error:
            raise HostError(
                f"host {self.url} does not speak HTTP: check the port, and http against https"
            ) from error
        except TooLong as error:
            raise HostError(
                f"host {self.url} answers {path} without end: "
                "is it the address of an inference server?"
            ) from error
        except (ConnectFailed, Truncated) as error:
            raise HostError(
                f"host {self.url} cannot be used, {error}: is it running, "
                "and are name and port right?"
            ) from error

    async def status(self, method: str, path: str) -> int | None:
        """The status of an optional route, None when asking failed."""
        try:
            return (await self.ask(method, path)).status
        except HostError:
            return None

    def quote(self, answer: Answer) -> str:
        """The host's own words in an error answer, short and without our secrets."""
        return one_line(redacted(host_message(answer.body), self._secrets), 120)
