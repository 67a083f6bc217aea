"""Locust's own CSV files inside a run directory, with sub-millisecond percentiles kept."""

from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import gevent
from locust.stats import PERCENTILES_TO_REPORT, StatsCSV, StatsCSVFileWriter

from loadgen.runs.csv_log import cut_torn_row
from loadgen.runs.directory import RunDirectory
from loadgen.swarm.showing.stats_rows import KIND


class PreciseStatsCSV(StatsCSV):
    """Locust's tables, without its cut to whole numbers in the rows that are ours."""

    def _percentile_fields(self, stats_entry: Any, use_current: bool = False) -> Any:
        if stats_entry.method != KIND or use_current or not stats_entry.num_requests:
            return super()._percentile_fields(stats_entry, use_current)
        return [stats_entry.get_response_time_percentile(x) for x in self.percentiles_to_report]


class PreciseStatsCSVFileWriter(PreciseStatsCSV, StatsCSVFileWriter):
    """The same for files."""


class LocustCsv:
    """Writes `locust_stats.csv` and its siblings each second until closed."""

    def __init__(self, environment: Any, directory: RunDirectory) -> None:
        options = environment.parsed_options
        full_history = bool(options and options.stats_history_enabled)
        self._directory = directory
        self._files: tuple[TextIO, ...] = ()
        self._greenlet: gevent.Greenlet | None = None
        with directory.writing():
            self._writer = writer = PreciseStatsCSVFileWriter(
                environment, PERCENTILES_TO_REPORT, str(directory.path / "locust"), full_history
            )
            self._files = (
                writer.stats_history_csv_filehandle,
                writer.requests_csv_filehandle,
                writer.failures_csv_filehandle,
                writer.exceptions_csv_filehandle,
            )
            self._greenlet = gevent.spawn(self._write)

    def close(self) -> None:
        """Write the final state of every table and close the files."""
        if self._greenlet is not None:
            self._greenlet.kill()
            with self._directory.writing():
                self._write_tables()
        for file in self._files:
            with self._directory.writing():
                file.close()
        if self._directory.fault is not None:
            for file in self._files:
                with suppress(OSError):
                    cut_torn_row(Path(file.name))

    def _write(self) -> None:
        with self._directory.writing():
            self._writer.stats_writer()

    def _write_tables(self) -> None:
        writer = self._writer
        writes = (writer.requests_csv, writer.failures_csv, writer.exceptions_csv)
        writers = (
            writer.requests_csv_writer,
            writer.failures_csv_writer,
            writer.exceptions_csv_writer,
        )
        for file, write, csv_writer in zip(self._files[1:], writes, writers, strict=True):
            file.seek(0)
            write(csv_writer)
            file.truncate()
