"""Measure on a GPU what the library claims: correctness, speed, time to accuracy.

    python -m benchmarks.gpu                                  # all pieces, in order of worth, for about nine minutes
    python -m benchmarks.gpu accuracy --data FOLDER           # one piece; CIFAR-10 as Parquet files
    python -m benchmarks.gpu accuracy --data FOLDER --only byol --shared --out byol.json    # beside other processes
    python -m benchmarks.gpu --smoke                          # every piece on the CPU, tiny, in minutes
    python -m benchmarks.gpu --table                          # only print what was measured so far

Run it from the root of the repository, `PYTHONPATH=src` if the library is not installed. Every part is written to one
JSON file as soon as it is measured, so the same command continues where an earlier one ended or was killed; a part that
failed is measured again. Nothing is downloaded.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu import accuracy, correctness, throughput
from benchmarks.gpu.parts import SMOKE, Options, Results, failures, run
from benchmarks.timing import RESULTS

PIECES = {"correctness": correctness, "throughput": throughput, "accuracy": accuracy}


def main() -> int:
    """Measure the chosen pieces and return the exit status: 0 if all parts are done, 3 if some are left, 1 if some
    failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pieces", nargs="*", metavar="PIECE", help=f"{', '.join(PIECES)}; default: all")
    parser.add_argument("--smoke", action="store_true", help="every piece on the CPU, tiny")
    parser.add_argument("--minutes", type=float, default=9.0, help="no part begins later")
    parser.add_argument("--out", type=Path, help="the JSON file; of a smoke test, by default, a temporary file")
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10 as Parquet files, for the piece accuracy")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the parts whose name contains the text")
    parser.add_argument("--shared", action="store_true", help="other processes use the GPU: accuracies, no times")
    parser.add_argument("--table", action="store_true", help="measure nothing, print the table of all results")
    options = parser.parse_args()
    if unknown := set(options.pieces) - set(PIECES):
        parser.error(f"unknown piece {', '.join(sorted(unknown))}; choose from {', '.join(PIECES)}")
    if not options.smoke and not options.table and not torch.cuda.is_available():
        parser.error("there is no GPU; --smoke runs every piece on the CPU, --table prints what was measured")
    with tempfile.TemporaryDirectory() as folder:
        out = options.out or (Path(folder) / "gpu.json" if options.smoke else RESULTS / "gpu.json")
        name = SMOKE if options.smoke else torch.cuda.get_device_name() if torch.cuda.is_available() else ""
        results, complete = Results(out, name), True
        chosen = Options(options.smoke, options.data, torch.device("cpu" if options.smoke else "cuda"), options.shared)
        deadline = time.monotonic() + 60 * options.minutes
        for piece in () if options.table else options.pieces or PIECES:
            if piece == "accuracy" and not options.smoke and options.data is None:
                print("accuracy: left out; give --data FOLDER with CIFAR-10 as Parquet files")
                continue
            parts = (part for part in PIECES[piece].parts(chosen, results) if options.only in part.name)
            complete &= run(piece, parts, results, deadline=deadline, notify=lambda line: print(line, flush=True))
        for device in sorted(results.all):
            print_table(device, Results(out, device))
        failed = [] if options.table else failures(results)
        for line in failed:
            print(f"FAILED: {line}")
        if not complete and not failed:
            print("some parts are left: run the same command again")
        return 1 if failed else 0 if complete else 3


def print_table(device: str, results: Results) -> None:
    """Print one line for each part that was measured on a device."""
    table = Table(title=f"{device}: all results so far", title_justify="left")
    for head in ("piece", "part", "result"):
        table.add_column(head, overflow="fold")
    for piece, module in PIECES.items():
        for name, result in results.parts(piece).items():
            table.add_row(piece, name, f"FAILED: {result['error'][:160]}" if "error" in result else module.row(result))
        for name, text in accuracy.summary(results.parts(piece)) if piece == "accuracy" else ():
            table.add_row(piece, name, text)
    Console(width=160).print(table)


if __name__ == "__main__":
    sys.exit(main())
