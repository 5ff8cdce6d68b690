"""Images per second of training: FroSSL with ResNet-18 (small stem), 32 px, two views, bfloat16, everything on the
device.

The recipe is `cifar10`, its loop is that of a run, on random images in the memory of the device. `phases.py` splits a
step of `fullrank.pretrain` into its phases, by CUDA events.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu.parts import Options, Part, Result
from benchmarks.gpu.training import VARIANTS, Training, on_device, random_images, tiny
from fullrank.recipes import RECIPES

BATCHES = (256, 512, 1024)
ROOT = Path(__file__).parents[2]
PHASES = ROOT / "benchmarks" / "phases.py"


def parts(options: Options) -> Iterator[Part]:
    """Yield the parts of this piece: first the whole range without compilation, then the other variants, then the
    phases."""
    batches = (8,) if options.smoke else BATCHES
    for variant in VARIANTS[:1] if options.smoke else VARIANTS:
        for batch in batches:
            yield Part(f"{variant}, batch {batch}", lambda variant=variant, batch=batch: speed(options, variant, batch))
    for batch in batches:
        yield Part(f"phases, batch {batch}", lambda batch=batch: phases(options, batch))


def speed(options: Options, variant: str, batch: int) -> Result:
    """Measure images per second."""
    recipe = replace(on_device(RECIPES["cifar10"], options.device), batch_size=batch)
    recipe = tiny(recipe) if options.smoke else recipe
    training = Training(recipe, random_images(4 * batch if options.smoke else 50_000, 32), variant)
    warmup, count = (2, 4) if options.smoke else (30, max(40, 51_200 // batch))
    return {"variant": variant, "batch": batch, "precision": recipe.machine.precision} | training.time(
        warmup=warmup, count=count
    )


def phases(options: Options, batch: int) -> Result:
    """Measure the phases of a step of `fullrank.pretrain`, in another process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "phases.json"
        recipe = (
            ["--recipe", "cifar10-projectors", "--steps", "2"]
            if options.smoke
            else ["--recipe", "cifar10", "--steps", "40"]
        )
        precision = "bf16-mixed" if options.device.type == "cuda" else "32-true"
        command = [
            str(PHASES),
            *recipe,
            "--device",
            options.device.type,
            "--batch",
            str(batch),
            "--precision",
            precision,
        ]
        run_script([*command, "--rounds", "1", "--epochs", "200", "--out", str(out)])
        found = json.loads(out.read_text())
    now = found["revisions"]["now"]
    return {
        "batch": batch,
        "columns": found["columns"],
        **{key: now[key] for key in ("milliseconds", "step_milliseconds", "outside_the_network")},
    }


def run_script(arguments: list[str]) -> None:
    """Run a script of the benchmarks in another process, and raise its last lines if it fails."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{Path(arguments[0]).name} ended with status {done.returncode}: {done.stderr[-1500:]}")


def rows(results: dict[str, Result]) -> list[list[str]]:
    """Return the rows of the printed table."""
    table = []
    for name, result in results.items():
        if speed := result.get("images_per_second"):
            share = result.get("share_of_peak")
            extra = [
                f"{result['milliseconds_per_step']} ms a step",
                f"{share:.1%} of peak" if share else f"{result['teraflops']} TFLOP/s",
            ]
            memory = f"{result['peak_memory_gib']} GiB" if "peak_memory_gib" in result else ""
            table.append(
                [
                    name,
                    f"{speed:,.0f} images/s",
                    ", ".join(filter(None, [*extra, memory, f"warm-up {result['warm_up_seconds']} s"])),
                ]
            )
        elif steps := result.get("step_milliseconds"):
            top = sorted(result["milliseconds"].items(), key=lambda item: -item[1][0])[:6]
            table.append([name, f"{steps[0]} ms a step", ", ".join(f"{phase} {ms[0]:.2f}" for phase, ms in top)])
        else:
            table.append([name, "FAILED", str(result.get("error"))[:160]])
    return table
