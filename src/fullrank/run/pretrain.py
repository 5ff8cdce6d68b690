"""`pretrain` trains a backbone and writes a run directory.

It reads from top to bottom: the words of the call become a recipe; several processes call it again, each for itself;
networks, images, the run directory, the steps.
"""

import time
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from lightning.fabric import Fabric
from pydantic import Field
from rich.console import Console

from fullrank.config import from_json
from fullrank.distributed import all_gather_object, all_reduce_max, barrier, world_size
from fullrank.errors import Interrupted, UserError
from fullrank.files import atomic_write, write_json
from fullrank.images import DecodeErrors, as_images
from fullrank.images.parallel import refuse_reimported_script
from fullrank.images.source import MEMORY
from fullrank.images.source_uri import open_once
from fullrank.models.initial_weights import initial_weights, resolve_with_init, with_initial_weights
from fullrank.models.loading import INITIAL
from fullrank.recipes import Recipe, assemble, build_method, check, dry_run, import_code, read_recipe, resolve, to_dict
from fullrank.recipes.assembling import Assembly
from fullrank.recipes.forecast import forecast_run
from fullrank.recipes.rules import plain_fields, with_fields
from fullrank.run.cost import choose_epochs, measure_step, plan_evaluations
from fullrank.run.data import TrainingData, open_data, open_labelled
from fullrank.run.directory import Run, as_path, check_free, create_run, is_run, resume_command, run_lock
from fullrank.run.environment import describe_environment
from fullrank.run.logger import NullLogger, RunLogger
from fullrank.run.metrics import Metrics, WandbOptions, check_wandb
from fullrank.run.precision import choose_precision, require_one_precision
from fullrank.run.preview import write_preview
from fullrank.run.processes import explain_failure, launch_fabric, launched_world_size, resolve_devices, run_processes
from fullrank.run.resume import (
    check_images,
    describe_changes,
    newest_checkpoint,
    restore_stream,
    resumed_recipe,
    with_absolute_source,
)
from fullrank.run.signals import stop_on_signals
from fullrank.run.steps import TrainingRun, explain_full_disk, global_state
from fullrank.run.terminal import stderr
from fullrank.training import build_optimizer
from fullrank.training.checkpoints import to_safetensors
from fullrank.training.memory import check_micro_batch, explain_out_of_memory

# The fields that may change with the run directory of `resume`.
MAY_CHANGE = ("epochs", "data.source", "probe.labelled", "machine.devices")
Hours = Annotated[float, Field(gt=0, le=10_000)]


@open_once()
def pretrain(
    recipe: Recipe | str | Path | None = None,
    data: Any = None,
    out: str | Path | None = None,
    *,
    hours: float | None = None,
    resume: str | Path | bool | None = None,
    overwrite: bool = False,
    wandb: WandbOptions | bool = False,
    console: Console | None = None,
    **changes: Any,
) -> Run:
    """Pretrain a backbone on unlabelled images and return the run.

    Each device has one process, which torchrun or this function starts. Several processes take the same steps as one
    process.

    Args:
        recipe: a `Recipe`, the name of one in `RECIPES`, a recipe.json, or a source of images (a folder, hf:NAME …),
            for which a general recipe is chosen; None for the general recipe for `data`, or with `resume`.
        data: source of the images; it overrides the recipe, also with `resume` if the images have moved. Or the images
            themselves: `Images`, a tensor or array (n, C, H, W), a list of paths, a data set of torch or of the
            datasets library, see `fullrank.images.as_images`.
        out: run directory; None: the next free `runs/NAME`.
        hours: the time of training in hours, instead of `epochs`: a few steps are measured, and the epochs that fit are
            chosen and printed.
        resume: a run directory to continue from its newest checkpoint, bit for bit. True: continue the run in `out` if
            there is one, else start. The recipe must equal the stored one in what decides the weights; it may have
            another log_every, data.workers or machine.micro_batch.
        overwrite: replace the run in `out`; the old run is removed at the first checkpoint of the new one.
        wandb: log to Weights & Biases too; a dict gives arguments of `wandb.init`: {"project": "fullrank", "name":
            "first"}.
        console: where to print; None: standard error. Processes that this function starts print to standard error, or
            not at all if the console is quiet.
        **changes: fields of the recipe, by name: `epochs=3`, `objective="vicreg"`, `backbone="resnet50"`, or by the
            dotted name of a flag: `**{"optimizer.lr": 0.1, "views.0.size": 64}`. As on the command line, some fields
            follow from others: the learning rate from the batch size, the warm-up from the epochs. Among them:

            - epochs: with the run directory of `resume`, the schedules are those of the new number from there on;
            - init: a MODEL whose weights the backbone starts with, see `fullrank.load`. The network, its channels and
              its normalisation are those of the model (`fullrank.recipes.rules.with_start`). A file of another library
              needs the network too: `backbone="resnet50"`;
            - labelled: source of labelled images from another place. A linear probe is trained and scored on them
              during training; no label reaches the backbone;
            - devices: the number of processes, one per device.

    Raises:
        UserError: a mistake that the user can fix, in one line.
        Interrupted: SIGINT, SIGTERM, SIGHUP (a lost terminal) or SIGUSR2; a checkpoint has been written.
        ProcessFailed: one of several processes failed.

    >>> import tempfile
    >>> from fullrank.methods import BackboneConfig, ProjectorConfig
    >>> from fullrank.recipes import RECIPES
    >>> networks = {"backbone": BackboneConfig(name="test_resnet"), "projector": ProjectorConfig(widths=(16,))}
    >>> small = replace(RECIPES["digits"], epochs=1, **networks)
    >>> run = pretrain(small, out=tempfile.mkdtemp(), console=Console(quiet=True))
    >>> run.checkpoint().step, run.metrics[-1].kind
    (11, 'spectrum')
    """
    # Configuration: the words of the call become a recipe
    refuse_reimported_script()
    console = console or stderr()
    path = None if out is None else as_path(out, "out")
    old = None if resume is None or isinstance(resume, bool) else as_path(resume, "resume")
    hours = None if hours is None else from_json(Hours, hours, "hours")
    for conflict, message in (
        (old and (path or overwrite), "resume keeps its folder; leave out --out and --overwrite"),
        ((overwrite or resume is True) and not path, "--overwrite and --resume-or-start need --out RUN"),
        (overwrite and resume is True, "--overwrite replaces the run that --resume-or-start continues; give one"),
        (hours and ("epochs" in changes or old), "--hours chooses the epochs of a new run; omit --epochs, --resume"),
    ):
        if conflict:
            raise UserError(message)
    check_wandb(wandb)
    images = None if data is None or isinstance(data, str | Path) else as_images(data)
    fields = plain_fields(changes | ({} if data is None else {"data.source": data if images is None else MEMORY}))
    kept = {name: x for name, x in fields.items() if name.startswith(("schedule.", "method."))}
    moved = {name: fields.pop(name) for name in MAY_CHANGE if old and name in fields}
    recipe = read_recipe(old / "recipe.json") if old and recipe is None else recipe
    words = images if images is not None and recipe in (None, "photos") else recipe
    labelled = fields.get("probe.labelled")
    if labelled and not launched_world_size():  # a mistake in it is told before any other line
        open_labelled(with_fields(Recipe(), {"probe.labelled": labelled}))
    given = with_initial_weights(import_code(resolve_with_init(words, fields, console.print)))
    if resume is True and path and is_run(path):
        old = path
        if hours is not None:
            given, hours = resolve(given, kept | {"epochs": Run(path).recipe.epochs}), None
    elif path is not None:
        check_free(path, overwrite=overwrite)
    if old is not None:
        path, given = old, resumed_recipe(old, given, moved)
    recipe = resolve_devices(given)
    check(recipe)

    # Processes: each of several processes calls this function with the recipe
    if recipe.machine.devices > 1 and not launched_world_size():
        if images is not None:
            raise UserError("images in memory cannot be sent to new processes; save them to a folder, or use torchrun")
        path = path or create_run(None, recipe.name)
        place = {"resume": path, "epochs": recipe.epochs} if old else {"out": path, "overwrite": overwrite}
        options = place | {"recipe": recipe, "hours": hours, "wandb": wandb} | kept
        with explain_failure(path, overwrite=overwrite):
            run_processes(_join, options, recipe.machine.devices, quiet=console.quiet)
        return Run(path)

    # Networks; the precision depends on them, and Fabric on the precision
    checkpoint = newest_checkpoint(old) if old else None
    weights, lines = ({}, []) if checkpoint else initial_weights(recipe)
    method = build_method(recipe, weights)
    recipe = recipe if old else choose_precision(recipe, method)
    fabric = launch_fabric(recipe)
    require_one_precision(recipe)
    console = console if fabric.is_global_zero else Console(quiet=True)
    share, micro_batch = recipe.batch_size // world_size(), recipe.machine.micro_batch
    with ExitStack() as stack:
        if old and fabric.is_global_zero:
            stack.enter_context(run_lock(old))
        build_optimizer(recipe.optimizer, method)  # an error in its groups is reported before an image is read
        check_micro_batch(method, share, micro_batch, ghost=recipe.machine.ghost_batchnorm)
        for line in (*lines, dry_run(method, recipe)):
            if line:
                console.print(line)

        # Images
        rows = Metrics.read(old / "metrics.jsonl") if old and checkpoint else ()
        log = Metrics(tuple(row for row in rows if checkpoint and row.step <= checkpoint.step))
        held_out = log.spectrum[0].backbone.samples if log.spectrum else 0
        recipe, data = open_data(recipe, method, images=images, held_out_before=held_out, notify=console.print)
        assembly = assemble(recipe, method)
        if hours is not None:
            recipe, data, line = _fit_into(hours, recipe, assembly, data, fabric, kept)
            console.print(line)
            method = build_method(recipe, weights)  # those of the measured steps have changed
            assembly = assemble(recipe, method)
        if not (old or console.quiet):
            console.print("\n".join(forecast_run(recipe, method, data.num_images)))

        # Run directory
        if checkpoint:
            check_images(checkpoint, recipe, data)
        if old is None:
            barrier()  # nothing is written before all processes have read their images
            place = {"overwrite": overwrite, "notify": console.print}
            made = create_run(path, recipe.name, **place) if fabric.is_global_zero else Path()
            path = all_gather_object(made)[0]
            stack.enter_context(run_lock(path) if fabric.is_global_zero else nullcontext())
        assert path is not None, "a run has a folder"
        stack.enter_context(explain_full_disk(path))
        stack.enter_context(global_state(recipe, fabric.device))
        run = TrainingRun(assembly, data, fabric, path=path, recipe=recipe, checkpoint=checkpoint, log=log)
        messages = describe_changes(path, checkpoint, recipe, run.steps_per_epoch) if old else []
        if checkpoint and data.stream and run.start < run.total:
            messages += restore_stream(checkpoint, recipe, data)
        for line in messages:
            console.print(line)
        if fabric.is_global_zero:
            _write_files(run, weights=bool(weights), start=lines)

        # Steps
        logger = RunLogger(run, wandb=wandb, console=console) if fabric.is_global_zero else NullLogger(run)
        signum, reached = 0, run.start
        with logger, stop_on_signals() as flag, explain_out_of_memory(method, share, micro_batch):
            if reached == 0:
                logger.evaluate_start()
            for step in run.steps():
                logger.after_step(step)
                reached = step.step
                if reached < run.total and (signum := all_reduce_max(flag.signum)):
                    if reached not in run.checkpoint_steps:
                        logger.save_checkpoint(reached)
                    break
        barrier()  # a launcher may kill the other processes as soon as the first process has ended
    if signum:
        raise Interrupted(signum, f"stopped after step {reached} of {run.total}; continue with: {resume_command(path)}")
    return Run(path)


def _join(recipe: Recipe, **options: Any) -> Run:
    """Take part in a run as one of its new processes, which import the code that the first process has imported."""
    return pretrain(import_code(recipe, trust=True), **options)


def _fit_into(
    hours: float, recipe: Recipe, assembly: Assembly, data: TrainingData, fabric: Fabric, given: dict[str, Any]
) -> tuple[Recipe, TrainingData, str]:
    """Take steps until their time is measured; return recipe and images for the epochs that fit, and a line."""
    errors = DecodeErrors(max_error_fraction=recipe.data.max_error_fraction)
    unread = replace(data, decoding=replace(data.decoding, errors=errors))
    began = time.perf_counter()
    with global_state(recipe, fabric.device):
        longer = replace(recipe, epochs=10**6)  # the measurement may take more steps than the run
        trial = TrainingRun(assembly, unread, fabric, path=Path(), recipe=longer)
        seconds = measure_step(trial.steps(), fabric.device)
    spent = all_reduce_max(round(time.perf_counter() - began))  # equal in all processes
    recipe, line = choose_epochs(recipe, hours - spent / 3600, seconds, trial.steps_per_epoch, **given)
    steps, n = recipe.epochs * trial.steps_per_epoch, len(data.held_out)
    plan = plan_evaluations(recipe, steps=steps, dimensions=0, available=n, samples=n)
    return recipe, replace(data, plan=plan), f"--hours {hours:g}, after {spent} seconds of measuring: {line}"


def _write_files(run: TrainingRun, *, weights: bool, start: list[str]) -> None:
    """Write the files of a run that do not change; `recipe.json`, the first, makes the folder a run."""
    path, recipe = run.path, run.recipe
    write_json(path / "recipe.json", to_dict(with_absolute_source(recipe)))
    if not (path / "environment.json").exists():
        write_json(path / "environment.json", describe_environment(recipe) | ({"init": start} if start else {}))
    if weights:
        with atomic_write(path / INITIAL, overwrite=True) as draft:
            draft.write_bytes(to_safetensors(run.method.backbone.state_dict()))
    if not (path / "views.png").exists():
        with atomic_write(path / "views.png") as draft:
            write_preview(draft, recipe, run.views, run.data)
