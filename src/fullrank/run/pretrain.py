"""`pretrain` trains a backbone and writes a run directory; `preview` writes a picture of the views.

`pretrain` reads from top to bottom: the words of the call become a recipe; several processes call it again, each for
itself; networks, images, the run directory, the steps.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning.fabric import Fabric
from rich.console import Console

from fullrank.distributed import all_gather_object, all_reduce_max, barrier, world_size
from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.files import FULL, NoSpaceError, atomic_write, write_json
from fullrank.images import DecodeErrors, as_images
from fullrank.images.parallel import refuse_reimported_script
from fullrank.images.source import MEMORY
from fullrank.images.source_uri import open_once
from fullrank.methods import Method
from fullrank.models.initial_weights import initial_weights, read_start, with_initial_weights
from fullrank.models.loading import INITIAL
from fullrank.recipes import (
    Assembly,
    Recipe,
    assemble,
    build_method,
    check,
    code_names,
    dry_run,
    import_code,
    resolve,
    to_dict,
)
from fullrank.recipes.forecast import forecast_run
from fullrank.run.cost import check_hours, choose_epochs, measure_step, plan_evaluations
from fullrank.run.data import TrainingData, is_preview, open_data, write_preview
from fullrank.run.directory import (
    Run,
    as_path,
    create_run_directory,
    is_run,
    replaced_run,
    resume_command,
    run_lock,
    validate_output_dir,
)
from fullrank.run.environment import describe_environment
from fullrank.run.logger import NullLogger, RunLogger
from fullrank.run.metrics import Metrics
from fullrank.run.precision import choose_precision, require_one_precision
from fullrank.run.processes import launch_fabric, launched_world_size, resolve_devices, run_processes
from fullrank.run.resume import check_images, describe_changes, newest_checkpoint, resumed_recipe, with_absolute_source
from fullrank.run.signals import stop_on_signals
from fullrank.run.steps import TrainingRun, global_state
from fullrank.run.terminal import stderr
from fullrank.run.wandb_log import WandbOptions, check_wandb
from fullrank.training import build_optimizer
from fullrank.training.checkpoints import to_safetensors
from fullrank.training.memory import explain_out_of_memory, micro_batch_warning


@open_once()
def pretrain(
    recipe: Recipe | str | Path | None = None,
    data: Any = None,
    out: str | Path | None = None,
    *,
    init: str | Path | Run | None = None,
    labelled: str | Path | None = None,
    epochs: int | None = None,
    hours: float | None = None,
    resume: str | Path | None = None,
    resume_or_start: bool = False,
    overwrite: bool = False,
    devices: int | None = None,
    trust: bool | Collection[str] = False,
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
        init: a MODEL whose weights the backbone starts with, see `fullrank.load`. The network, its channels and its
            normalisation are those of the model, the learning rate is a tenth (`fullrank.recipes.rules.with_start`). A
            file of another library needs the network: `backbone="resnet50"`.
        labelled: source of labelled images from another place. A linear probe is trained and scored on them during
            training (`probe.labelled`); no label reaches the backbone. With `resume`, their new place if they have
            moved.
        epochs: number of epochs; it overrides the recipe. With `resume`, the schedules are those of the new number from
            there on.
        hours: the time of training in hours, instead of `epochs`: a few steps are measured, and the epochs that fit are
            chosen and printed.
        resume: a run directory to continue from its newest checkpoint, bit for bit. A recipe given with `resume` must
            equal the stored one in what decides the weights; it may have another log_every, data.workers or
            machine.micro_batch.
        resume_or_start: continue the run in `out` if there is one, which must have the same recipe; else start.
        overwrite: replace the run in `out`; the old run is removed at the first checkpoint of the new one.
        devices: number of devices; it overrides the recipe, also with `resume`.
        trust: whether the code that the recipe names (package.module:function) is imported, which runs its modules:
            True, or the names that
            you trust. False: a recipe that names code is refused, unless this process has imported the code already.
        wandb: log to Weights & Biases too; a dict gives arguments of `wandb.init`: {"project": "fullrank", "name":
            "first"}.
        console: where to print; None: standard error. Processes that this function starts print to standard error, or
            not at all if the console is quiet.
        **changes: fields of the recipe, by name: `epochs=3`, `objective="vicreg"`, `backbone="resnet50"`, or by the
            dotted name of a flag: `**{"optimizer.lr": 0.1, "views.0.size": 64}`. As on the command line, some fields
            follow from others: the learning rate from the batch size, the warm-up from the epochs.

    Raises:
        UserError: a mistake that the user can fix, in one line.
        Interrupted: SIGINT, SIGTERM or SIGHUP (a lost terminal); a checkpoint has been written.
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
    path, old = (None if p is None else as_path(p, name) for p, name in ((out, "out"), (resume, "resume")))
    for wrong, message in (
        (
            old and (path or overwrite or resume_or_start),
            "resume keeps its folder; leave out --out, --overwrite and --resume-or-start",
        ),
        ((overwrite or resume_or_start) and not (path or old), "--overwrite and --resume-or-start need --out RUN"),
        (
            overwrite and resume_or_start,
            "--overwrite replaces the run that --resume-or-start continues; give one of them",
        ),
        (hours is not None and (epochs or old), "hours chooses the epochs of a new run; leave out epochs and resume"),
        (
            old and recipe is None and (changes or init),
            "resume uses the stored recipe; leave out all changes, or start a new run",
        ),
    ):
        if wrong:
            raise UserError(message)
    if hours is not None:
        check_hours(hours)
    check_wandb(wandb)
    images = None if data is None or isinstance(data, str | Path) else as_images(data)
    source = MEMORY if images is not None else data if data is None else str(data)
    labelled = None if labelled is None else str(labelled)
    given = None
    if old is None or recipe is not None:
        start = None if init is None else read_start(init, changes)
        named = {} if old else {"data.source": source, "probe.labelled": labelled, "epochs": epochs}
        changes |= {name: value for name, value in named.items() if value is not None}
        words = images if images is not None and recipe in (None, "photos") else recipe
        given = resolve(words, changes, start=start, notify=console.print)
        given = with_initial_weights(import_code(given, trust, notify=console.print))
    if given is not None and path and resume_or_start and is_run(path):
        old = path
        if hours is not None:
            given, hours = resolve(given, {"epochs": Run(path).recipe.epochs}), None
    elif path is not None:
        validate_output_dir(path, overwrite=overwrite)
    if old is not None:
        path, moved = old, {} if resume is None else {"source": source, "labelled": labelled, "epochs": epochs}
        given = resumed_recipe(path, given, **moved)
    assert given is not None, "a call has a recipe, or a run to resume"
    recipe = resolve_devices(import_code(given, trust, notify=console.print), devices)
    check(recipe)

    # Processes: each of several processes calls this function with the recipe
    if recipe.machine.devices > 1 and not launched_world_size():
        if images is not None:
            raise UserError("images in memory cannot be sent to new processes; save them to a folder, or use torchrun")
        path = path or create_run_directory(None, recipe.name)
        options = (
            {"resume": path, "epochs": recipe.epochs} if old else {"out": path, "overwrite": overwrite, "hours": hours}
        )
        options |= {"recipe": recipe, "trust": code_names(recipe), "wandb": wandb}
        with _explain_failed_process(path):
            run_processes(pretrain, options, recipe.machine.devices, quiet=console.quiet)
        return Run(path)

    # Networks; the precision depends on them, and Fabric on the precision
    checkpoint = newest_checkpoint(old) if old else None
    weights, lines = ({}, []) if checkpoint else initial_weights(recipe)
    method = build_method(recipe, weights)
    recipe = recipe if old else choose_precision(recipe, method)
    fabric = launch_fabric(recipe)
    require_one_precision(recipe)
    console = console if fabric.is_global_zero else Console(quiet=True)
    with ExitStack() as stack:
        if old and fabric.is_global_zero:
            stack.enter_context(run_lock(old))
        for line in lines:
            console.print(line)
        _check_method(method, recipe, notify=console.print)

        # Images
        rows = Metrics.read(old / "metrics.jsonl") if old and checkpoint else Metrics()
        log = Metrics(tuple(row for row in rows if checkpoint and row.step <= checkpoint.step))
        held_out = log.spectrum[0].backbone.samples if log.spectrum else 0
        recipe, data = open_data(recipe, method, images=images, held_out_before=held_out, notify=console.print)
        assembly = assemble(recipe, method)
        if hours is not None:
            recipe, data, line = _choose_epochs(recipe, hours, assembly, data, fabric)
            console.print(line)
            method = build_method(recipe, weights)  # those of the measured steps have changed
            assembly = assemble(recipe, method)
        if not (old or console.quiet):
            console.print("\n".join(forecast_run(recipe, method, data.num_images)))
        if world_size() > 1 and assembly.views.draws_random_numbers():
            console.print("warning: a custom transform draws random numbers: other ones on another number of processes")

        # Run directory
        if checkpoint:
            check_images(checkpoint, recipe, data)
        if old is None:
            barrier()  # nothing is written before all processes have read their images
            made = create_run_directory(path, recipe.name, overwrite=overwrite) if fabric.is_global_zero else Path()
            path = all_gather_object(made)[0]
            stack.enter_context(run_lock(path) if fabric.is_global_zero else nullcontext())
        assert path is not None, "a run has a folder"
        stack.enter_context(_explain_full_disk(path))
        stack.enter_context(global_state(recipe, fabric.device))
        run = TrainingRun(assembly, data, fabric, path=path, recipe=recipe, checkpoint=checkpoint, log=log)
        for line in describe_changes(path, checkpoint, recipe, run.steps_per_epoch) if old else ():
            console.print(line)
        if fabric.is_global_zero:
            _write_files(run, weights=bool(weights), start=lines)
        if replaced_run(path).exists() and not checkpoint and overwrite:
            console.print(f"the run that was in {path} is in {replaced_run(path)} until the first checkpoint")

        # Steps
        logger = RunLogger(run, wandb=wandb, console=console) if fabric.is_global_zero else NullLogger(run)
        signum, reached, batches = 0, run.start, run.batches()
        share, micro_batch = recipe.batch_size // world_size(), recipe.machine.micro_batch
        with logger, stop_on_signals() as flag, explain_out_of_memory(method, share, micro_batch):
            if reached == 0:
                logger.evaluate_start()
            for step in run.steps(batches):
                logger.after_step(step, wait_seconds=batches.wait_seconds)
                reached = step.step
                if reached < run.total and (signum := all_reduce_max(flag.signum)):
                    logger.save_checkpoint(reached)
                    break
        barrier()  # a launcher may kill the other processes as soon as the first process has ended
    if signum:
        raise Interrupted(signum, f"stopped after step {reached} of {run.total}; continue with: {resume_command(path)}")
    return Run(path)


def preview(
    recipe: Recipe,
    out: Path | None = None,
    *,
    overwrite: bool = False,
    trust: bool | Collection[str] = False,
    console: Console | None = None,
) -> Path:
    """Write a grid of images and their views, without training, and return its path.

    Args:
        recipe: the recipe of the views.
        out: a PNG file; None: views.png in the working directory, where the views.png of an earlier preview is
            replaced.
        overwrite: replace `out`.
        trust: whether the code that the recipe names is imported, as in `pretrain`.
        console: where to print; None: standard error.

    Raises:
        UserError: a mistake that the user can fix, in one line.
    """
    path = out or Path("views.png")
    if path.suffix != ".png":
        raise UserError(
            f"{path} ends in '{path.suffix}', expected a picture to write the views to; give a file that ends in .png"
        )
    notify = (console or stderr()).print
    recipe = import_code(recipe, trust, notify=notify)
    check(recipe)
    with atomic_write(path, overwrite=overwrite or (out is None and is_preview(path))) as draft:
        method = build_method(recipe)
        _check_method(method, recipe, notify=notify)
        recipe, data = open_data(recipe, method, notify=notify)
        write_preview(draft, recipe, assemble(recipe, method).views, data)
    return path


def _check_method(method: Method, recipe: Recipe, *, notify: Callable[[str], Any]) -> None:
    """Compute the objective once on tensors of the right shapes, and print what the user should know about the
    method.
    """
    if warning := dry_run(method, recipe):
        notify(warning)
    build_optimizer(recipe.optimizer, method)  # an error in its groups is reported before an image is read
    if warning := micro_batch_warning(method, recipe.batch_size // world_size(), recipe.machine.micro_batch):
        notify(warning)


def _choose_epochs(
    recipe: Recipe, hours: float, assembly: Assembly, data: TrainingData, fabric: Fabric
) -> tuple[Recipe, TrainingData, str]:
    """Take steps until their time is measured; return recipe and images for the epochs that fit, and a line."""
    unread = replace(data, decode_errors=DecodeErrors(max_error_fraction=recipe.data.max_error_fraction))
    with global_state(recipe, fabric.device):
        trial = TrainingRun(assembly, unread, fabric, path=Path(), recipe=recipe)
        seconds = measure_step(trial.steps(trial.batches()), fabric.device)
    recipe, line = choose_epochs(recipe, hours, seconds, trial.steps_per_epoch)
    n = len(data.held_out)
    plan = plan_evaluations(recipe, steps=recipe.epochs * trial.steps_per_epoch, dimensions=0, available=n, samples=n)
    return recipe, replace(data, plan=plan), line


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


@contextmanager
def _explain_failed_process(path: Path) -> Iterator[None]:
    """Add to the failure of a process what is saved and how to go on; remove a folder in which nothing was written."""
    try:
        yield
    except ProcessFailed as error:
        saved = "nothing was written"
        if is_run(path):
            steps = [checkpoint.step for checkpoint in Run(path).checkpoints]
            saved = f"the checkpoint of step {steps[-1]} is complete" if steps else "there is no checkpoint yet"
            saved += f"; continue with: {resume_command(path)}"
        explained = ProcessFailed(f"{error}; {saved}")
        explained.__notes__ = getattr(error, "__notes__", [])
        raise explained from None
    finally:
        if not is_run(path):
            (path / ".lock").unlink(missing_ok=True)
            with suppress(OSError):
                path.rmdir()


@contextmanager
def _explain_full_disk(path: Path) -> Iterator[None]:
    """Turn the error for a full disk into a `UserError` with the remedy."""
    try:
        yield
    except (OSError, NoSpaceError) as error:
        if isinstance(error, OSError) and error.errno not in FULL:
            raise
        remedy = f"continue with: {resume_command(path)}" if is_run(path) else "start the run again"
        raise UserError(f"no space left for the run {path}; free some space, then {remedy}") from error
