"""Compare each faster form of an objective with its formula: time and peak memory of forward and backward, in float32.

    python -m benchmarks.fast                     # on one thread: a minute
    python -m benchmarks.fast --device cuda

The two alternate in one process, at sizes of published recipes. A form is kept in `fullrank.objectives.fast` only if it
is 1.5 times as fast, or needs half the memory, at one of them. Writes `results/fast.json`.
"""

import argparse
from functools import partial
from typing import Any

import torch

from benchmarks import timing
from benchmarks.contenders import gradients, inputs
from benchmarks.losses import peak_bytes
from fullrank.objectives import OBJECTIVES, total
from fullrank.run import read_json, write_json

SIZES = {
    "frossl": ((256, 1024), (256, 2048), (1024, 1024)),
    "vicreg": ((256, 2048), (512, 8192)),
    "barlow_twins": ((256, 2048), (512, 8192)),
    "simclr": ((256, 128), (1024, 128), (2048, 128)),
    "ssl_hsic": ((1024, 128), (2048, 128)),
}
"""Objective → sizes (N, D)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=4.0, help="no round of a size begins later, after three")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [compare(name, N, D, options) for name, sizes in SIZES.items() for N, D in sizes]
    environment = timing.environment("fullrank", device=options.device, dtype="float32", views=2, seed=0)
    out = timing.RESULTS / "fast.json"
    before = read_json(out) if out.exists() else {}
    write_json(out, before | {options.device: {"environment": environment, "rows": rows}})


def compare(name: str, N: int, D: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return the medians of both in milliseconds, the peaks in MB, and formula over fast form."""
    tensors = inputs(name, N, D, device=options.device)
    objective: Any = OBJECTIVES[name]

    def loss(function: Any, **tensors: torch.Tensor) -> torch.Tensor:
        return total(function(**tensors))

    works = {
        who: partial(gradients, partial(loss, function), tensors)
        for who, function in {"fast": objective, "formula": objective.formula}.items()
    }
    clock: timing.Clock = "cpu" if options.device == "cpu" else "wall"
    found = timing.measure(works, rounds=options.rounds, seconds=options.seconds, clock=clock)
    ms = {who: round(1e3 * time.median, 3) for who, time in found.items()}
    mb = {who: round(peak_bytes(work, options.device) / 1e6, 1) for who, work in works.items()}
    row = {"objective": name, "N": N, "D": D, "rounds": found["fast"].rounds, "milliseconds": ms, "peak MB": mb}
    gains = {"times as fast": round(ms["formula"] / ms["fast"], 2), "memory": round(mb["formula"] / mb["fast"], 2)}
    print(f"{name:14}{N:6} × {D:<6}", *(f"{key} {value}" for key, value in gains.items()))
    return row | gains


if __name__ == "__main__":
    main()
