"""Locust's own CSV files inside a run directory, with sub-millisecond percentiles kept."""

from pathlib import Path
from typing import Any

import gevent
from locust.stats import PERCENTILES_TO_REPORT, StatsCSV, StatsCSVFileWriter

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

    def __init__(self, environment: Any, directory: Path) -> None:
        options = environment.parsed_options
        full_history = bool(options and options.stats_history_enabled)
        self._writer = PreciseStatsCSVFileWriter(
            environment, PERCENTILES_TO_REPORT, str(directory / "locust"), full_history
        )
        self._greenlet = gevent.spawn(self._writer.stats_writer)

    def close(self) -> None:
        """Write the final state of every table and close the files."""
        self._greenlet.kill()
        writer = self._writer
        tables = (
            (writer.requests_csv_filehandle, writer.requests_csv, writer.requests_csv_writer),
            (writer.failures_csv_filehandle, writer.failures_csv, writer.failures_csv_writer),
            (writer.exceptions_csv_filehandle, writer.exceptions_csv, writer.exceptions_csv_writer),
        )
        for file, write, csv_writer in tables:
            file.seek(0)
            write(csv_writer)
            file.truncate()
        writer.close_files()
