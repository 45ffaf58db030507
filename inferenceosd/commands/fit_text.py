"""What `pull --fit` prints: a report in, text out. Pure."""

from inferenceosd.commands.tables import table
from planners.sizes import format_size
from planners.speed import format_rate
from proxy.admin.fit import FitReport, FitRow

_HEADINGS = ("FILE", "SIZE", "FITS", "CONTEXT", "TOKENS/S")


def fit_text(report: FitReport) -> str:
    """The files, best first, and why the first is the choice."""
    lines = [table(_HEADINGS, [_cells(row) for row in report.files], right="SIZE CONTEXT TOKENS/S")]
    if report.origin is not None:
        lines.append(f"for another machine ({report.origin})")
    lines.append(report.why)
    return "\n".join(lines)


def _cells(row: FitRow) -> tuple[str, ...]:
    rate = row.decode_tokens_per_s
    speed = "" if rate is None else format_rate(rate)
    mark = "~" if row.is_estimate else ""
    return (
        row.tag,
        format_size(row.size_bytes),
        f"{mark}{row.fit}",
        str(row.context) if row.context else "",
        f"{mark}{speed}" if speed else "",
    )
