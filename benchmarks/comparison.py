"""The README's table and figure of all objectives, from the runs of FroSSL's Tables 2 and 3 at size small.

    python benchmarks/comparison.py             # prints the table, draws docs/figures/comparison.svg

Reads `results/frossl/table2-small.json`; `fullrank reproduce frossl/table2 --data path/to/cifar10 --transfer
path/to/mnist --out results` makes it. Methods are sorted by the accuracy of the final linear probe.
"""

import statistics
from collections.abc import Mapping
from pathlib import Path

from fullrank.report.plot_style import to_svg
from fullrank_papers.figures import Result
from fullrank_papers.figures.frossl import table3
from fullrank_papers.figures.frossl.comparison import (
    Values,
    early_end,
    markdown_table,
    mean_and_deviation,
    online_accuracy,
    probe_accuracy,
    read_runs,
    values_of,
)
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.figures.frossl.table2 import format_gap

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "results" / "frossl" / "table2-small.json"
FIGURE = ROOT / "docs" / "figures" / "comparison.svg"
MARKS = (1.0, 5.0, 20.0)


def table(result: Result) -> str:
    """Return the table as Markdown: mean ± standard deviation over the seeds."""
    runs = read_runs(result.rows)
    leads, linear = table3.leads(runs), values_of(runs, probe_accuracy)
    (other,) = {
        name for by_seed in runs.values() for row in by_seed.values() for name in row.scores if name != row.data
    }
    columns: dict[str, tuple[Values, float, int]] = {
        "linear, %": (linear, 100.0, 1),
        "kNN, %": (values_of(runs, lambda row: row.score("knn")), 100.0, 1),
        f"linear on {other}, %": (values_of(runs, lambda row: probe_accuracy(row, other)), 100.0, 1),
        **{f"online, epoch {mark:g}, %": (values_of(runs, online_accuracy(mark)), 100.0, 1) for mark in MARKS},
        "effective rank": (values_of(runs, lambda row: row.effective_rank.get("backbone")), 1.0, 1),
        "CPU s": (values_of(runs, lambda row: row.cpu_seconds or None), 1.0, 0),
    }
    lines = [
        [
            CONTENDERS[name].label,
            *(describe(values.get(name, {}), scale, digits) for values, scale, digits in columns.values()),
            format_gap(leads[name]) if name in leads else "",
        ]
        for name in sorted(runs, key=lambda name: -statistics.fmean(linear[name].values()))
    ]
    return markdown_table(["method", *columns, f"FroSSL's lead, epochs 1 to {early_end(runs):g}"], lines)


def describe(values: Mapping[int, float], scale: float, digits: int) -> str:
    """Return mean ± standard deviation as text, without the number of seeds."""
    return mean_and_deviation(values, scale=scale, digits=digits).rpartition(" (")[0]


def main() -> None:
    result = Result.read(RESULT)
    FIGURE.write_text(to_svg(table3.plot(result.rows)), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
