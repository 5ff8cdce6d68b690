"""Correctness on a GPU: the tests marked `gpu`, and checks with numbers: objectives, views, bfloat16, compilation,
resume, alarm, waiting.

Each check returns what it measured, with `passed`. On a machine without a GPU, the same checks compare the CPU with
itself.
"""

import copy
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import fullrank
from benchmarks.gpu.parts import Options, Part, Result
from benchmarks.gpu.training import Training, for_random_images, on_device, random_images, tiny, without_waiting
from fullrank.methods import BackboneConfig, ProjectorConfig
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES, MachineConfig, Recipe, SpectrumConfig, assemble, with_objective
from fullrank.run import Run
from fullrank.run.processes import launch_fabric
from fullrank.run.precision import resolve_precision
from fullrank.run.logger import RunLogger
from fullrank.testing.objective_case import objective_case, value_and_grad
from fullrank.training import OptimizerConfig
from fullrank.views import BlurConfig, JitterConfig, MultiViewTransform, ViewConfig

ROOT = Path(__file__).parents[2]
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Type → largest difference of value and gradients, relative to the largest gradient and to the sum of the terms. A run
computes its objective in float32; bfloat16 embeddings are converted to float32 first, so both devices see the same
numbers."""
QUIET = Console(quiet=True)


def parts(options: Options) -> Iterator[Part]:
    """Yield the parts of this piece."""
    yield Part("pytest -m gpu", lambda: pytest_gpu(options))
    for name in OBJECTIVES:
        yield Part(f"objective {name}", lambda name=name: check_objective(name, options.device, smoke=options.smoke))
    for name, check in CHECKS.items():
        yield Part(name, lambda check=check: check(options.device))


def pytest_gpu(options: Options) -> Result:
    """Run the tests marked `gpu`, except those that are the other parts of this piece.

    Only the files that have such tests are imported, because others need more packages.
    """
    if importlib.util.find_spec("pytest") is None:
        return {"passed": None, "note": "pytest is not installed; the other parts of this piece are the same checks"}
    files = [
        path
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text() and path.name != "test_benchmark.py"
    ]
    # The options of pyproject.toml need plug-ins that may be missing, and make errors of the warnings of other versions
    # of torch.
    command = [
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
    ]
    command += ["-o", "filterwarnings=default", *(["--collect-only"] if options.smoke else []), *map(str, files)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    last = re.sub(r"/\d+ tests", "", lines[-1] if lines else "")  # "20/300 tests collected" in a smoke test
    counts = {
        kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|errors?|skipped|collected)", last)
    }
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1):
        failed.append(done.stderr[-2000:])
    return {
        "passed": done.returncode == 0,
        "counts": counts,
        "failed": failed,
        "files": len(files),
        "output": lines[-40:] if failed else [],
    }


def check_objective(name: str, device: torch.device, *, smoke: bool = False) -> Result:
    """Compare value and gradients of an objective on the device with those on the CPU, from the same tensors."""
    case = objective_case(OBJECTIVES[name], hyper={"d0": 8} if name.startswith("directclr") else None)
    g = torch.Generator().manual_seed(0)
    tensors = case.random_tensors(g, **({"N": 16, "D": 8} if smoke or name == "corinfomax" else {"N": 256, "D": 64}))
    found, passed = {}, True
    for dtype, tolerance in TOLERANCES.items():
        rounded = {key: t.to(dtype) for key, t in tensors.items()}
        working = torch.float32 if dtype == torch.bfloat16 else dtype
        cpu = value_and_grad(case, rounded, dtype=working)
        gpu = value_and_grad(case, {key: t.to(device) for key, t in rounded.items()}, dtype=working)
        largest = max(t.abs().max().item() for t in cpu.gradients.values())
        value = abs(gpu.loss.item() - cpu.loss.item()) / cpu.scale
        gradient = max((gpu.gradients[key].cpu() - t).abs().max().item() for key, t in cpu.gradients.items()) / max(
            largest, 1e-300
        )
        ok = value <= tolerance and gradient <= tolerance
        found[str(dtype).removeprefix("torch.")] = {"value": value, "gradient": gradient, "passed": ok}
        passed &= ok
    return {"passed": passed, "relative_differences": found}


def check_views(device: torch.device) -> Result:
    """Compare the views of the device with those of the CPU."""
    config = ViewConfig(
        size=32,
        jitter=JitterConfig(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2),
        blur=BlurConfig(probability=0.5),
    )
    views = MultiViewTransform(config, mean=(0.5,) * 3, std=(0.25,) * 3, channels=3)
    images, params = random_images(64, 32).pixels, views.make_params(0, 0, 64)
    ours, theirs = views(images.to(device), params)[0].cpu(), views(images, params)[0]
    differing = (
        ((ours - theirs).abs() > 1e-2).double().mean().item()
    )  # a hue at the border of two sectors, or a pixel at a threshold
    return {
        "passed": differing < 0.005,
        "share_of_differing_pixels": differing,
        "largest_difference": (ours - theirs).abs().max().item(),
    }


def check_bfloat16(device: torch.device) -> Result:
    """Compare a step in bfloat16 with one in float32: the loss, and the direction of the gradient of all weights."""
    losses, gradients = zip(
        *(one_step(device, precision=precision) for precision in ("32-true", "bf16-mixed")), strict=True
    )
    cosine = torch.cosine_similarity(*gradients, dim=0).item()
    difference = abs(losses[1] - losses[0]) / abs(losses[0])
    finite = bool(gradients[1].isfinite().all())
    return {
        "passed": finite and cosine > 0.9 and difference < 0.05,
        "cosine_of_gradients": cosine,
        "relative_difference_of_loss": difference,
    }


def check_compile(device: torch.device) -> Result:
    """Compare a step of the compiled method with one of the eager method, in float32."""
    backend = {} if device.type == "cuda" else {"backend": "aot_eager"}
    (eager, g), (compiled, h) = (one_step(device, compile=options) for options in (None, backend))
    cosine, difference = torch.cosine_similarity(g, h, dim=0).item(), abs(compiled - eager) / abs(eager)
    return {
        "passed": cosine > 0.999 and difference < 1e-3,
        "cosine_of_gradients": cosine,
        "relative_difference_of_loss": difference,
    }


def one_step(
    device: torch.device, *, precision: str = "32-true", compile: dict[str, Any] | None = None
) -> tuple[float, torch.Tensor]:
    """Return the loss and the gradient of all weights at the initial weights."""
    recipe = for_random_images(on_device(tiny(RECIPES["cifar10"]), device, precision=precision))
    fabric, parts = launch_fabric(recipe), assemble(recipe)
    method = parts.method.to(device)
    if compile is not None:
        method.compile(**compile)
    wrapped = fabric.setup_module(method)
    views = parts.views(random_images(128, 32).pixels.to(device), parts.views.make_params(0, 0, 128))
    embeddings = wrapped(views)
    loss = sum(method.terms(embeddings).values())
    assert isinstance(loss, torch.Tensor)
    fabric.backward(loss)
    return loss.item(), torch.cat([p.grad.flatten().cpu() for p in method.parameters() if p.grad is not None])


def check_resume(device: torch.device) -> Result:
    """Compare a run that is cut and resumed with one that is not: bit for bit with deterministic kernels, and as a
    user's run."""
    found = {}
    before = torch.backends.cudnn.deterministic
    modes = {"deterministic": True, "as a user's run": False} if device.type == "cuda" else {"deterministic": True}
    for name, deterministic in modes.items():
        torch.backends.cudnn.deterministic = deterministic
        try:
            with tempfile.TemporaryDirectory() as folder:
                whole, cut = (Run(Path(folder) / name) for name in ("whole", "cut"))
                fullrank.pretrain(small_run(device), out=whole.path, console=QUIET)
                cut_run(small_run(device), cut.path, after=13)
                fullrank.pretrain(resume=cut.path, console=QUIET)
                one, other = (run.checkpoint().weights() for run in (whole, cut))
                difference = max((one[key].double() - other[key].double()).abs().max().item() for key in one)
                found[name] = {
                    "bit_for_bit": all(torch.equal(one[key], other[key]) for key in one),
                    "largest_difference": difference,
                }
        finally:
            torch.backends.cudnn.deterministic = before
    return {"passed": found["deterministic"]["bit_for_bit"]} | found


def check_alarm(device: torch.device) -> Result:
    """Plant a collapse (the invariance alone, with large steps) and require the alarm; a healthy run must raise none of
    a collapse."""
    healthy = replace(small_run(device), epochs=6)
    planted = replace(
        with_objective(healthy, "vicreg"),
        hyper={"invariance": 25.0, "variance": 0.0, "covariance": 0.0},
        optimizer=OptimizerConfig(
            name="adamw", lr=0.3
        ),  # a hundred times that of the recipe; collapses within ten steps
    )
    alarms = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe in (("healthy", healthy), ("planted", planted)):
            run = fullrank.pretrain(recipe, out=Path(folder) / name, console=QUIET)
            alarms[name] = [f"step {row.step}: {row.alarm}, {row.where}" for row in run.metrics.alarms]
    caught = {name: any("collapse" in alarm for alarm in found) for name, found in alarms.items()}
    return {"passed": caught == {"healthy": False, "planted": True}, "alarms": alarms}


def check_waiting(device: torch.device) -> Result:
    """Take the steps of a run without waiting for the GPU, except every `log_every` steps; only a GPU can judge it
    here."""
    recipe = replace(small_run(device), epochs=1)
    with tempfile.TemporaryDirectory() as folder:
        if device.type != "cuda":
            from benchmarks.gpu.syncs import SyncCounter, training_loop

            counter = SyncCounter()
            with training_loop(counter):
                fullrank.pretrain(recipe, out=Path(folder) / "run", console=QUIET)
            return {"passed": not counter.counts, "counted": dict(counter.counts)}
        with without_waiting():
            fullrank.pretrain(recipe, out=Path(folder) / "run", console=QUIET)
    return {"passed": True}


def check_choice(device: torch.device) -> Result:
    """Require that a recipe without settings uses the GPU, in bfloat16 where the GPU has it."""
    recipe = replace(Recipe(), machine=MachineConfig())
    found, precision = launch_fabric(recipe).device.type, resolve_precision(recipe)
    expected = "bf16-mixed" if device.type == "cuda" and torch.cuda.is_bf16_supported() else precision
    return {"passed": found == device.type and precision == expected, "device": found, "precision": precision}


def check_memory(device: torch.device) -> Result:
    """Require that steps after the first ones need no more memory: nothing of a step is kept."""
    if device.type != "cuda":
        return {"passed": None, "note": "measured on a GPU only"}
    training = Training(on_device(replace(tiny(RECIPES["cifar10"]), batch_size=128), device), random_images(512, 32))
    used = []
    for _ in range(3):
        for _ in training.steps(20):
            pass
        used.append(torch.cuda.memory_allocated())
    return {"passed": used[2] <= used[1], "bytes": used}


CHECKS: dict[str, Callable[[torch.device], Result]] = {
    "views": check_views,
    "bfloat16": check_bfloat16,
    "compile": check_compile,
    "resume": check_resume,
    "alarm": check_alarm,
    "waiting": check_waiting,
    "choice of the device": check_choice,
    "memory": check_memory,
}


def small_run(device: torch.device) -> Recipe:
    """Return a recipe of 22 steps on the digits."""
    return replace(
        RECIPES["digits"],
        epochs=2,
        backbone=BackboneConfig(
            name="resnet18", arguments={"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1]}, stem="small"
        ),
        projector=ProjectorConfig(widths=(32, 24)),
        checkpoints=4,
        spectrum=SpectrumConfig(samples=100),
        machine=MachineConfig(accelerator=device.type),
    )


class PowerCut(BaseException):
    """Ends a run like the death of its process: with its log, and without a checkpoint of its last step."""


def cut_run(recipe: Recipe, path: Path, *, after: int) -> None:
    """Train, and stop after a step."""
    after_step = RunLogger.after_step

    def cut(self: RunLogger, step: Any, **options: Any) -> None:
        after_step(self, step, **options)
        if step.step == after:
            raise PowerCut

    RunLogger.after_step = cut  # pyright: ignore[reportAttributeAccessIssue]
    try:
        fullrank.pretrain(copy.deepcopy(recipe), out=path, console=QUIET)
    except PowerCut:
        pass
    finally:
        RunLogger.after_step = after_step


def rows(results: dict[str, Result]) -> list[list[str]]:
    """Return the rows of the printed table."""
    table = []
    if tests := results.get("pytest -m gpu"):
        table.append(
            ["pytest -m gpu", verdict(tests), ", ".join(f"{n} {kind}" for kind, n in tests.get("counts", {}).items())]
        )
    objectives = {name: result for name, result in results.items() if name.startswith("objective ")}
    if objectives:
        wrong = [name.removeprefix("objective ") for name, result in objectives.items() if not result.get("passed")]
        differences = [r["relative_differences"] for r in objectives.values() if "relative_differences" in r]
        worst = {
            dtype: max(d[dtype]["gradient"] for d in differences) for dtype in (differences[0] if differences else {})
        }
        text = "largest difference of a gradient: " + ", ".join(
            f"{dtype} {value:.0e}" for dtype, value in worst.items()
        )
        table.append([f"{len(objectives)} objectives", "FAILED: " + ", ".join(wrong) if wrong else "passed", text])
    for name in CHECKS:
        if result := results.get(name):
            facts = {key: value for key, value in result.items() if key not in ("passed", "seconds", "error")}
            table.append([name, verdict(result), str(result.get("error") or facts)[:160]])
    return table


def verdict(result: Result) -> str:
    """Return one word."""
    return "passed" if result.get("passed") else "not run" if result.get("passed", False) is None else "FAILED"
