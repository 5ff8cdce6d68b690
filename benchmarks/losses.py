"""Compare the cost of every objective with the plain formula under autograd and with lightly: forward and backward of
two views, float32.

    python -m benchmarks.losses                    # times: four minutes on two cores
    python -m benchmarks.losses --memory           # peak memory
    python -m benchmarks.losses --device cuda      # the same on a GPU
    python -m benchmarks.losses --objectives frossl vicreg --sizes 512x4096 --threads 1

The contenders (`contenders.py`) take turns in one process (`timing.py`). Before, each formula must give the value and
the gradients of the library, in float64. The unit of time is two matrix products per view, timed in the same rounds:
the smaller of ZᵀZ and ZZᵀ, and its product with Z. The Frobenius norm of a covariance needs both, but only a little
more than half of the first, which is symmetric, so its cost can be less than 1. The unit of memory is V·N·D, the
embeddings themselves. lightly is optional (`pip install --group bench .`). Each measurement replaces its section of
`results/losses.json`.
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks import contenders, timing
from benchmarks.contenders import CONTENDERS, IN_LIGHTLY, gradients, losses
from fullrank.objectives import OBJECTIVES
from fullrank.run import read_json, write_json

SIZES = ((256, 1024), (256, 2048), (1024, 1024), (512, 4096), (4096, 2048))  # (N, D)
WIDE = (1024, 8192)  # only for FroSSL and for memory
SHORT = ((256, 1024), (1024, 1024))  # for objectives that lightly does not have
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objectives", nargs="+", choices=list(OBJECTIVES), default=list(OBJECTIVES))
    parser.add_argument("--sizes", nargs="+", help="such as 512x4096; default: those of the committed table")
    parser.add_argument("--memory", action="store_true", help="measure peak memory, not time")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="1: CPU time, else elapsed time")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5, help="no round of a cell begins later, from the third on")
    parser.add_argument("--out", type=Path, default=timing.RESULTS / "losses.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    options.clock = "cpu" if options.threads == 1 and options.device == "cpu" else "wall"
    key = "memory" if options.memory else "times"
    rows = measure(options)
    settings = {name: getattr(options, name) for name in ("clock", "device", "seconds")}
    environment = timing.environment("lightly", dtype="float32", views=2, **settings)
    before = read_json(options.out) if options.out.exists() else {}
    section = key if options.device == "cpu" else f"{key} on {options.device}"
    write_json(options.out, before | {section: {"environment": environment, "rows": rows}})
    if contenders.counterpart is None:
        print("lightly is not installed, so its column is empty: pip install --group bench .")
    Console().print(table(rows, "peak memory / V·N·D" if options.memory else "time / products", key))
    print("\n".join(in_words(rows)))


def measure(options: argparse.Namespace) -> list[Row]:
    """Return one row per objective and size."""
    chosen = [tuple(map(int, size.split("x"))) for size in options.sizes or ()]
    rows = []
    for name in track(sorted(options.objectives, key=lambda n: n not in IN_LIGHTLY), "measuring", transient=True):
        wide = (WIDE,) if options.memory or name == "frossl" else ()
        sizes = chosen or ((*SIZES, *wide) if name in IN_LIGHTLY or options.memory else SHORT)
        shared = contenders.agreement(name)
        for N, D in sizes:
            tensors = contenders.inputs(name, N, min(D, contenders.LARGEST_D.get(name, D)), device=options.device)
            measured = memory(name, tensors, options.device) if options.memory else times(name, tensors, options)
            rows.append({"objective": name, "N": N, "D": D} | shared | measured)
    return rows


def times(name: str, tensors: dict[str, torch.Tensor], options: argparse.Namespace) -> Row:
    """Time all contenders at one size; `milliseconds` are the median and the quartiles."""
    Z = torch.randn(2, *next(iter(tensors.values())).shape[-2:], device=options.device)
    works = {"products": lambda: contenders.products(Z)}
    works |= {who: lambda loss=loss: gradients(loss, tensors) for who, loss in losses(name, tensors).items()}
    found = timing.measure(works, rounds=options.rounds, seconds=options.seconds, clock=options.clock)
    ms = {who: [round(1e3 * t, 4) for t in (time.median, time.low, time.high)] for who, time in found.items()}
    behind = [who for who in CONTENDERS[1:] if who in found and found["fullrank"].low > found[who].high]
    medians = {who: time.median for who, time in found.items()}
    return {"rounds": found["fullrank"].rounds, "milliseconds": ms, "behind": behind} | ratios(medians)


def memory(name: str, tensors: dict[str, torch.Tensor], device: str) -> Row:
    """Return the peak bytes of forward and backward per byte of the embeddings."""
    N, D = next(iter(tensors.values())).shape[-2:]
    found: dict[str, float | None] = {}
    for who, loss in losses(name, tensors).items():
        try:
            found[who] = round(peak_bytes(lambda loss=loss: gradients(loss, tensors), device) / (2 * N * D * 4), 3)
        except torch.OutOfMemoryError:
            found[who] = None
    ours = found["fullrank"]
    behind = [who for who in CONTENDERS[1:] if (theirs := found.get(who)) and ours and ours > 1.005 * theirs]
    return {"peak": found, "behind": behind} | ratios(found)


def ratios(values: dict[str, float | None]) -> dict[str, float | None]:
    """Return our value in units of the products, if they were timed, and divided by that of each other contender."""
    ours, others = values["fullrank"], {"units": "products"} | {f"over {who}": who for who in CONTENDERS[1:]}
    return {key: round(ours / value, 3) if ours and (value := values.get(who)) else None for key, who in others.items()}


def peak_bytes(work: timing.Work, device: str) -> int:
    """Return the largest number of bytes that a call holds at once, beyond those that were allocated before it: from
    the allocator of a GPU, or from torch's profiler on a CPU."""
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        work()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())), default=0)


@contextmanager
def quiet() -> Iterator[None]:
    """Discard what the profiler's C++ code writes to stderr."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def table(rows: list[Row], title: str, key: str) -> Table:
    """Return a table: objective × size; ours, then ours over the formula and over lightly."""
    sizes = list(dict.fromkeys((row["N"], row["D"]) for row in rows))
    result = Table("objective", *(f"{N} × {D}" for N, D in sizes), title=f"{title} | over the formula | over lightly")
    for name in dict.fromkeys(row["objective"] for row in rows):
        found = {(row["N"], row["D"]): row for row in rows if row["objective"] == name}
        texts = []
        for row in (found.get(size) for size in sizes):
            ours = row and (row["peak"]["fullrank"] if key == "memory" else row["units"])
            values = [ours, row["over formula"], row["over lightly"]] if row else []
            texts.append(" | ".join(f"{value:.2f}" if value else "-" for value in values))
        result.add_row(name, *texts)
    return result


def in_words(rows: list[Row]) -> list[str]:
    """Say where another contender is ahead of us: for a time, its upper quartile is below our lower one."""
    behind = {who: [who in row["behind"] for row in rows if row[f"over {who}"]] for who in CONTENDERS[1:]}
    return [f"{who} is ahead in {sum(cells)} of {len(cells)} cells" for who, cells in behind.items()]


if __name__ == "__main__":
    main()
