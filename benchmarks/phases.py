"""Measure what each phase of a training step costs: batch, views, network, objective, optimizer, probe, log, spectrum
evaluation.

    python benchmarks/phases.py                                # two minutes: `fullrank pretrain cifar10-small` of the working tree
    python benchmarks/phases.py --against b69ce31              # also an older revision; the processes of both alternate
    python benchmarks/phases.py --device cuda --batch 512      # on a GPU, with CUDA events

Each process runs `fullrank.pretrain` on random images and measures its functions from outside: a phase begins when a
function is entered and ends when it returns, so the phases add up to the whole step. A nested function takes its time
from the function around it. On a GPU an event is recorded at each boundary, and the events are read after the last
step, so the measurement waits for nothing; a phase there is the time on the device's stream, and "launch" is the time
in which the host has queued the work of the step.

The number of a phase is the median over the steps in which it occurs, times the share of these steps. Spectrum
evaluations are those that `plan_evaluations` plans for a run of `--epochs` on 50,000 images. "CPU" counts the seconds
of all threads, which other processes hardly change; "wall" is the time that passes. Writes `results/phases.json`.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "benchmarks" / "results" / "phases.json"
IMAGES = 50_000  # images of the run whose spectrum evaluations are planned
WARMUP = 5  # steps that are not counted
NETWORK = ("network forward", "network backward")
ORDER = (
    *("batch", "views", *NETWORK, "objective forward", "objective backward", "optimizer", "probe"),
    *("log", "host sync", "spectrum evaluation", "rest"),
)
EVALUATION = "spectrum evaluation"
OPAQUE = {EVALUATION, "checkpoint"}  # phases whose nested functions count as part of them


class Stopwatch:
    """The times of nested phases, step by step."""

    def __init__(self, device: str) -> None:
        self.cuda, self.stack = device == "cuda", ["rest"]
        self.marks: list[tuple[int, str, tuple[Any, ...]]] = []  # (step, phase that ends here, clocks)
        self.step = 0

    def mark(self) -> None:
        """End the current phase."""
        clocks: tuple[Any, ...] = (time.perf_counter(), time.process_time())
        if self.cuda:
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            clocks = (event, time.perf_counter())
        self.marks.append((self.step, self.stack[-1], clocks))

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.stack[-1] in OPAQUE:
            yield
            return
        self.mark()
        self.stack.append(name)
        try:
            yield
        finally:
            self.mark()
            self.stack.pop()

    def switch(self, name: str) -> None:
        """End the current phase, and begin another in its place."""
        if self.stack[-1] != name:
            self.mark()
            self.stack[-1] = name

    def wrap(self, owner: Any, name: str, phase: str, around: Callable[..., Any] | None = None) -> Any:
        """Return a patch of a function that measures it."""
        function = around or getattr(owner, name)

        @wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            with self.phase(phase):
                return function(*args, **kwargs)

        return mock.patch.object(owner, name, measured)

    def seconds(self) -> list[dict[str, list[float]]]:
        """Return, for each step, phase → [wall, CPU] seconds; on a GPU [device, launch]."""
        steps: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
        for (_, _, before), (step, phase, after) in zip(self.marks, self.marks[1:], strict=False):
            first = before[0].elapsed_time(after[0]) / 1000 if self.cuda else after[0] - before[0]
            steps[step][phase][0] += first
            steps[step][phase][1] += after[1] - before[1]
        return [dict(steps[step]) for step in sorted(steps)]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run `pretrain` in this process, and return the seconds of its phases."""
    import torch

    torch.set_num_threads(options.threads)
    import fullrank.run.data
    import fullrank.run.pretrain
    from fullrank.evaluation import OnlineProbe
    from fullrank.methods import Method
    from fullrank.recipes import RECIPES
    from fullrank.run.data import SeededBatches
    from fullrank.run.evaluation_plan import plan_evaluations
    from fullrank.run.precision import resolve_precision
    from fullrank.run.logger import RunLogger
    from fullrank.training import fit as fit_function
    from fullrank.views import MultiViewTransform

    fit_module = sys.modules[fit_function.__module__]
    watch = Stopwatch(options.device)
    recipe = RECIPES[options.recipe]
    batch = options.batch or recipe.batch_size
    steps = WARMUP + options.steps
    mean, std = ((value,) * recipe.data.channels for value in (0.5, 0.25))
    recipe = replace(
        recipe,
        epochs=1,
        batch_size=batch,
        checkpoints=1,
        data=replace(recipe.data, mean=mean, std=std),
        machine=replace(
            recipe.machine, accelerator=options.device, precision=options.precision, compile=options.compile
        ),
    )
    side = max(view.size for view in recipe.views)
    count = math.ceil(steps * batch / 0.8) + 10  # `pretrain` holds out a fifth of them
    images = torch.randint(
        256, (count, recipe.data.channels, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    plans = []

    def plan(cost: Any, **numbers: Any) -> Any:
        """Plan the evaluations of a long run, and evaluate a few times in the short run."""
        long = plan_evaluations(cost, **numbers | {"steps": IMAGES // batch * options.epochs, "available": IMAGES // 5})
        plans.append(long)
        return replace(long, samples=min(long.samples, numbers["available"]), every=max(steps // 3, 1))

    forward = fit_module.forward_micro_batches

    def forward_and_backward(*args: Any, **kwargs: Any) -> Any:
        with watch.phase(NETWORK[0]):
            local, backward = forward(*args, **kwargs)
        for Z in local.values():
            if Z.requires_grad:  # the gradient of the objective is complete when it reaches an embedding
                Z.register_hook(lambda _: watch.switch(NETWORK[1]))

        def measured(loss: Any) -> None:
            with watch.phase("objective backward"):
                backward(loss)

        return local, measured

    build_optimizer = fullrank.run.pretrain.build_optimizer

    def build(*args: Any) -> Any:
        optimizer = build_optimizer(*args)
        for name in ("step", "zero_grad"):
            watch.wrap(optimizer, name, "optimizer").start()
        return optimizer

    after_step = RunLogger.after_step

    def after(self: Any, *args: Any, **kwargs: Any) -> None:
        after_step(self, *args, **kwargs)
        watch.mark()
        watch.step += 1

    patches = [
        mock.patch.object(fullrank.run.data, "plan_evaluations", plan),
        mock.patch.object(fit_module, "forward_micro_batches", forward_and_backward),
        mock.patch.object(fullrank.run.pretrain, "build_optimizer", build),
        mock.patch.object(RunLogger, "after_step", after),
        *(watch.wrap(MultiViewTransform, name, "views") for name in ("__call__", "augment", "make_params")),
        watch.wrap(SeededBatches, "__next__", "batch"),
        watch.wrap(Method, "terms", "objective forward"),
        watch.wrap(OnlineProbe, "step", "probe"),
        watch.wrap(RunLogger, "log_train", "log"),
        watch.wrap(RunLogger, "read_terms", "host sync"),
        watch.wrap(RunLogger, "check_weights", EVALUATION),
        watch.wrap(RunLogger, "evaluate_spectrum", EVALUATION),
        watch.wrap(RunLogger, "save_checkpoint", "checkpoint"),
    ]
    for patch in patches:
        patch.start()
    from rich.console import Console

    with tempfile.TemporaryDirectory() as folder:
        run = fullrank.run.pretrain.pretrain(recipe, images, out=Path(folder) / "run", console=Console(quiet=True))
        used = run.recipe
    if watch.cuda:
        torch.cuda.synchronize()
    evaluations = 1 + math.ceil(IMAGES // batch * options.epochs / plans[0].every)
    return {
        "seconds": watch.seconds()[WARMUP:],
        "batch": batch,
        "precision": resolve_precision(used),
        "evaluations_per_step": evaluations / (IMAGES // batch * options.epochs),
        "evaluations": evaluations,
        "images_per_evaluation": plans[0].samples,
    }


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the cost of each phase per step, from the runs of one revision."""
    steps = [step for run in runs for step in run["seconds"]]
    names = [name for name in ORDER if any(name in step for step in steps)]
    names += sorted({name for step in steps for name in step} - {*names, "checkpoint"})
    phases = {}
    for name in names:
        found = [step[name] for step in steps if name in step]
        share = runs[0]["evaluations_per_step"] if name == EVALUATION else len(found) / len(steps)
        phases[name] = [share * statistics.median(column) for column in zip(*found, strict=True)]
    total = [sum(column) for column in zip(*phases.values(), strict=True)]
    network = [sum(phases[name][k] for name in NETWORK) for k in (0, 1)]
    return {name: runs[0][name] for name in ("batch", "precision", "evaluations", "images_per_evaluation")} | {
        "milliseconds": {name: [round(1000 * value, 3) for value in values] for name, values in phases.items()},
        "step_milliseconds": [round(1000 * value, 2) for value in total],
        "outside_the_network": [round(1 - network[k] / total[k], 4) for k in (0, 1)],
        "steps_measured": len(steps),
    }


def child(source: Path, arguments: list[str]) -> dict[str, Any]:
    """Measure the package in `source` in a new process."""
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, __file__, "--child", *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Check out an older revision beside the working tree, as long as the context lasts."""
    git = partial(subprocess.run, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree"
        git(["git", "worktree", "add", "--detach", str(path), revision])
        try:
            yield path / "src"
        finally:
            git(["git", "worktree", "remove", "--force", str(path)])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10-small")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch", type=int, default=0, help="images per step; 0: those of the recipe")
    parser.add_argument("--steps", type=int, default=20, help="measured steps of a process")
    parser.add_argument(
        "--epochs", type=int, default=1, help="length of the run whose spectrum evaluations are planned"
    )
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=2, help="processes of each revision; they alternate")
    parser.add_argument("--against", help="an older revision, measured with the same script")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    if options.child:
        print(json.dumps(measure(options)))
        return
    arguments = [argument for argument in sys.argv[1:] if argument != "--child"]
    with checkout(options.against) if options.against else nullcontext(Path()) as older:
        sources = {"now": ROOT / "src"} | ({options.against: older} if options.against else {})
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
        for _ in range(options.rounds):
            for name, source in sources.items():
                runs[name].append(child(source, arguments))
                print(name, summarize(runs[name][-1:])["step_milliseconds"], flush=True)
    found = {name: summarize(each) for name, each in runs.items()}
    import torch

    import timing
    from fullrank.run import write_json

    torch.set_num_threads(options.threads)
    columns = ["device", "launch"] if options.device == "cuda" else ["wall", "CPU"]
    settings = {name: value for name, value in vars(options).items() if name not in ("out", "child", "threads")}
    write_json(
        options.out, {"columns": columns, "revisions": found, "environment": timing.environment("timm", **settings)}
    )
    for name, values in found.items():
        print(
            f"\n{name}: {values['step_milliseconds']} ms a step ({columns}), outside the network {values['outside_the_network']}"
        )
        for phase, numbers in values["milliseconds"].items():
            shares = [
                f"{number:9.2f} ms {number / total:6.1%}"
                for number, total in zip(numbers, values["step_milliseconds"], strict=True)
            ]
            print(f"  {phase:20s}", *shares)


if __name__ == "__main__":
    main()
