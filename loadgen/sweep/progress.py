"""What a sweep says of a run that is over."""

from loadgen.sweep.table import Cell

SPOKEN = (
    ("ok", "{:.0f} ok"),
    ("failed", "{:.0f} failed"),
    ("ttft_p50_ms", "TTFT p50 {:,.0f} ms"),
    ("makespan_p50_s", "makespan p50 {:,.2f} s"),
    ("requests_per_s", "{:.2f} requests/s"),
    ("hit_rate", "hit rate {:.0%}"),
    ("external_hit_rate", "external {:.0%}"),
)
"""Of the figures those that are there and not 0, but `ok` and `hit_rate` always."""


def made_line(cell: Cell) -> str:
    """Which cell it was and its key figures, or why it has none."""
    figures = [
        form.format(value)
        for name, form in SPOKEN
        if (value := cell.figures[name]) or (value == 0 and name in ("ok", "hit_rate"))
    ]
    if cell.fault:
        figures.append(f"decides nothing, exit code {cell.exit_code}: {cell.fault}")
    elif cell.exit_code:
        figures.append(f"exit code {cell.exit_code}")
    name = ", ".join(f"{key} {text}" for key, text in cell.axes.items() if text) or cell.cell_id
    return f"{name}, repeat {cell.repeat}: {', '.join(figures)}"
