"""Compare value and gradient of every objective on 2 and 4 processes with one process that has the whole batch.

    python benchmarks/exactness.py            # needs the group `bench` (lightly)

fullrank's objectives take gathered embeddings. The script calls lightly's classes as documented: each process has its
part of the batch, the flag for several processes is set, and DistributedDataParallel averages the gradients. Network,
synchronised BatchNorm (fullrank's), data and comparison (`fullrank.testing.exactness`) are the same. The two halves of
the batch differ in mean and scale, as if the data were sorted. Writes `benchmarks/results/exactness.json`.
"""

import math
from importlib.metadata import version
from pathlib import Path

import torch

from fullrank.objectives import OBJECTIVES
from fullrank.run import write_json
from fullrank.testing import Exactness, measure_exactness, objective_case
from lightly_losses import LOSSES

OUT = Path(__file__).parent / "results" / "exactness.json"
PROCESSES = (1, 2, 4)
HYPERPARAMETERS = {"directclr": {"d0": 3}, "directclr_paper": {"d0": 3}}  # three of five dimensions


def main():
    ours = {name: objective_case(f, hyper=HYPERPARAMETERS.get(name)) for name, f in OBJECTIVES.items()}
    theirs = {name: objective_case(f, name=f"lightly.{name}") for name, (f, _) in LOSSES.items()}
    measured = measure_exactness([*ours.values(), *theirs.values()], processes=PROCESSES)
    rows = [
        {"library": "fullrank", "name": name, "flag": "none needed"}
        | row(errors, errors.value_error, errors.gradient_error)
        for name, case in ours.items()
        for errors in measured[case.name]
    ] + [
        {"library": "lightly", "name": name, "flag": LOSSES[name][1]} | row(errors, None, errors.local_gradient_error)
        for name, case in theirs.items()
        for errors in measured[case.name]
    ]
    write_json(
        OUT,
        {
            "what": "error of the gradient: the largest ‖g_W − g_1‖ of a parameter, divided by the norm of the whole gradient; float64",
            "versions": {name: version(name) for name in ("fullrank", "torch", "lightly")},
            "rows": rows,
        },
    )
    for r in rows:
        print(
            f"{r['library']:9} {r['name']:25} {r['flag']:28} {r['processes']} processes  gradient {r['gradient']}  {r['exception']}"
        )


def row(errors: Exactness, value: float | None, gradient: float) -> dict:
    rounded = [None if number is None or math.isnan(number) else float(f"{number:.2g}") for number in (value, gradient)]
    return {"processes": errors.processes, "value": rounded[0], "gradient": rounded[1], "exception": errors.exception}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
