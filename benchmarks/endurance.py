"""Measure whether a long run stays small, and whether a run that is killed many times ends like an undisturbed one.

    python -m benchmarks.endurance           # half an hour on one core

A tiny network on the digits keeps the steps short, so that what grows with the number of steps is seen. The long run
samples its memory, its open files and its folder. The other run is killed by SIGKILL (in any phase: start, steps,
checkpoints, logs) and resumed, until it has been killed `--kills` times; then it may end. Its processes are forks of a
server that has imported the library, so that a start takes about a second. Linux only: it reads /proc. Writes
`benchmarks/results/endurance.json`.
"""

import multiprocessing
import os
import random
import signal
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import tyro
from rich.console import Console

import fullrank
from benchmarks import timing
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.recipes import RECIPES
from fullrank.run import Run, write_json
from fullrank.run.logger import RunLogger

BACKBONE = {"channels": [8] * 4, "layers": [1, 0, 0, 1]}
RECIPE = replace(
    RECIPES["digits"],
    backbone=BackboneConfig(name="resnet18", arguments=BACKBONE, stem="small"),
    projector=ProjectorConfig(widths=(16,)),
    data=replace(RECIPES["digits"].data, workers=0),
    batch_size=32,
    log_every=10,
)
EPOCH = 44  # steps
SETTLED = 0.1  # share of the long run after which its memory should stay the same
TOLERANCE = 0.02
SEED = 0  # of the moments of the kills
Result = dict[str, Any]


def main(*, steps: int = 50_000, kills: int = 100, out: Path = timing.RESULTS / "endurance.json") -> None:
    """Measure both runs.

    Args:
        steps: of the long run, rounded up to whole epochs.
        kills: of the other run.
        out: the JSON file.
    """
    torch.set_num_threads(1)
    environment = timing.environment("lightning", "timm", tolerance=TOLERANCE, settled=SETTLED, seed=SEED)
    with tempfile.TemporaryDirectory() as folder:
        long = long_run(Path(folder) / "long", steps)  # first: the other leaves processes to be collected
        killed = killed_run(Path(folder), kills)
    write_json(out, {"environment": environment, "long": long, "killed": killed})
    print(long["verdicts"], f"memory grows by {long['memory_growth']:.2%}", killed["verdicts"], sep="\n")


def long_run(path: Path, steps: int) -> Result:
    """Train with log, spectra and checkpoints; return 50 samples of memory, open files and folder, and what they
    say."""
    total, after_step, samples = -(-steps // EPOCH) * EPOCH, RunLogger.after_step, []

    def sample(self: RunLogger, step: Any) -> None:
        after_step(self, step)
        if step.step % max(total // 50, 1) == 0:
            samples.append({"step": step.step} | measure(path))

    with mock.patch.object(RunLogger, "after_step", sample):
        train(path, epochs=total // EPOCH, checkpoints=max(total // 200, 1))
    settled = [values for values in samples if values["step"] >= SETTLED * total]
    growth = max(values["memory_mb"] for values in settled) / settled[0]["memory_mb"] - 1
    half, full = (samples[len(samples) // part - 1]["log_bytes"] for part in (2, 1))
    files = [values["open_files"] for values in settled]
    verdicts = {
        "memory": growth <= TOLERANCE,
        "open_files": max(files[len(files) // 2 :]) <= max(files[: len(files) // 2]),
        "checkpoints": max(values["checkpoints"] for values in samples) <= RECIPE.keep_checkpoints,
        "log": full <= 1.1 * 2 * half,
    }
    found = {"steps": total, "rows": len(Run(path).metrics), "memory_growth": growth}
    return found | {"seconds": Run(path).environment["duration_seconds"], "verdicts": verdicts, "samples": samples}


def measure(path: Path) -> Result:
    """Return the resident memory of this process, the number of its open files, and the sizes in a run directory."""
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    files = {"log": "metrics.jsonl", "tensorboard": "tensorboard/*", "checkpoint": "checkpoints/*/*"}
    sizes = {f"{name}_bytes": sum(file.stat().st_size for file in path.glob(p)) for name, p in files.items()}
    counts = {"open_files": len(os.listdir("/proc/self/fd")), "checkpoints": len(Run(path).checkpoints)}
    return {"memory_mb": round(memory, 2)} | counts | sizes


def killed_run(folder: Path, kills: int) -> Result:
    """Kill a run at random moments, and compare it with an undisturbed one, bit for bit."""
    whole, killed, epochs = Run(folder / "whole"), Run(folder / "killed"), -(-kills // 2)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fullrank.run.pretrain", "sklearn.datasets", "torch.utils.tensorboard"])

    def start(path: Path, epochs: int = epochs) -> Any:
        options = {"epochs": epochs, "checkpoints": epochs * EPOCH // 11}
        process = context.Process(target=train, args=(path,), kwargs=options)
        process.start()
        return process

    start(folder / "first", epochs=1).join()  # starts the server
    began = time.perf_counter()
    start(whole.path).join()
    seconds, steps = time.perf_counter() - began, whole.environment["duration_seconds"]
    rng, moments = random.Random(SEED), []
    while len(moments) < kills:
        delay = rng.uniform(0, seconds - steps + 3 * steps / kills)  # ends in the start, or a few steps after it
        process = start(killed.path)
        process.join(delay)
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            rows = killed.metrics
            moments.append({"seconds": round(delay, 3), "logged_step": rows[-1].step if rows else None})
    start(killed.path).join()
    result = {"steps": epochs * EPOCH, "kills": kills, "seconds_undisturbed": round(seconds, 2)}
    return result | {"verdicts": compare(whole, killed), "moments": moments}


def compare(one: Run, other: Run) -> dict[str, bool]:
    """Return whether two runs have the same weights and spectra bit for bit, the same rows but for their speed, and the
    same files."""
    first, second = one.checkpoint().weights(), other.checkpoint().weights()
    logs = [[row | {"images_per_second": 0} for row in run.metrics.to_dicts()] for run in (one, other)]
    files = [{str(file.relative_to(run.path)) for file in run.path.rglob("*")} for run in (one, other)]
    same = first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    spectra = (one.path / "spectrum.npz").read_bytes() == (other.path / "spectrum.npz").read_bytes()
    return {"weights": same, "rows": logs[0] == logs[1], "spectra": spectra, "files": files[0] == files[1]}


def train(path: Path, **changes: Any) -> None:
    """Start the run in a folder, or continue it."""
    torch.set_num_threads(1)
    fullrank.pretrain(replace(RECIPE, **changes), out=path, resume=True, console=Console(quiet=True))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
