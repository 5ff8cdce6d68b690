"""Correctness on a GPU: the tests marked `gpu`, and checks with numbers: objectives, views, bfloat16, compilation,
resume, alarm, waiting.

Each check returns what it measured, with `passed`. On a machine without a GPU, the same checks compare the CPU with
itself.
"""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from torch import Tensor

import fullrank
from benchmarks.gpu.parts import Options, Part, Result, Results
from benchmarks.gpu.syncs import SyncCounter, training_loop, without_waiting
from benchmarks.gpu.training import Training, for_random_images, on_device, random_images, tiny
from fullrank.objectives import OBJECTIVES
from fullrank.recipes import RECIPES, MachineConfig, Recipe, SpectrumConfig, assemble, with_objective
from fullrank.run import Run
from fullrank.run.logger import RunLogger
from fullrank.run.precision import resolve_precision
from fullrank.run.processes import launch_fabric
from fullrank.testing.case import objective_case, value_and_grad
from fullrank.training import OptimizerConfig
from fullrank.views import BlurConfig, JitterConfig, MultiViewTransform, ViewConfig

ROOT = Path(__file__).parents[2]
TOLERANCES = {torch.float64: 1e-8, torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Type → largest difference of value and gradients, relative to the largest gradient and to the sum of the terms. A run
computes its objective in float32; bfloat16 embeddings are converted to float32 first, so both devices see the same
numbers."""
QUIET = Console(quiet=True)


def parts(options: Options, results: Results) -> Iterator[Part]:
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
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    files = [str(path) for path in tests if "mark.gpu" in path.read_text() and path.name != "test_benchmark.py"]
    # The options of pyproject.toml need plug-ins that may be missing, and make errors of other versions' warnings.
    flags = ["-m", "gpu", "-q", "-rfE", "-o", "addopts=--import-mode=importlib", "-o", "filterwarnings=default"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, *(["--collect-only"] if options.smoke else []), *files],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    output = [*lines[-40:], done.stderr[-2000:]] if done.returncode else []
    return {"passed": done.returncode == 0, "summary": lines[-1:], "output": output}


def check_objective(name: str, device: torch.device, *, smoke: bool = False) -> Result:
    """Compare value and gradients of an objective on the device with those on the CPU, from the same tensors."""
    case = objective_case(OBJECTIVES[name], hyper={"d0": 8} if name.startswith("directclr") else None)
    tensors = case.random_tensors(**({"N": 16, "D": 8} if smoke or name == "corinfomax" else {"N": 256, "D": 64}))
    found, passed = {}, True
    for dtype, tolerance in TOLERANCES.items():
        rounded = {key: t.to(dtype) for key, t in tensors.items()}
        working = torch.float32 if dtype == torch.bfloat16 else dtype
        cpu = value_and_grad(case, rounded, dtype=working)
        gpu = value_and_grad(case, {key: t.to(device) for key, t in rounded.items()}, dtype=working)
        largest = max(t.abs().max().item() for t in cpu.gradients.values()) or 1e-300
        value = abs(gpu.loss.item() - cpu.loss.item()) / cpu.scale
        gradient = max((gpu.gradients[key].cpu() - t).abs().max().item() for key, t in cpu.gradients.items()) / largest
        ok = value <= tolerance and gradient <= tolerance
        found[str(dtype).removeprefix("torch.")] = {"value": value, "gradient": gradient}
        passed &= ok
    return {"passed": passed, "relative_differences": found}


def check_views(device: torch.device) -> Result:
    """Compare the views of the device with those of the CPU."""
    jitter = JitterConfig(brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    config = ViewConfig(size=32, jitter=jitter, blur=BlurConfig(probability=0.5))
    views = MultiViewTransform(config, mean=(0.5,) * 3, std=(0.25,) * 3, channels=3)
    images, params = random_images(64, 32).pixels, views.make_params(0, 0, 64)
    ours, theirs = views(images.to(device), params)[0].cpu(), views(images, params)[0]
    # A few pixels differ: a hue at the border of two sectors, or a pixel at a threshold.
    differing = ((ours - theirs).abs() > 1e-2).double().mean().item()
    return {"passed": differing < 0.005, "share_of_differing_pixels": differing}


def check_bfloat16(device: torch.device) -> Result:
    """Compare a step in bfloat16 with one in float32: the loss, and the direction of the gradient of all weights."""
    return compare_steps(one_step(device), one_step(device, precision="bf16-mixed"), cosine=0.9, loss=0.05)


def check_compile(device: torch.device) -> Result:
    """Compare a step of the compiled method with one of the eager method, in float32."""
    backend = {} if device.type == "cuda" else {"backend": "aot_eager"}
    return compare_steps(one_step(device), one_step(device, compile=backend), cosine=0.999, loss=1e-3)


def compare_steps(a: tuple[float, Tensor], b: tuple[float, Tensor], *, cosine: float, loss: float) -> Result:
    """Require that the gradients have at least this cosine, and the losses at most this relative difference."""
    found, difference = torch.cosine_similarity(a[1], b[1], dim=0).item(), abs(b[0] - a[0]) / abs(a[0])
    numbers = {"cosine_of_gradients": found, "relative_difference_of_loss": difference}
    return {"passed": found > cosine and difference < loss} | numbers  # NaN fails


def one_step(
    device: torch.device, *, precision: str = "32-true", compile: dict[str, Any] | None = None
) -> tuple[float, Tensor]:
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
    """Compare a run that is cut and resumed with one that is not, bit for bit with deterministic kernels."""
    with tempfile.TemporaryDirectory() as folder, torch.backends.cudnn.flags(deterministic=True):
        whole, cut = (Run(Path(folder) / name) for name in ("whole", "cut"))
        fullrank.pretrain(small_run(device), out=whole.path, console=QUIET)
        cut_run(small_run(device), cut.path, after=13)
        fullrank.pretrain(resume=cut.path, console=QUIET)
        one, other = (run.checkpoint().weights() for run in (whole, cut))
    difference = max((one[key].double() - other[key].double()).abs().max().item() for key in one)
    return {"passed": difference == 0, "largest_difference": difference}


def check_alarm(device: torch.device) -> Result:
    """Plant a collapse (the invariance alone, with large steps) and require the alarm; a healthy run must raise none of
    a collapse."""
    healthy = replace(small_run(device), epochs=6)
    planted = replace(
        with_objective(healthy, "vicreg"),
        hyper={"invariance": 25.0, "variance": 0.0, "covariance": 0.0},
        optimizer=OptimizerConfig(name="adamw", lr=0.3),  # a hundred times that of the recipe; collapses in ten steps
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
    expected = (
        "bf16-mixed" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else precision
    )
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
    digits = RECIPES["digits"]
    settings = {"epochs": 2, "checkpoints": 4, "spectrum": SpectrumConfig(samples=100)}
    machine = MachineConfig(accelerator=device.type)
    return replace(tiny(digits), batch_size=digits.batch_size, machine=machine, **settings)


class PowerCut(BaseException):
    """Ends a run like the death of its process: with its log, and without a checkpoint of its last step."""


def cut_run(recipe: Recipe, path: Path, *, after: int) -> None:
    """Train, and stop after a step."""
    after_step = RunLogger.after_step

    def cut(self: RunLogger, step: Any, **options: Any) -> None:
        after_step(self, step, **options)
        if step.step == after:
            raise PowerCut

    with mock.patch.object(RunLogger, "after_step", cut), suppress(PowerCut):
        fullrank.pretrain(recipe, out=path, console=QUIET)


def row(result: Result) -> str:
    """Return the text of a result."""
    verdict = {True: "passed", None: "not run"}.get(result["passed"], "FAILED")
    facts = {key: value for key, value in result.items() if key not in ("passed", "seconds")}
    return f"{verdict}: {facts}"[:200]
