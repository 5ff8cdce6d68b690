"""Compare the cost of every objective with the plain formula under autograd and with lightly: forward and backward of
two views, float32.

    python benchmarks/losses.py                    # times: four minutes on two cores
    python benchmarks/losses.py --memory           # peak memory
    python benchmarks/losses.py --exponents        # growth of the time with N and D
    python benchmarks/losses.py --device cuda      # the same on a GPU
    python benchmarks/losses.py --objectives frossl vicreg --sizes 512x4096 --threads 1

The contenders (`contenders.py`) alternate in one process (`timing.py`). Before, each formula must give the value and
the gradients of
the library, in float64. The unit of time is two matrix products per view, timed in the same rounds: the smaller of ZᵀZ
and ZZᵀ, and its product with Z. The Frobenius norm of a covariance needs both, but only a little more than half of the
first, which is symmetric, so its cost can be less than 1. The unit of memory is V·N·D, the embeddings themselves. W-MSE
and CorInfoMax decompose a covariance, so they get at most 64 dimensions, as in a run. lightly is optional (`pip install
--group bench .`). Each measurement replaces its section of `results/losses.json`.
"""

import argparse
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch._subclasses.fake_tensor import FakeTensorMode

import timing
from contenders import CONTENDERS, IN_LIGHTLY, agreement, counterpart, gradients, inputs, losses, products
from fullrank.objectives import OBJECTIVES
from fullrank.run import read_json, write_json
from fullrank.testing.cost import power_law_exponent
from memory import counted_peak, peak_bytes

SIZES = ((256, 1024), (256, 2048), (1024, 1024), (512, 4096), (4096, 2048))  # (N, D)
WIDE = (1024, 8192)  # also for FroSSL
SHORT = ((256, 1024), (1024, 1024))  # for objectives that lightly does not have
LARGE = ((256, 65_536), (16_384, 256))  # for memory
LARGEST_D = {"wmse": 64, "corinfomax": 64}
PROFILED = 2048  # up to this max(2N, D), torch's profiler measures memory; beyond, it is counted by shapes
GROWTH = {"N": ((512, 1024, 2048, 4096), 128), "D": ((512, 1024, 2048, 4096), 256)}  # the values of one, and the other
GROWTH_BELOW_N = GROWTH | {"D": ((64, 128, 256, 512), 1024)}  # for a covariance that is decomposed: it needs D < N
Row = dict[str, Any]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objectives", nargs="+", choices=list(OBJECTIVES), default=list(OBJECTIVES))
    parser.add_argument("--sizes", nargs="+", type=size, help="such as 512x4096; default: those of the committed table")
    parser.add_argument("--memory", action="store_true", help="measure peak memory, not time")
    parser.add_argument("--exponents", action="store_true", help="measure the growth of the time with N and D")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="with 1, CPU time is measured, else elapsed time"
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="no round of a cell begins later, but there are at least three"
    )
    parser.add_argument("--out", type=Path, default=timing.RESULTS / "losses.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    key = "memory" if options.memory else "exponents" if options.exponents else "times"
    rows = measure(key, options)
    settings = {
        "clock": clock(options),
        "device": options.device,
        "dtype": "float32",
        "views": 2,
        "seed": 0,
        "seconds": options.seconds,
    }
    section = {"environment": timing.environment("fullrank", "lightly", **settings), "rows": rows}
    before = read_json(options.out) if options.out.exists() else {}
    write_json(options.out, before | {key if options.device == "cpu" else f"{key} on {options.device}": section})
    show(key, rows)


def size(text: str) -> tuple[int, int]:
    N, D = text.split("x")
    return int(N), int(D)


def clock(options: argparse.Namespace) -> timing.Clock:
    return "cpu" if options.threads == 1 and options.device == "cpu" else "wall"


def measure(key: str, options: argparse.Namespace) -> list[Row]:
    """Return one row per objective, and per size unless the growth is measured."""
    names = [
        name
        for name in (*IN_LIGHTLY, *(name for name in OBJECTIVES if name not in IN_LIGHTLY))
        if name in options.objectives
    ]
    if key == "exponents":
        return [growth(name, options) for name in track(names, "measuring", transient=True)]
    rows = []
    for name in track(names, "measuring", transient=True):
        shared = agreement(name)
        for N, D in options.sizes or default_sizes(name, key):
            measured = memory(name, N, D, options.device) if key == "memory" else times(name, N, D, options)
            rows.append({"objective": name, "N": N, "D": D} | shared | measured)
    return rows


def default_sizes(name: str, key: str) -> tuple[tuple[int, int], ...]:
    if key == "memory":
        return (*SIZES, WIDE, *LARGE)
    return (*SIZES, WIDE) if name == "frossl" else SIZES if name in IN_LIGHTLY else SHORT


def times(name: str, N: int, D: int, options: argparse.Namespace) -> Row:
    """Time all contenders at one size; `milliseconds` are the median and the quartiles."""
    tensors = inputs(name, N, min(D, LARGEST_D.get(name, D)), device=options.device)
    Z = torch.randn(2, *next(iter(tensors.values())).shape[-2:], device=options.device)
    works = {"products": lambda: products(Z)}
    works |= {who: lambda loss=loss: gradients(loss, tensors) for who, loss in losses(name, tensors).items()}
    found = timing.measure(works, rounds=options.rounds, seconds=options.seconds, clock=clock(options))
    ms = {who: [round(1e3 * t, 4) for t in (time.median, time.low, time.high)] for who, time in found.items()}
    behind = [who for who in CONTENDERS[1:] if who in found and found["fullrank"].low > found[who].high]
    medians = {who: time.median for who, time in found.items()}
    return {"rounds": found["fullrank"].rounds, "milliseconds": ms, "behind": behind} | ratios(medians)


def memory(name: str, N: int, D: int, device: str) -> Row:
    """Return the peak bytes of forward and backward per byte of the embeddings; at large sizes, they are counted by
    shapes."""
    D = min(D, LARGEST_D.get(name, D))
    by_shapes = device == "cpu" and name not in LARGEST_D and max(2 * N, D) > PROFILED
    found: dict[str, float | None] = {}
    for who in losses(name, inputs(name, 16, 4)):
        # Our losses depend on the device. lightly's select by a mask, which only "meta" supports without data.
        with FakeTensorMode() if by_shapes and who != "lightly" else nullcontext():
            tensors = inputs(name, N, D, device="meta" if by_shapes and who == "lightly" else device)
            work = partial(gradients, losses(name, tensors)[who], tensors)
            try:
                peak = counted_peak(work) if by_shapes else peak_bytes(work, device)
                found[who] = round(peak / (2 * N * D * 4), 3)
            except torch.OutOfMemoryError:
                found[who] = None
    behind = [
        who for who in CONTENDERS[1:] if found.get(who) and found["fullrank"] and found["fullrank"] > 1.005 * found[who]
    ]
    return {"peak": found, "by shapes": by_shapes, "behind": behind} | ratios(found)


def ratios(values: dict[str, float | None]) -> dict[str, float | None]:
    """Return our value in units of the products (if they were measured), and divided by that of each other
    contender."""
    ours, others = values["fullrank"], {"units": "products"} | {f"over {who}": who for who in CONTENDERS[1:]}
    return {key: round(ours / value, 3) if ours and (value := values.get(who)) else None for key, who in others.items()}


def growth(name: str, options: argparse.Namespace) -> Row:
    """Return the exponents a and b of time ∝ Nᵃ and time ∝ Dᵇ, by least squares on logarithms."""
    row: Row = {"objective": name}
    for axis, (values, other) in (GROWTH_BELOW_N if name in LARGEST_D else GROWTH).items():
        points = []
        for value in values:
            tensors = inputs(name, *((value, other) if axis == "N" else (other, value)), device=options.device)
            loss = losses(name, tensors)["fullrank"]
            works = {"fullrank": lambda loss=loss, tensors=tensors: gradients(loss, tensors)}
            found = timing.measure(works, rounds=options.rounds, seconds=options.seconds / 4, clock=clock(options))
            points.append((value, round(1e3 * found["fullrank"].median, 4)))
        row[axis] = {"exponent": round(power_law_exponent(points), 2), "milliseconds": points, "other": other}
    return row


def show(key: str, rows: list[Row]) -> None:
    """Print a table, and say in words where another contender is ahead."""
    console = Console()
    if counterpart is None:
        console.print("lightly is not installed, so its column is empty: pip install --group bench .")
    if key == "exponents":
        console.print(exponent_table(rows))
    else:
        title, text = {
            "times": ("time: in units of the products | over the formula | over lightly", time_text),
            "memory": (
                "peak memory in units of V·N·D: fullrank | formula | lightly (~: counted by shapes)",
                memory_text,
            ),
        }[key]
        console.print(table(rows, title, text))
        console.print("\n".join(in_words(rows)))


def time_text(row: Row) -> str:
    return " | ".join(f"{row[key]:.2f}" if row[key] else "-" for key in ("units", "over formula", "over lightly"))


def memory_text(row: Row) -> str:
    return "~" * row["by shapes"] + " | ".join(
        f"{row['peak'][who]:.1f}" if row["peak"].get(who) else "-" for who in CONTENDERS
    )


def table(rows: list[Row], title: str, text: Any) -> Table:
    sizes = list(dict.fromkeys((row["N"], row["D"]) for row in rows))
    result = Table("objective", *(f"{N} × {D}" for N, D in sizes), title=title)
    for name in dict.fromkeys(row["objective"] for row in rows):
        found = {(row["N"], row["D"]): row for row in rows if row["objective"] == name}
        result.add_row(name, *(text(found[size]) if size in found else "" for size in sizes))
    return result


def exponent_table(rows: list[Row]) -> Table:
    result = Table("objective", "exponent of N", "exponent of D", title="growth of the time of forward and backward")
    for row in rows:
        N, D = row["N"], row["D"]
        result.add_row(
            row["objective"], f"{N['exponent']:.2f} (D = {N['other']})", f"{D['exponent']:.2f} (N = {D['other']})"
        )
    return result


def in_words(rows: list[Row]) -> list[str]:
    """Say where another contender is ahead of us: for a time, its upper quartile is below our lower one."""
    lines = []
    for who in CONTENDERS[1:]:
        compared = [row for row in rows if row[f"over {who}"]]
        behind = [row for row in compared if who in row["behind"]]
        lines.append(f"{who} is ahead in {len(behind)} of {len(compared)} cells{':' if behind else '.'}")
        for name in dict.fromkeys(row["objective"] for row in behind):
            found = [
                f"{row[f'over {who}']:.2f} at {row['N']} × {row['D']}" for row in behind if row["objective"] == name
            ]
            lines.append(f"  {name}: {', '.join(found)}")
    return lines


if __name__ == "__main__":
    main()
