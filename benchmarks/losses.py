"""Compare the cost of every objective with the plain formula under autograd and with lightly: forward and backward of two views, float32.

    python benchmarks/losses.py                    # times: four minutes on two cores
    python benchmarks/losses.py --memory           # peak memory, seconds
    python benchmarks/losses.py --exponents        # growth of the time with N and D
    python benchmarks/losses.py --device cuda      # the same on a GPU
    python benchmarks/losses.py --objectives frossl vicreg --sizes 512x4096 --threads 1

The contenders alternate in one process (`timing.py`). Before, each formula (`formulas.py`) must give the library's value and gradients, in
float64. The unit of time is two matrix products per view, timed in the same rounds: for the Frobenius norm of a covariance these products
cannot be avoided, the smaller of ZᵀZ and ZZᵀ, and its product with Z. The unit of memory is V·N·D, the embeddings themselves. W-MSE and
CorInfoMax decompose a covariance, so they get at most 64 dimensions, as in a run. lightly is optional (`pip install --group bench .`).
Each measurement replaces its section of `results/losses.json`.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import formulas
import timing
from fullrank.conformance.cost import power_law_exponent
from fullrank.conformance.objective_case import ObjectiveCase
from fullrank.objectives import OBJECTIVES, total
from fullrank.objectives.signature import hyperparameters
from fullrank.run import read_json, write_json
from memory import peak_bytes

try:
    from lightly_losses import counterpart
except ModuleNotFoundError:
    counterpart = None

SIZES = ((256, 1024), (256, 2048), (1024, 1024), (512, 4096), (4096, 2048))
WIDE = (1024, 8192)  # also for FroSSL
SHORT = ((256, 1024), (1024, 1024))  # for objectives that lightly does not have
LARGE = ((256, 65_536), (16_384, 256))
IN_LIGHTLY = ("frossl", "barlow_twins", "vicreg", "simclr", "moco", "swav", "simsiam", "byol", "dino", "wmse", "tico", "directclr")
LARGEST_D = {"wmse": 64, "corinfomax": 64}
PROFILED = 2048  # up to this max(2N, D), torch's profiler measures memory; beyond, it is counted by shapes
QUEUE = 4096
GROWTH = {"N": ((1024, 2048, 4096, 8192), 128), "D": ((512, 1024, 2048, 4096), 512)}  # the sizes of one, and the other
CONTENDERS = ("fullrank", "formula", "lightly")
OUT = timing.RESULTS / "losses.json"
Size = tuple[int, int]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objectives", nargs="+", choices=list(OBJECTIVES), default=list(OBJECTIVES))
    parser.add_argument("--sizes", nargs="+", type=size, help="such as 512x4096; default: those of the committed table")
    parser.add_argument("--memory", action="store_true", help="measure peak memory, not time")
    parser.add_argument("--exponents", action="store_true", help="measure the growth of the time with N and D")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="with 1, CPU time is measured, else elapsed time")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, help="no round of a cell begins later, but there are at least three")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    names = sorted(options.objectives, key=lambda name: (IN_LIGHTLY + tuple(OBJECTIVES)).index(name))
    console = Console()
    if counterpart is None:
        console.print("lightly is not installed, so its columns are empty: pip install --group bench .")
    if options.memory:
        key, rows = "memory", [memory(name, s, options.device) for name in names for s in options.sizes or (*SIZES, WIDE, *LARGE)]
        console.print(
            table(
                rows,
                "peak bytes of forward and backward, in units of V·N·D: fullrank / formula / lightly (~: counted by shapes)",
                memory_cell,
            )
        )
    elif options.exponents:
        key, rows = "exponents", [growth(name, options) for name in names]
        console.print(exponent_table(rows))
    else:
        key, rows = "times", []
        for name in names:
            agreement = check(name)
            for N, D in options.sizes or default_sizes(name):
                rows.append({"objective": name, "N": N, "D": D, **agreement, **cell(name, (N, D), options)})
        console.print(table(rows, "time in units of the products | time over that of lightly | over that of the formula", time_cell))
    console.print("\n".join(in_words(rows)) if key != "exponents" else "")
    settings = {"device": options.device, "dtype": "float32", "views": 2, "seed": 0, "rounds": options.rounds, "seconds": options.seconds}
    section = {"environment": timing.environment("fullrank", "lightly", clock=clock(options), **settings), "rows": rows}
    before = read_json(options.out) if options.out.exists() else {}
    write_json(options.out, before | {key if options.device == "cpu" else f"{key} on {options.device}": section})


def size(text: str) -> Size:
    N, D = text.split("x")
    return int(N), int(D)


def default_sizes(name: str) -> tuple[Size, ...]:
    return (*SIZES, WIDE) if name == "frossl" else SIZES if name in IN_LIGHTLY else SHORT


def clock(options: argparse.Namespace) -> timing.Clock:
    return "cpu" if options.threads == 1 and options.device == "cpu" else "wall"


def inputs(name: str, N: int, D: int, *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return random tensors for an objective by name; embeddings require a gradient. The state is that before the first batch."""
    case = ObjectiveCase(name=name, objective=OBJECTIVES[name], views=2)
    with torch.device(device):
        torch.manual_seed(0)
        X, T = torch.randn(2, 2, N, D, dtype=dtype)
        state = {key: t.to(dtype) for key, t in (case.state.initial(V=2, D=D, K=D, size=QUEUE) if case.state else {}).items()}
    tensors = {key: t.detach() for key, t in case.tensors(X, T, state).items()}
    return {key: t.requires_grad_(key in case.embedding_names) for key, t in tensors.items()}


def losses(name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the contenders: functions of the tensors that return a scalar, with the same hyperparameters."""
    D = next(iter(tensors.values())).shape[-1]
    hyper = hyperparameters(OBJECTIVES[name])
    if "d0" in hyper:
        hyper["d0"] = min(hyper["d0"], D)
    found = {
        "fullrank": lambda **t: total(OBJECTIVES[name](**t, **hyper)),
        "formula": lambda **t: getattr(formulas, name)(**t, **hyper),
    }
    theirs = counterpart(name, tensors, hyper) if counterpart else None
    return found | ({"lightly": theirs} if theirs else {})


def gradients(loss: Any, tensors: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Run forward and backward."""
    return torch.autograd.grad(loss(**tensors), differentiable(tensors))


def differentiable(tensors: dict[str, Tensor]) -> list[Tensor]:
    return [t for t in tensors.values() if t.requires_grad]


def products(Z: Tensor) -> None:
    """Compute the smaller of ZᵀZ and ZZᵀ, and its product with Z, for each view."""
    for z in Z.detach():
        _ = z @ (z.T @ z) if z.shape[0] >= z.shape[1] else (z @ z.T) @ z


def check(name: str, *, N: int = 24, D: int = 8) -> dict[str, Any]:
    """Require that the formula has our value and gradients; return the cosine of lightly's gradient with ours.

    The cosine is 1 if lightly's loss is ours up to a factor and a constant.
    """
    tensors = inputs(name, N, D, dtype=torch.float64)
    found = {}
    for who, loss in losses(name, tensors).items():
        value = loss(**tensors)
        found[who] = value.detach(), flat(torch.autograd.grad(value, differentiable(tensors)))
    for ours, formula in zip(found["fullrank"], found["formula"], strict=True):
        torch.testing.assert_close(formula, ours, rtol=1e-6, atol=1e-9, msg=lambda text: f"{name}: formula and library differ. {text}")
    cosine = torch.cosine_similarity(found["fullrank"][1], found["lightly"][1], dim=0).item() if "lightly" in found else None
    return {"cosine with lightly": cosine and round(cosine, 4)}


def flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def cell(name: str, size: Size, options: argparse.Namespace) -> dict[str, Any]:
    """Time all contenders at one size; `milliseconds` are medians, with quartiles."""
    N, D = size
    tensors = inputs(name, N, min(D, LARGEST_D.get(name, D)), device=options.device)
    Z = torch.randn(2, *next(iter(tensors.values())).shape[-2:], device=options.device)
    works = {"products": lambda: products(Z)}
    for who, loss in losses(name, tensors).items():
        works[who] = lambda loss=loss: gradients(loss, tensors)
    times = timing.measure(works, rounds=options.rounds, seconds=options.seconds, clock=clock(options))
    ms = {who: [round(1e3 * t, 4) for t in (time.median, time.low, time.high)] for who, time in times.items()}
    behind = [who for who in CONTENDERS[1:] if who in times and times["fullrank"].low > times[who].high]
    found = {"rounds": times["fullrank"].rounds, "milliseconds": ms, "behind": behind}
    return found | ratios({who: time.median for who, time in times.items()})


def ratios(values: dict[str, float | None]) -> dict[str, float | None]:
    """Return our value in units of the products (if they were measured), and divided by that of each other contender."""
    ours, others = values["fullrank"], {"units": "products"} | {f"over {who}": who for who in CONTENDERS[1:]}
    return {key: round(ours / value, 3) if ours and (value := values.get(who)) else None for key, who in others.items()}


def memory(name: str, size: Size, device: str) -> dict[str, Any]:
    """Return the peak bytes of forward and backward per byte of the embeddings; at large sizes, they are counted by shapes."""
    N, D = size[0], min(size[1], LARGEST_D.get(name, size[1]))
    by_shapes = device == "cpu" and name not in LARGEST_D and max(2 * N, D) > PROFILED
    place = "meta" if by_shapes else device
    tensors, found = inputs(name, N, D, device=place), {}
    for who, loss in losses(name, tensors).items():
        try:
            found[who] = round(peak_bytes(lambda loss=loss: gradients(loss, tensors), place) / (2 * N * D * 4), 3)
        except torch.OutOfMemoryError:
            found[who] = None
    behind = [who for who in CONTENDERS[1:] if found.get(who) and found["fullrank"] and found["fullrank"] > 1.005 * found[who]]
    return {"objective": name, "N": size[0], "D": size[1], "peak": found, "by shapes": by_shapes, "behind": behind} | ratios(found)


def growth(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the exponents a and b of time ∝ Nᵃ and time ∝ Dᵇ, by least squares on logarithms."""
    row: dict[str, Any] = {"objective": name}
    for axis, (values, other) in GROWTH.items():
        points = []
        for value in values:
            N, D = (value, other) if axis == "N" else (other, value)
            tensors = inputs(name, N, D, device=options.device)
            loss = losses(name, tensors)["fullrank"]
            work = {"fullrank": lambda loss=loss, tensors=tensors: gradients(loss, tensors)}
            points.append((value, timing.measure(work, rounds=5, seconds=options.seconds, clock=clock(options))["fullrank"].median))
        row[axis] = {"exponent": round(power_law_exponent(points), 2), "points": points, "other": other}
    return row


def time_cell(row: dict[str, Any]) -> str:
    return " | ".join(f"{row[key]:.2f}" if row[key] else "-" for key in ("units", "over lightly", "over formula"))


def memory_cell(row: dict[str, Any]) -> str:
    return "~" * row["by shapes"] + " / ".join(f"{row['peak'][who]:.1f}" if row["peak"].get(who) else "-" for who in CONTENDERS)


def table(rows: list[dict[str, Any]], title: str, text: Any) -> Table:
    sizes = list(dict.fromkeys((row["N"], row["D"]) for row in rows))
    result = Table(title=title)
    for head in ("objective", *(f"{N} × {D}" for N, D in sizes)):
        result.add_column(head)
    for name in dict.fromkeys(row["objective"] for row in rows):
        found = {(row["N"], row["D"]): row for row in rows if row["objective"] == name}
        result.add_row(name, *(text(found[size]) if size in found else "" for size in sizes))
    return result


def exponent_table(rows: list[dict[str, Any]]) -> Table:
    result = Table("objective", *(f"exponent of {axis} ({v[0]} to {v[-1]}, other {o})" for axis, (v, o) in GROWTH.items()))
    for row in rows:
        result.add_row(row["objective"], *(str(row[axis]["exponent"]) for axis in GROWTH))
    return result


def in_words(rows: list[dict[str, Any]]) -> list[str]:
    """Say where another contender is ahead of us: for a time, its upper quartile is below our lower one."""
    lines = []
    for who in CONTENDERS[1:]:
        compared = [row for row in rows if row[f"over {who}"]]
        behind = [row for row in compared if who in row["behind"]]
        lines.append(f"{who} is ahead in {len(behind)} of {len(compared)} cells{':' if behind else '.'}")
        for name in dict.fromkeys(row["objective"] for row in behind):
            found = [f"{row[f'over {who}']:.2f} at {row['N']} × {row['D']}" for row in behind if row["objective"] == name]
            lines.append(f"  {name}: {', '.join(found)}")
    return lines


if __name__ == "__main__":
    main()
