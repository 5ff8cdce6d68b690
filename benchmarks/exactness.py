"""Value and gradient of every objective on 2 and 4 processes with different data, against one process with the whole batch.

    python benchmarks/exactness.py            # needs the group `bench` (lightly)

Ours are called as they are used, on gathered embeddings; lightly's classes as their documentation says: on each process's own share, with
their flag for several processes on, gradients averaged by DistributedDataParallel. The same network, BatchNorm (ours, synchronised),
data and comparison for all: `fullrank.conformance.exactness`. Half of the batch has another mean and scale than the other half, as the
shares of two processes have where data are sorted. Written to `benchmarks/results/exactness.json`.
"""

import math
from importlib.metadata import version
from pathlib import Path

import torch

from fullrank.conformance.exactness import exactness
from fullrank.conformance.subject import objective_case
from fullrank.objectives import OBJECTIVES
from fullrank.run import write_json
from lightly_losses import LOSSES

OUT = Path(__file__).parent / "results" / "exactness.json"
PROCESSES = (1, 2, 4)
D0 = {"directclr": {"d0": 3}, "directclr_paper": {"d0": 3}}  # of five dimensions


def main():
    ours = {name: objective_case(f, numbers=D0.get(name)) for name, f in OBJECTIVES.items()}
    theirs = {name: objective_case(f, name=f"lightly.{name}") for name, (f, _) in LOSSES.items()}
    found = exactness([*ours.values(), *theirs.values()], processes=PROCESSES)
    rows = [
        {"library": "fullrank", "name": name, "flag": "none needed"} | row(one.processes, one.value, one.gradient, one.trouble)
        for name, subject in ours.items()
        for one in found[subject.name]
    ] + [
        {"library": "lightly", "name": name, "flag": LOSSES[name][1]} | row(one.processes, None, one.alone_gradient, one.trouble)
        for name, subject in theirs.items()
        for one in found[subject.name]
    ]
    write_json(
        OUT,
        {
            "what": "error of the gradient: the largest ‖g_W − g_1‖ of a parameter, by the norm of the whole gradient; float64",
            "versions": {name: version(name) for name in ("fullrank", "torch", "lightly")},
            "rows": rows,
        },
    )
    for r in rows:
        print(f"{r['library']:9} {r['name']:25} {r['flag']:28} {r['processes']} processes  gradient {r['gradient']}  {r['trouble']}")


def row(processes: int, value: float | None, gradient: float, trouble: str) -> dict:
    value = None if value is None or math.isnan(value) else float(f"{value:.2g}")
    return {
        "processes": processes,
        "value": value,
        "gradient": None if math.isnan(gradient) else float(f"{gradient:.2g}"),
        "trouble": trouble,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
