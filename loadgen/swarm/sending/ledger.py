"""Where records go on the hub's side: into the run, or from a worker to its master.

Both ledgers take the same calls. `RunLedger` keeps the tally of the whole swarm and writes the
run directory; `WorkerLedger` sends rows as CSV text and the tally's growth twice a second.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import astuple
from operator import attrgetter
from typing import Any, Protocol

from loadgen.record import COLUMNS, BatchRecord, RequestRecord
from loadgen.runs.csv_log import to_csv
from loadgen.runs.directory import RunDirectory
from loadgen.stats.counts import Counts
from loadgen.stats.self_watch import ClientHealth, ClientSample, SaturationRule
from loadgen.stats.silence import HostContact, HostSilence
from loadgen.stats.tally import Tally

Row = tuple[RequestRecord, list[float]]
Listener = Callable[["list[Row] | str"], None]
"""Hears of every request on the hub: as rows, or as the CSV text of a worker's rows."""


class Ledger(Protocol):
    """Takes what a process measured."""

    def add(self, rows: list[Row]) -> None:
        """Finished requests with their inter-token gaps in ms."""

    def add_batches(self, batches: list[BatchRecord]) -> None:
        """Finished batches; their members are added by `add`."""

    def add_sample(self, sample: ClientSample) -> None:
        """The process's own health of one second."""

    def add_contact(self, contact: HostContact) -> None:
        """What the process knows of the host, each second."""

    def flush(self) -> None:
        """Pass on what is held; called at least each half second and at the end."""


_values: Callable[[RequestRecord], tuple[Any, ...]] = attrgetter(*COLUMNS)
"""A record's values in the order of the columns; read in one call, as every request has 31."""


class RunLedger:
    """The whole swarm's records: in a single process, or on the master."""

    def __init__(
        self,
        directory: RunDirectory | None,
        listener: Listener | None = None,
        warmup_s: float | None = 0.0,
        rule: SaturationRule | None = None,
        max_silence_s: float = 0.0,
    ) -> None:
        self.counts = Counts(warmup_s)
        self.clients = ClientHealth(rule)
        self.silence = HostSilence(max_silence_s)
        self._directory = directory
        self._listener = listener

    @property
    def tally(self) -> Tally:
        """All that was recorded, the warm-up too."""
        return self.counts.whole

    def add(self, rows: list[Row]) -> None:
        if self._listener is not None:
            self._listener(rows)
        if self._directory is not None:
            self._directory.requests.append(_values(record) for record, _ in rows)
        self.counts.add_many(rows)

    def add_batches(self, batches: list[BatchRecord]) -> None:
        if self._directory is not None and self._directory.batches is not None:
            self._directory.batches.append(map(astuple, batches))
        for batch in batches:
            self.counts.add_batch(batch)

    def add_sample(self, sample: ClientSample) -> None:
        self.clients.add(sample)
        if self._directory is not None:
            self._directory.client_metrics.append([astuple(sample)])

    def add_contact(self, contact: HostContact) -> None:
        self.silence.hear(contact)

    def merge(self, message: Mapping[str, Any]) -> None:
        """Take in what a worker sent."""
        self.counts.merge(Counts.from_wire(message["counts"]))
        if self._listener is not None:
            self._listener(message["rows"])
        if self._directory is not None:
            self._directory.requests.append_text(message["rows"])
            if self._directory.batches is not None:
                self._directory.batches.append_text(message["batches"])
        for wire in message["samples"]:
            self.add_sample(ClientSample(*wire))
        for wire in message["contacts"]:
            self.add_contact(HostContact(*wire))

    def flush(self) -> None:
        if self._directory is not None:
            self._directory.flush()


class WorkerLedger:
    """A worker's records on their way to the master."""

    def __init__(
        self, send: Callable[[dict[str, Any]], None], warmup_s: float | None = 0.0
    ) -> None:
        self._send = send
        self._counts = Counts(warmup_s)
        self._rows: list[str] = []
        self._batches: list[str] = []
        self._samples: list[list[Any]] = []
        self._contacts: list[list[Any]] = []
        self._unsent: deque[dict[str, Any]] = deque()

    def add(self, rows: list[Row]) -> None:
        self._rows.append(to_csv(_values(record) for record, _ in rows))
        self._counts.add_many(rows)

    def add_batches(self, batches: list[BatchRecord]) -> None:
        self._batches.append(to_csv(map(astuple, batches)))
        for batch in batches:
            self._counts.add_batch(batch)

    def add_sample(self, sample: ClientSample) -> None:
        self._samples.append(list(astuple(sample)))

    def add_contact(self, contact: HostContact) -> None:
        self._contacts.append(list(astuple(contact)))

    def flush(self) -> None:
        """What could not be sent is kept for the next call."""
        if self._rows or self._batches or self._samples:
            self._unsent.append(self._message())
        while self._unsent:
            message = self._unsent.popleft()  # others may flush while this one is sent
            try:
                self._send(message)
            except BaseException:  # whoever sends may be killed at it
                self._unsent.appendleft(message)
                raise

    def _message(self) -> dict[str, Any]:
        message = {
            "rows": "".join(self._rows),
            "batches": "".join(self._batches),
            "counts": self._counts.take().to_wire(),
            "samples": self._samples,
            "contacts": self._contacts,
        }
        self._rows, self._batches, self._samples, self._contacts = [], [], [], []
        return message
