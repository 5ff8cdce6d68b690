"""Compare the CPU seconds of an objective that each of W processes computes on the gathered batch with those of one
whose work the processes share, each on its part of the batch.

    python -m benchmarks.shards

CPU seconds of one process, for loss and gradient with communication, one thread each: other processes of the machine
hardly change them. Writes `benchmarks/results/shards.json`.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import timing
from fullrank.distributed import gather, on_shards
from fullrank.objectives import find_objective, total
from fullrank.run import write_json

OBJECTIVES = ("frossl", "vicreg")
SIZES = ((1024, 256), (4096, 256), (16384, 256), (16384, 1024))  # N, D of two views
WHAT = "CPU seconds of a process for loss and gradient: median, low and high quartile, rounds; float32"


def main() -> None:
    rows: list[dict[str, Any]] = []
    for processes in (2, 4, 8):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(measure, (processes, folder), nprocs=processes)
            rows += torch.load(Path(folder) / "rows.pt")
    write_json(timing.RESULTS / "shards.json", {"what": WHAT, "environment": timing.environment(), "rows": rows})


def measure(rank: int, processes: int, folder: str) -> None:
    """Time all objectives and sizes as one of several processes; the first one saves the rows."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes, init_method=f"file://{folder}/meeting")
    rows = []
    for name in OBJECTIVES:
        for N, D in SIZES:
            Z = torch.randn(2, N // processes, D, requires_grad=True)
            objective = find_objective(name)
            works = {
                "gathered": lambda Z=Z, f=objective: total(f(gather(Z, checked=True))).backward(),
                "shared": lambda Z=Z, f=objective: total(on_shards(lambda t: f(**t), {"Z": Z})).backward(),
            }
            times = timing.measure(works, rounds=3, clock="cpu")
            ratio = round(times["gathered"].median / times["shared"].median, 2)
            rows.append({"objective": name, "processes": processes, "N": N, "D": D, "ratio": ratio} | times)
            if not rank:
                print(*rows[-1].values(), flush=True)
    if not rank:
        torch.save([row | {k: tuple(row[k]) for k in ("gathered", "shared")} for row in rows], f"{folder}/rows.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
