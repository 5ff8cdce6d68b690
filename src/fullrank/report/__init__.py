"""Reports: one HTML page from one or several runs. The page needs no network, and has a light, a dark, a print and a
phone layout.
"""

from fullrank.report.page import write_report
from fullrank.report.summary import RunSummary, read_run_summary

__all__ = ["RunSummary", "read_run_summary", "write_report"]
