"""Single questions to a host, apart from the load: the control side of HTTP."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from loadgen.client.fault_text import host_message, one_line, redacted, secrets_of
from loadgen.client.transport import describe_connect_error
from loadgen.client.url import base_url
from loadgen.errors import HostError


@dataclass(frozen=True, slots=True)
class Answer:
    """What a host said to one question."""

    status: int
    content_type: str
    location: str
    body: bytes

    def json(self) -> dict[str, Any]:
        """The JSON object of a 200, else an empty one."""
        if self.status != 200:
            return {}
        try:
            decoded = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        return decoded if isinstance(decoded, dict) else {}


class Host:
    """One host's questions and answers; every failure to reach it is a HostError."""

    def __init__(self, url: str, session: aiohttp.ClientSession, timeout_s: float) -> None:
        self.url = url
        self.has_key = "Authorization" in session.headers
        self._secrets = secrets_of(session.headers)
        self._session = session
        self._timeout_s = timeout_s

    @classmethod
    @asynccontextmanager
    async def opened(
        cls, url: str, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator["Host"]:
        """A host at `url` whose answers may take `timeout_s` each. Raises HostError for no URL."""
        address = base_url(url)
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver()),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:
            yield cls(address, session, timeout_s)

    async def ask(self, method: str, path: str, body: object = None) -> Answer:
        """The answer to one question, with a JSON body or none. Raises HostError for no answer."""
        try:
            async with self._session.request(
                method,
                self.url + path,
                data=None if body is None else orjson.dumps(body),
                headers=None if body is None else {"Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                kind = response.headers.get("Content-Type", "")
                location = response.headers.get("Location", "")
                return Answer(response.status, kind, location, await response.read())
        except TimeoutError:
            raise HostError(
                f"host {self.url} did not answer {path} within {self._timeout_s:g} s: "
                "is it still starting, or overloaded?"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise HostError(_unreachable(error, self.url)) from error

    async def status(self, method: str, path: str) -> int | None:
        """The status of an optional route, None when asking failed."""
        try:
            return (await self.ask(method, path)).status
        except HostError:
            return None

    def quote(self, answer: Answer) -> str:
        """The host's own words in an error answer, short and without our secrets."""
        return one_line(redacted(host_message(answer.body), self._secrets), 120)


def _unreachable(error: Exception, url: str) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"host {url} does not speak HTTP: check the port, and http against https"
    reason = describe_connect_error(error, url.partition("://")[2].partition("/")[0])
    return f"host {url} cannot be used, {reason}: is it running, and are name and port right?"
