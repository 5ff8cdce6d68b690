"""Compare value and gradient of every objective on 2 and 4 processes with one process that has the whole batch.

    python -m benchmarks.exactness           # needs the group `bench` (lightly)

fullrank's objectives take gathered embeddings. The script calls lightly's classes as documented: each process has its
part of the batch, the flag for several processes is set, and DistributedDataParallel averages the gradients. Network,
synchronised BatchNorm (fullrank's), data and comparison (`fullrank.testing.processes`) are the same. The two halves of
the batch differ in mean and scale, as if the data were sorted; at the larger size the samples are also i.i.d. Writes
`benchmarks/results/exactness.json`.
"""

import math
from typing import Any

import torch

from benchmarks import timing
from benchmarks.lightly_losses import LOSSES
from fullrank.objectives import OBJECTIVES
from fullrank.run import write_json
from fullrank.testing import measure_exactness, objective_case

SMALL, *LARGE = ((32, 5, True), (256, 2048, True), (256, 2048, False))  # N, D, whether the halves differ
HYPERPARAMETERS = {"directclr": {"d0": 3}, "directclr_paper": {"d0": 3}}  # three of five dimensions
WHAT = "the largest ‖g_W − g_1‖ of a parameter, divided by the norm of the whole gradient; float64"


def main() -> None:
    torch.set_num_threads(1)
    ours = {name: objective_case(f, hyper=HYPERPARAMETERS.get(name)) for name, f in OBJECTIVES.items()}
    theirs = {name: objective_case(f, name=f"lightly.{name}") for name, (f, _) in LOSSES.items()}
    rows = []
    compared = (("fullrank", ours, SMALL), *(("lightly", theirs, size) for size in (SMALL, *LARGE)))
    for library, cases, (N, D, sorted_data) in compared:
        own, batch = library == "fullrank", {"N": N, "D": D, "sorted_data": sorted_data}
        measured = measure_exactness([*cases.values()], gathered=own, **batch)
        for name, case in cases.items():
            for errors in measured[case.name]:
                row: dict[str, Any] = {"library": library, "name": name, "processes": errors.processes} | batch
                row["flag"] = "none needed" if own else LOSSES[name][1]
                row["value"] = rounded(errors.value_error if own else None)
                row["gradient"] = rounded(errors.gradient_error)
                rows.append(row | {"exception": errors.exception})
                print(*rows[-1].values())
    result = {"what": WHAT, "environment": timing.environment("lightly"), "rows": rows}
    write_json(timing.RESULTS / "exactness.json", result)


def rounded(number: float | None) -> float | None:
    return None if number is None or math.isnan(number) else float(f"{number:.2g}")


if __name__ == "__main__":
    main()
