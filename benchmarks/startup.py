"""Measure how long the command line takes to answer: names, flags, numbers and paths that are wrong, help, and lists.

    python benchmarks/startup.py                                # half a minute
    python benchmarks/startup.py --against path/to/checkout     # compare with another version of the library

Each answer is a process of its own. Its CPU time is that of user and system together, which other processes hardly
change; the processes take turns, and the table has medians. The unit is the CPU time of `python -c pass`.
`results/startup.json` also lists the large libraries that an answer of this version imported.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

import timing
from fullrank.run import write_json

ANSWERS = (
    "--help",
    "--version",
    "recipes",
    "pretrain --help",
    "pretrain digts",
    "pretrain digits --help",
    "pretrain digits --epochs three",
    "pretrain digits --epoch 3",
    "pretrain digits --data no/such/photos",
    "pretrain --resume no/such/run",
    "evaluate no/such/run",
    "report no/such/run --out page.html",
)
HEAVY = (
    "torch",
    "torchvision",
    "lightning",
    "timm",
    "datasets",
    "pyarrow",
    "plotly",
    "matplotlib",
    "sklearn",
    "scipy",
    "pandas",
)
HERE = Path(__file__).parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="a checkout of another version")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=timing.RESULTS / "startup.json")
    arguments = parser.parse_args()
    sources = {"fullrank": HERE / "src"} | ({"before": arguments.against / "src"} if arguments.against else {})
    seconds: dict[tuple[str, str], list[float]] = {}
    python: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            python.append(cpu_seconds(["-c", "pass"], HERE / "src", folder))
            for name, source in sources.items():
                for answer in ANSWERS:
                    seconds.setdefault((name, answer), []).append(
                        cpu_seconds(["-m", "fullrank", *answer.split()], source, folder)
                    )
        rows = {
            answer: {
                name: {
                    "seconds": statistics.median(seconds[name, answer]),
                    "imports": imported(answer, source, folder) if name == "fullrank" else None,
                }
                for name, source in sources.items()
            }
            for answer in ANSWERS
        }
    result = {
        "environment": timing.environment("tyro", rounds=arguments.rounds),
        "python": statistics.median(python),
        "answers": rows,
    }
    write_json(arguments.out, result)
    show(result, list(sources))


def cpu_seconds(arguments: list[str], source: Path, folder: str) -> float:
    """Return the CPU seconds of one Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments], capture_output=True, cwd=folder, env=os.environ | {"PYTHONPATH": str(source)}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def imported(answer: str, source: Path, folder: str) -> list[str]:
    """Return the large libraries that a process has imported when it has answered."""
    code = f"import sys; from fullrank.cli import main; main({answer.split()!r}); print('\\n' + ' '.join({set(HEAVY)!r} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment)
    return sorted(done.stdout.splitlines()[-1].split())


def show(result, names):
    table = Table(
        "answer", *(f"{name}: seconds" for name in names), "× python", "large libraries", title="CPU time of an answer"
    )
    for answer, row in result["answers"].items():
        ours = row["fullrank"]
        cells = [f"{row[name]['seconds']:.2f}" for name in names]
        table.add_row(
            f"fullrank {answer}",
            *cells,
            f"{ours['seconds'] / result['python']:.0f}",
            ", ".join(ours["imports"]) or "none",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
