"""A whole run, from recipe to run directory: probe, watch, log, checkpoints and signals around the generator of `training`."""

import errno
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import TypeVar

import torch
from lightning.fabric import Fabric
from rich.console import Console

from fullrank.atomic import atomic_write
from fullrank.data import TrainingData, batches_of, prepare, write_preview
from fullrank.distributed import all_gather_object, all_reduce_max, convert_sync_batchnorm, rank
from fullrank.errors import Interrupted, UserError, pick
from fullrank.evaluation import OnlineProbe
from fullrank.launch import launch_fabric, resolve_devices, stop_on_signals
from fullrank.launch.devices import launched_world_size, resolve_precision
from fullrank.launch.launcher import run_workers
from fullrank.launch.messages import Task
from fullrank.methods import Method, TrainingLength, feature_dim
from fullrank.monitoring.null_logger import NullLogger
from fullrank.monitoring.progress import Waiting
from fullrank.monitoring.run_logger import RunLogger
from fullrank.recipes import RECIPES, Assembly, Recipe, check, differences, read_recipe, to_dict, with_devices
from fullrank.run import Run, create, describe, resume_command, run_lock, write_json
from fullrank.run.directory import validate_output_dir
from fullrank.terminal import stderr
from fullrank.training import Checkpoint, build_optimizer, fit, lr_factor
from fullrank.training.memory import within_memory
from fullrank.views.augmentation_params import mix

T = TypeVar("T")
DROPOUT = 1  # a word of its own beside seed and step, so that a network's dropout is not drawn from the numbers of the views


def pretrain(
    recipe: Recipe | str | None = None,
    data: str | None = None,
    out: str | Path | None = None,
    *,
    resume: str | Path | None = None,
    overwrite: bool = False,
    devices: int | None = None,
    wandb: bool = False,
    console: Console | None = None,
) -> Run:
    """Pretrain a backbone on unlabelled images and return the run.

    On several devices, one process trains on each: those that torchrun has started already, or else those that this function starts.
    They take together the steps that one process would.

    Args:
        recipe: a `Recipe`, or the name of one in `RECIPES`; None only with `resume`.
        data: source of the images, in place of the recipe's own.
        out: run directory; None: the next free `runs/NAME`.
        resume: a run directory to continue from its newest checkpoint, bit for bit; a recipe given beside it has to be its own.
        overwrite: replace the run that `out` holds.
        devices: in place of the recipe's own number; a run may go on with another number than it began with.
        wandb: log to Weights & Biases too.
        console: where to print; None: standard error, where processes that are started here always print, unless the console is quiet.

    Raises:
        UserError: anything that the user can mend, in one line.
        Interrupted: SIGINT or SIGTERM; a checkpoint has been written.
        WorkerDied: one of several processes died.

    >>> import tempfile
    >>> from fullrank.methods import BackboneConfig, ProjectorConfig
    >>> small = replace(RECIPES["digits"], epochs=1, backbone=BackboneConfig(name="test_resnet"), projector=ProjectorConfig(widths=(16,)))
    >>> run = pretrain(small, out=tempfile.mkdtemp(), console=Console(quiet=True))
    >>> run.checkpoint().step, run.metrics[-1].kind
    (11, 'spectrum')
    """
    console = console or stderr()
    if resume is not None and (data is not None or out is not None or overwrite):
        raise UserError(f"a resumed run has its own images and folder, got resume={resume} with others; leave out data, out and overwrite")
    if isinstance(recipe, str):
        recipe = pick(recipe, RECIPES, "recipe")
    if resume is not None:
        out, recipe = resume, _own_recipe(Path(resume), recipe)
    elif recipe is None:
        raise UserError(f"no recipe, expected a Recipe or a name: {', '.join(RECIPES)}; to continue a run, give resume=RUN")
    elif data is not None:
        recipe = replace(recipe, data=replace(recipe.data, source=data))
    path = None if out is None else Path(out)
    recipe = resolve_devices(recipe, devices)
    check(recipe)
    if path is not None and resume is None:
        validate_output_dir(path, overwrite=overwrite)  # before the images are read
    if recipe.machine.devices == 1 or launched_world_size():
        return train_on_rank(recipe, path, resume=resume is not None, overwrite=overwrite, wandb=wandb, console=console)
    task = Task(
        recipe=to_dict(recipe),
        out=path and str(path),
        resume=resume is not None,
        overwrite=overwrite,
        wandb=wandb,
        quiet=console.quiet,
        argv=sys.argv,
    )
    return Run(run_workers(task, recipe.machine.devices))


def train_on_rank(
    recipe: Recipe,
    path: Path | None,
    *,
    resume: bool,
    overwrite: bool,
    wandb: bool,
    console: Console,
    announce: Callable[[Path], None] = lambda path: None,
) -> Run:
    """Train in this process, alone or as one of those that were started together.

    Args:
        recipe: checked, and placed on the processes that there are.
        path: of the run; None: the next free `runs/NAME`.
        resume: continue the run at `path`.
        overwrite: replace it.
        wandb: log to Weights & Biases too.
        console: where the first process prints.
        announce: told the path on the first process, before the first step.
    """
    fabric = launch_fabric(recipe)
    console = console if fabric.is_global_zero else Console(quiet=True)
    if resume:
        assert path is not None, "a run that is resumed is somewhere"
        if fabric.is_global_zero:
            announce(path)
        _continue(path, recipe, fabric, wandb=wandb, console=console)
        return Run(path)
    recipe, assembly, prepared = prepare(recipe, say=console.print)
    all_reduce_max(0)  # nothing is written before all have read their images
    path = all_gather_object(create(path, recipe.name, overwrite=overwrite) if fabric.is_global_zero else Path())[0]
    with _held(path):
        if fabric.is_global_zero:
            announce(path)
            write_json(path / "recipe.json", to_dict(recipe))
            write_json(path / "environment.json", describe(recipe))
            write_preview(path / "views.png", recipe, assembly.views, prepared)
        _train(path, recipe, assembly, prepared, fabric, start=None, wandb=wandb, console=console)
    return Run(path)


def preview(recipe: Recipe, out: Path | None = None, *, overwrite: bool = False, console: Console | None = None) -> Path:
    """Write a grid of images and their views, without training.

    Args:
        recipe: whose views.
        out: a PNG file; None: views.png here, which is replaced.
        overwrite: replace `out`.
        console: where to print; None: standard error.

    Raises:
        UserError: anything that the user can mend, in one line.
    """
    path = out or Path("views.png")
    if path.suffix != ".png":
        raise UserError(f"{path} ends in '{path.suffix}', expected a picture to write the views to; give a file that ends in .png")
    with atomic_write(path, overwrite=overwrite or out is None) as draft:
        recipe, assembly, prepared = prepare(recipe, say=(console or stderr()).print)
        write_preview(draft, recipe, assembly.views, prepared)
    return path


def _own_recipe(path: Path, recipe: Recipe | None) -> Recipe:
    """Return the recipe of a run, for the devices of the one beside it. Raises UserError where that is another in anything else."""
    stored = read_recipe(path / "recipe.json")
    if recipe is not None:
        measured = replace(recipe.data, mean=recipe.data.mean or stored.data.mean, std=recipe.data.std or stored.data.std)
        stored = with_devices(stored, recipe.machine.devices)
        if changes := differences(stored, replace(recipe, data=measured)):
            raise UserError(
                f"{path} was made with another recipe ({'; '.join(changes[:4])}); resume it without a recipe, or start a new run"
            )
    return stored


def _continue(path: Path, recipe: Recipe, fabric: Fabric, *, wandb: bool, console: Console) -> None:
    with _held(path):
        # A run that was stopped before its first checkpoint begins anew, and takes the steps that it took.
        checkpoint = Run(path).checkpoint() if Run(path).checkpoints else None
        meta = checkpoint.meta() if checkpoint else {}
        if checkpoint and meta.get("recipe") != recipe.fingerprint:
            raise UserError(
                f"checkpoint {checkpoint.path} belongs to another recipe than {path / 'recipe.json'}; restore that file, or start a new run"
            )
        same, assembly, prepared = prepare(recipe, say=console.print)
        if checkpoint and meta.get("images") != prepared.num_images:
            raise UserError(
                f"{path} was trained on {meta.get('images')} images, and {recipe.data.source} now has {prepared.num_images}; "
                "restore them, or start a new run"
            )
        _train(path, same, assembly, prepared, fabric, start=checkpoint, wandb=wandb, console=console)


@contextmanager
def _held(path: Path) -> Iterator[None]:
    """Let the first process hold the run directory, for all."""
    with run_lock(path) if rank() == 0 else nullcontext():
        yield


def _train(
    path: Path,
    recipe: Recipe,
    assembly: Assembly,
    data: TrainingData,
    fabric: Fabric,
    *,
    start: Checkpoint | None,
    wandb: bool,
    console: Console,
) -> None:
    """Run the recipe from `start`, or from the first step, to its end."""
    with _surroundings(path, recipe, fabric.device):
        bare = assembly.method
        convert_sync_batchnorm(bare)
        bare.to(fabric.device, torch.get_default_dtype())  # before its optimizer, whose state a resumed run loads beside the weights
        if recipe.machine.channels_last:
            bare.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        bare_optimizer = build_optimizer(recipe.optimizer, bare)
        probe = OnlineProbe(feature_dim(bare.backbone), data.K, lr=recipe.probe.lr).to(fabric.device)
        done = restore(start, bare, bare_optimizer, probe) if start else 0
        if recipe.machine.compile:
            bare.compile()
        method, optimizer = fabric.setup(bare, bare_optimizer)

        steps_per_epoch = data.num_images // recipe.batch
        total = recipe.epochs * steps_per_epoch
        bare.training_length = TrainingLength(steps_per_epoch, total)
        waiting = Waiting()
        batches = batches_of(recipe, assembly.views, data, fabric.device, start=done, stop=total)

        def learning_rate(step: int) -> float:
            return recipe.optimizer.lr * lr_factor(recipe.schedule, step, steps_per_epoch=steps_per_epoch, total=total)

        recorder = (
            RunLogger(path, recipe, fabric, bare, bare_optimizer, probe, data, done=done, total=total, wandb=wandb, console=console)
            if fabric.is_global_zero
            else NullLogger(recipe, data, total=total)
        )
        signum, reached = 0, done
        with recorder, stop_on_signals() as flag:
            if not done:
                recorder.watch(0)
            fed = waiting.over(seeded(batches, recipe.seed, done))
            micro_batch = recipe.machine.micro_batch
            steps = fit(fabric, method, optimizer, fed, learning_rate, start=done, micro_batch=micro_batch)
            for step in within_memory(steps, bare, recipe.batch // fabric.world_size, micro_batch):
                recorder.after(step, waited=waiting.seconds)
                reached = step.step
                if reached < total and (signum := all_reduce_max(flag.signum)):
                    recorder.checkpoint(reached)
                    break
        all_reduce_max(0)  # all leave together: a launcher would end those that are still writing when the first is gone
        if signum:
            raise Interrupted(signum, f"stopped after step {reached} of {total}; continue with: {resume_command(path)}")


@contextmanager
def _surroundings(path: Path, recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Set the global state that a run needs, and put it back: torch's generators, which a run seeds, and the default type of numbers.

    Fabric casts what a module returns to the default type, so that '64-true' without it is single precision.

    Raises:
        UserError: the disk is full, whichever file of the run met its end first.
    """
    dtype = torch.get_default_dtype()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.set_default_dtype(torch.float64 if resolve_precision(recipe) == "64-true" else torch.float32)
            yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(f"no space left for the run in {path}; free some, then continue with: {resume_command(path)}") from error
    finally:
        torch.set_default_dtype(dtype)


def restore(checkpoint: Checkpoint, method: Method, optimizer: torch.optim.Optimizer, probe: torch.nn.Module) -> int:
    """Load a checkpoint into method, optimizer and probe; return the number of steps it stands at.

    Raises:
        UserError: the checkpoint is damaged, or does not fit the recipe's networks.
    """
    weights, state = checkpoint.weights(), checkpoint.state()
    try:
        method.load_state_dict(weights)
        optimizer.load_state_dict(state["optimizer"])
        probe.load_state_dict(state["probe"])
    except (RuntimeError, KeyError, ValueError) as error:
        reason = shorten(str(error), 160, placeholder=" …")
        raise UserError(
            f"checkpoint {checkpoint.path} does not fit the run's recipe ({reason}); restore both, or start a new run"
        ) from error
    return checkpoint.step


def seeded(batches: Iterable[T], seed: int, start: int) -> Iterator[T]:
    """Seed torch's global generator before each step, so that a network's own dropout is a function of (seed, step, rank) too."""
    process = (rank(),) if rank() else ()
    for step, batch in enumerate(batches, start=start):
        torch.manual_seed(mix(seed, step, DROPOUT, *process))
        yield batch
