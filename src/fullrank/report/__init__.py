"""One self-contained HTML page from run directories: it opens offline, in light and dark, on paper and on a phone."""

from fullrank.report.page import write_report
from fullrank.report.read import Record, read_run

__all__ = ["Record", "read_run", "write_report"]
