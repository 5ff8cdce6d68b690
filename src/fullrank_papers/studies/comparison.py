"""The table and figure of all objectives of docs/results.md, from the runs of FroSSL's Tables 2 and 3 at size small.

    python -m fullrank_papers.studies.comparison    # prints the table, draws docs/figures/comparison.svg

Reads `results/frossl/table2-small.json`; `fullrank reproduce frossl/table2 --data path/to/cifar10 --transfer
path/to/mnist --out results` makes it. Methods are sorted by the accuracy of the final linear probe.
"""

import statistics
from pathlib import Path

from matplotlib import rc_context

from fullrank_papers.figures import Result
from fullrank_papers.figures.frossl import comparison, table3
from fullrank_papers.figures.frossl.contenders import CONTENDERS
from fullrank_papers.plot_style import MATPLOTLIB_STYLE, to_svg

MARKS = (1.0, 5.0, 20.0)


def table(result: Result) -> str:
    """Return the table as Markdown: mean ± standard deviation over the seeds."""
    runs = comparison.read_runs(result.rows)
    leads, linear = table3.leads(runs), comparison.values_of(runs, comparison.probe_accuracy)
    (other,) = {name for row in comparison.all_rows(runs) for name in row.scores if name != row.data}
    numbers = {
        "linear, %": comparison.probe_accuracy,
        "kNN, %": lambda row: row.score("knn"),
        f"linear on {other}, %": lambda row: comparison.probe_accuracy(row, other),
        **{f"online, epoch {mark:g}, %": comparison.online_accuracy(mark) for mark in MARKS},
        "effective rank": lambda row: row.effective_rank.get("backbone"),
        "CPU s": lambda row: row.cpu_seconds or None,
    }
    columns = {title: comparison.values_of(runs, number) for title, number in numbers.items()}

    def cell(title: str, name: str) -> str:
        scale, digits = (100.0, 1) if "%" in title else (1.0, 0 if title == "CPU s" else 1)
        text = comparison.mean_and_deviation(columns[title].get(name, {}), scale=scale, digits=digits)
        return text.rpartition(" (")[0]  # without the number of seeds

    ordered = sorted(runs, key=lambda name: -statistics.fmean(linear[name].values()))
    gaps = {name: comparison.format_gap(gap) for name, gap in leads.items()}
    lines = [[CONTENDERS[name].label, *(cell(each, name) for each in columns), gaps.get(name, "")] for name in ordered]
    lead = f"FroSSL's lead, epochs 1 to {comparison.early_end(runs):g}"
    return comparison.markdown_table(["method", *columns, lead], lines)


def main() -> None:
    result = Result.read(Path("results/frossl/table2-small.json"))
    with rc_context(MATPLOTLIB_STYLE):
        Path("docs/figures/comparison.svg").write_text(to_svg(table3.plot(result.rows)), encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
