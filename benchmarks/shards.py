"""Compare the CPU seconds of an objective that each of W processes computes on the gathered batch with those of one
whose work the processes share, each on its part of the batch; or their memory.

    python -m benchmarks.shards
    python -m benchmarks.shards --memory

CPU seconds of one process, for loss and gradient with communication, one thread each: other processes of the machine
hardly change them. The memory is the largest number of bytes that a process holds at once beyond its embeddings, with
four processes. Writes `benchmarks/results/shards.json`.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import tyro

from benchmarks import timing
from benchmarks.losses import peak_bytes
from fullrank.distributed import gather, on_shards
from fullrank.objectives import find_objective, total
from fullrank.run import read_json, write_json

OBJECTIVES = ("frossl", "vicreg")
SIZES = ((1024, 256), (4096, 256), (16384, 256), (16384, 1024))  # N, D of two views
LARGE = ((16384, 1024), (65536, 1024))  # of the memory
WHAT = "CPU seconds of a process for loss and gradient: median, low and high quartile, rounds; float32"


def main(*, memory: bool = False) -> None:
    rows: list[dict[str, Any]] = []
    for processes in (4,) if memory else (2, 4, 8):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(measure, (processes, folder, memory), nprocs=processes)
            rows += torch.load(Path(folder) / "rows.pt")
    file, found = timing.RESULTS / "shards.json", {"environment": timing.environment(), "rows": rows}
    before = read_json(file) if file.exists() else {}
    write_json(file, before | ({"memory": found} if memory else {"what": WHAT} | found))


def measure(rank: int, processes: int, folder: str, memory: bool) -> None:
    """Measure all objectives and sizes as one of several processes; the first one saves the rows."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes, init_method=f"file://{folder}/meeting")
    rows = []
    for name in OBJECTIVES:
        for N, D in LARGE if memory else SIZES:
            Z = torch.randn(2, N // processes, D, requires_grad=True)
            objective = find_objective(name)
            works = {
                "gathered": lambda Z=Z, f=objective: total(f(gather(Z, checked=True))).backward(),
                "shared": lambda Z=Z, f=objective: total(on_shards(lambda t: f(**t), {"Z": Z})).backward(),
            }
            row = {"objective": name, "processes": processes, "N": N, "D": D}
            if memory:
                found = {who: peak_bytes(work, "cpu") for who, work in works.items()}
            else:
                times = timing.measure(works, rounds=3, clock="cpu")
                found = {"ratio": round(times["gathered"].median / times["shared"].median, 2)}
                found |= {who: tuple(time) for who, time in times.items()}
            rows.append(row | found)
            if not rank:
                print(*rows[-1].values(), flush=True)
    if not rank:
        torch.save(rows, f"{folder}/rows.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
