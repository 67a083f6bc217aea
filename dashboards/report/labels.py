"""What a run looked for, and whether its labels were right."""

import numpy as np

from dashboards.figures.retrieval import Found
from dashboards.report.run_files import RunFiles

_JUDGED = {"true": 1.0, "false": 0.0}


def found_of(run: RunFiles) -> Found:
    """From the columns of `requests.csv`, in the order of sending."""
    document, label = run.table.text("context_id"), run.table.text("label_correct")
    return Found(
        at_s=run.requests.at_s,
        retrieval_ms=run.table.number("retrieval_ms"),
        ttft_ms=run.requests.ttft_ms,
        right=np.asarray([_JUDGED.get(name, np.nan) for name in label.names])[label.codes],
        document=document.codes,
        documents=document.names,
    )
