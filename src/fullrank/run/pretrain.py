"""`pretrain` trains a backbone and writes a run directory; `preview` writes a picture of the views.

The steps are in the order in which they run.
"""

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from lightning.fabric import Fabric
from rich.console import Console

from fullrank.arguments import MEMORY
from fullrank.distributed import all_gather_object, all_reduce_max, barrier, convert_sync_batchnorm, rank, world_size
from fullrank.errors import Interrupted, UserError
from fullrank.evaluation import OnlineProbe
from fullrank.files import FULL, NoSpaceError, atomic_write
from fullrank.images import Images, as_images
from fullrank.images.parallel import refuse_reimported_script
from fullrank.methods import Method, TrainingLength, feature_dim
from fullrank.models.initial_weights import initial_weights, named_backbone, read_start, with_initial_weights
from fullrank.recipes import (
    RECIPES,
    Assembly,
    Recipe,
    assemble,
    build_method,
    check,
    code_names,
    dry_run,
    forecast_run,
    import_code,
    read_recipe,
    to_dict,
    to_file,
    with_choices,
)
from fullrank.recipes.from_keywords import recipe_from_keywords
from fullrank.run import (
    INITIAL,
    Metrics,
    Run,
    create_run_directory,
    describe_environment,
    resume_command,
    run_lock,
    write_json,
)
from fullrank.run.data import SeededBatches, TrainingData, is_preview, load_batches, open_data, write_preview
from fullrank.run.directory import as_path, recover_run, validate_output_dir
from fullrank.run.launch.devices import launch_fabric, resolve_devices
from fullrank.run.launch.environment import launched_world_size
from fullrank.run.launch.launcher import run_processes
from fullrank.run.precision import choose_precision, require_one_precision, resolve_precision
from fullrank.run.launch.process import ProcessSpec
from fullrank.run.launch.signals import stop_on_signals
from fullrank.run.replacement import ASIDE, is_run, restored_on_failure
from fullrank.run.resume import (
    check_images,
    describe_changes,
    newest_checkpoint,
    repair_files,
    resumed_recipe,
    with_absolute_source,
)
from fullrank.run.run_logger import NullLogger, RunLogger, TrainingRun
from fullrank.run.time_budget import check_hours, measure_step, with_hours
from fullrank.run.wandb_log import WandbOptions, check_wandb
from fullrank.terminal import stderr
from fullrank.training import Checkpoint, build_optimizer, fit, list_checkpoints, lr_factor, weight_decay_at
from fullrank.training.checkpoints import to_safetensors
from fullrank.training.memory import explain_out_of_memory, micro_batch_warning


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
            normalisation are those of the model, the learning rate is a tenth (`fullrank.recipes.start.with_start`). A
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
    >>> small = replace(RECIPES["digits"], epochs=1, backbone=BackboneConfig(name="test_resnet"), projector=ProjectorConfig(widths=(16,)))
    >>> run = pretrain(small, out=tempfile.mkdtemp(), console=Console(quiet=True))
    >>> run.checkpoint().step, run.metrics[-1].kind
    (11, 'spectrum')
    """
    # Configuration
    refuse_reimported_script()
    console = console or stderr()
    path, run_to_resume = (
        None if value is None else as_path(value, name) for name, value in (("out", out), ("resume", resume))
    )
    images = None if data is None or isinstance(data, str | Path) else as_images(data)
    source = MEMORY if images is not None else data if data is None else str(data)
    if run_to_resume is not None and (path is not None or overwrite or resume_or_start):
        raise UserError(
            f"resume={resume} cannot be combined with out, overwrite or resume_or_start: a resumed run keeps its folder"
        )
    if overwrite and path is None and run_to_resume is None:
        raise UserError(
            "--overwrite needs --out RUN, the run to replace; without --out a run gets a new folder (in Python: out)"
        )
    if resume_or_start and (path is None or overwrite):
        raise UserError(
            "--resume-or-start needs --out RUN, and no --overwrite (in Python: resume_or_start=True needs out)"
        )
    if hours is not None:
        check_hours(hours)
        if epochs is not None or run_to_resume is not None:
            other = (
                "epochs"
                if epochs is not None
                else f"resume={resume}, whose epochs are set; to train it for longer, give epochs"
            )
            raise UserError(
                f"hours chooses the epochs of a new run, and cannot be combined with {other}; leave one of them out"
            )
    start = None if init is None else read_start(init, backbone=named_backbone(changes))
    if run_to_resume is not None:
        if (changes or start) and recipe is None:
            given = ", ".join([*changes, *(["init"] if start else [])])
            raise UserError(f"resume={resume} uses the stored recipe; leave out {given}, or start a new run")
        given = None if recipe is None else recipe_from_keywords(recipe, RECIPES, None, changes, start=start)
        given = None if given is None else with_initial_weights(import_code(given, trust, notify=console.print))
        recover_run(run_to_resume)
        recipe = resumed_recipe(
            run_to_resume, given, source=source, labelled=None if labelled is None else str(labelled), epochs=epochs
        )
    else:
        changes |= {} if labelled is None else {"probe.labelled": str(labelled)}
        changes |= {} if epochs is None else {"epochs": epochs}
        recipe = recipe_from_keywords(
            recipe, RECIPES, source if images is None else images, changes, console.print, start=start
        )
        recipe = recipe if source is None else replace(recipe, data=replace(recipe.data, source=source))
        recipe = with_initial_weights(import_code(recipe, trust, notify=console.print))
        if resume_or_start and path is not None and is_run(path):
            recover_run(path)
            if hours is not None:
                recipe, hours = with_choices(recipe, epochs=read_recipe(path / "recipe.json").epochs), None
            run_to_resume, recipe = path, resumed_recipe(path, recipe)
    recipe = resolve_devices(import_code(recipe, trust, notify=console.print), devices)
    check(recipe)
    check_wandb(wandb)
    if run_to_resume is not None:
        path = run_to_resume
    elif path is not None:
        validate_output_dir(path, overwrite=overwrite)

    # Processes
    if recipe.machine.devices == 1 or launched_world_size():
        return train_on_rank(
            recipe,
            path,
            images=images,
            resume=run_to_resume is not None,
            overwrite=overwrite,
            hours=hours,
            trust=trust,
            wandb=wandb,
            console=console,
        )
    if images is not None:
        raise UserError(
            f"the images are in memory, from where {recipe.machine.devices} new processes cannot read them; "
            "save them to a folder, or start this script with torchrun"
        )
    spec = ProcessSpec(
        recipe=to_dict(recipe),
        out=path and str(path),
        resume=run_to_resume is not None,
        overwrite=overwrite,
        hours=hours,
        trust=list(code_names(recipe)),
        wandb=wandb if isinstance(wandb, bool) else dict(wandb),
        quiet=console.quiet,
        argv=sys.argv,
    )
    return Run(run_processes(spec, recipe.machine.devices))


def train_on_rank(
    recipe: Recipe,
    path: Path | None,
    *,
    images: Images | None = None,
    resume: bool,
    overwrite: bool,
    hours: float | None = None,
    trust: bool | Collection[str] = False,
    wandb: WandbOptions | bool,
    console: Console,
    on_path: Callable[[Path], None] = lambda path: None,
) -> Run:
    """Train in this process, which may be one of several.

    Args:
        recipe: a recipe that passed `check`; its number of devices equals the number of processes.
        path: run directory; None: the next free `runs/NAME`.
        images: images that were given as a Python object, instead of the source of the recipe.
        resume: continue the run in `path`.
        overwrite: replace the run in `path`.
        hours: the time of training, which decides the epochs.
        trust: the names of the functions that `pretrain` imported, or True for all that the recipe names.
        wandb: log to Weights & Biases too.
        console: where the first process prints.
        on_path: function that the first process calls with the run directory before the first step.
    """
    # The networks come first, because the precision depends on them, and Fabric on the precision
    recipe = import_code(recipe, trust)
    weights, start = ({}, []) if resume and path and list_checkpoints(path / "checkpoints") else initial_weights(recipe)
    method = build_method(recipe, weights)
    asked = recipe.machine.precision
    recipe = recipe if resume else choose_precision(recipe, method)
    fabric = launch_fabric(recipe)
    require_one_precision(recipe)
    console = console if fabric.is_global_zero else Console(quiet=True)
    with ExitStack() as stack:
        # Checkpoint
        checkpoint = None
        if resume:
            assert path is not None, "a resumed run has a path"
            if fabric.is_global_zero:
                on_path(path)
            stack.enter_context(_lock_on_rank_zero(path))
            checkpoint = newest_checkpoint(path)

        for line in start:
            console.print(line)

        # The objective comes before the images, because a wrong backbone or objective is then reported without reading
        # an image
        _check_method(method, recipe, notify=console.print)
        if asked == "auto" and recipe.machine.precision == "bf16-mixed" and fabric.device.type == "cpu":
            console.print(
                "precision: bf16-mixed, as this processor has AMX; --machine.precision 32-true takes longer and rounds less"
            )
        evaluated = Metrics.read(path / "metrics.jsonl").spectrum if path and checkpoint else []
        held_out = evaluated[0].backbone.samples if evaluated else 0
        recipe, data = open_data(recipe, method, images=images, held_out_before=held_out, notify=console.print)
        assembly = assemble(recipe, method)
        if hours is not None:
            with _global_state(recipe, fabric.device):
                seconds = measure_step(recipe, method, assembly.views, data, fabric)
            recipe, data, line = with_hours(recipe, hours, seconds, data, method)
            console.print(line)
            method = build_method(recipe, weights)  # some methods wait for a share of the epochs
            assembly = assemble(recipe, method)
        if not (resume or console.quiet):
            console.print("\n".join(forecast_run(recipe, method, data.num_images, fabric.device)))
        if world_size() > 1 and assembly.views.draws_random_numbers():
            console.print(
                "warning: a custom transform draws random numbers, which differ from those on another number of processes"
            )

        # Run directory
        if resume:
            assert path is not None, "a resumed run has a path"
            check_images(path, checkpoint, recipe, data.sample, data.num_images, data.fingerprint)
        else:
            barrier()  # nothing is written before all processes have read their images
            path = all_gather_object(
                create_run_directory(path, recipe.name, overwrite=overwrite) if fabric.is_global_zero else Path()
            )[0]
            stack.enter_context(_lock_on_rank_zero(path))
            if fabric.is_global_zero:
                stack.enter_context(restored_on_failure(path))
                on_path(path)
                with _explain_full_disk(path):
                    write_json(path / "recipe.json", to_file(with_absolute_source(recipe)))
                    write_json(
                        path / "environment.json", describe_environment(recipe) | ({"init": start} if start else {})
                    )
        if weights and fabric.is_global_zero:
            with _explain_full_disk(path), atomic_write(path / INITIAL, overwrite=True) as draft:
                draft.write_bytes(to_safetensors(method.backbone.state_dict()))

        # Training
        with _explain_full_disk(path), _global_state(recipe, fabric.device):
            _train(
                path, recipe, assembly, data, fabric, resume=resume, checkpoint=checkpoint, wandb=wandb, console=console
            )
    return Run(path)


def _train(
    path: Path,
    recipe: Recipe,
    assembly: Assembly,
    data: TrainingData,
    fabric: Fabric,
    *,
    resume: bool,
    checkpoint: Checkpoint | None,
    wandb: WandbOptions | bool,
    console: Console,
) -> None:
    """Train from `checkpoint`, or from the first step, to the end of the run or to a signal."""
    # Method and optimizer
    method = assembly.method
    convert_sync_batchnorm(method)
    method.to(
        fabric.device, torch.get_default_dtype()
    )  # before `restore`, which loads the optimizer's state to the same device
    if recipe.machine.channels_last:
        method.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    optimizer = build_optimizer(recipe.optimizer, method)
    settings: dict[str, Any] = {
        name: getattr(recipe.probe, name) for name in ("lr", "momentum", "weight_decay", "standardize")
    }
    probe = OnlineProbe(feature_dim(method.backbone), data.num_classes, **settings).to(fabric.device)
    start = restore(checkpoint, method, optimizer, probe) if checkpoint else 0
    if recipe.machine.compile:
        method.compile()
    ddp_method, ddp_optimizer = fabric.setup(method, optimizer)

    # Length, learning rate, batches, logger
    steps_per_epoch = data.num_images // recipe.batch_size
    total = recipe.epochs * steps_per_epoch
    method.training_length = TrainingLength(steps_per_epoch, total)

    def learning_rate(step: int) -> float:
        return recipe.optimizer.lr * lr_factor(recipe.schedule, step, steps_per_epoch=steps_per_epoch, total=total)

    def weight_decay(step: int) -> float:
        first, last = recipe.optimizer.weight_decay, recipe.optimizer.last_weight_decay
        return first if last is None else weight_decay_at(first, last, step, total=total)

    # Files of the run
    if resume:
        lines = describe_changes(path, checkpoint, recipe, steps_per_epoch)
        lines += repair_files(path, checkpoint, recipe) if fabric.is_global_zero else []
        for line in lines:
            console.print(line)
    if fabric.is_global_zero and not (path / "views.png").exists():
        with atomic_write(path / "views.png") as draft:
            write_preview(draft, recipe, assembly.views, data)

    views = load_batches(recipe, assembly.views, data, fabric.device, start=start, stop=total)
    batches = SeededBatches(views, seed=recipe.seed, start=start)
    run = TrainingRun(
        path=path,
        recipe=recipe,
        fabric=fabric,
        method=method,
        optimizer=optimizer,
        probe=probe,
        data=data,
        views=assembly.views,
        start=start,
        total=total,
    )
    logger = RunLogger(run, wandb=wandb, console=console) if fabric.is_global_zero else NullLogger(run)

    # Training loop
    micro_batch, share = recipe.machine.micro_batch, recipe.batch_size // fabric.world_size
    signum, reached = 0, start
    with logger, stop_on_signals() as flag, explain_out_of_memory(method, share, micro_batch):
        if start == 0:
            logger.evaluate_start()
        options: dict[str, Any] = {"start": start, "micro_batch": micro_batch, "clip_norm": recipe.optimizer.clip_norm}
        for step in fit(
            fabric, ddp_method, ddp_optimizer, batches, learning_rate, weight_decay=weight_decay, **options
        ):
            logger.after_step(step, wait_seconds=batches.wait_seconds)
            reached = step.step
            if reached < total and (signum := all_reduce_max(flag.signum)):
                logger.save_checkpoint(reached)
                break
    barrier()  # a launcher may kill the other processes as soon as the first process has ended
    if signum:
        raise Interrupted(signum, f"stopped after step {reached} of {total}; continue with: {resume_command(path)}")


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


def _lock_on_rank_zero(path: Path) -> AbstractContextManager[None]:
    """Return the lock of the run directory; only the first process acquires the lock, for all processes."""
    return run_lock(path) if rank() == 0 else nullcontext()


@contextmanager
def _global_state(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Set torch's default dtype inside the context; restore the dtype and the random generators afterwards.

    Fabric casts the outputs of a module to the default dtype: with float32 as default, '64-true' would give single
    precision.
    """
    dtype = torch.get_default_dtype()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.set_default_dtype(torch.float64 if resolve_precision(recipe) == "64-true" else torch.float32)
            yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def _explain_full_disk(path: Path) -> Iterator[None]:
    """Turn the error for a full disk into a `UserError` with the remedy."""
    try:
        yield
    except (OSError, NoSpaceError) as error:
        if isinstance(error, OSError) and error.errno not in FULL:
            raise
        begun = (path / "recipe.json").exists() and not (path / ASIDE).exists()
        remedy = f"continue with: {resume_command(path)}" if begun else "start the run again"
        raise UserError(f"no space left for the run {path}; free some space, then {remedy}") from error


def restore(checkpoint: Checkpoint, method: Method, optimizer: torch.optim.Optimizer, probe: torch.nn.Module) -> int:
    """Load a checkpoint into method, optimizer and probe, and return the step of the checkpoint.

    Raises:
        UserError: the checkpoint is damaged, or its tensors do not match the networks of the recipe.
    """
    weights, state = checkpoint.weights(), checkpoint.state()
    try:
        method.load_state_dict(weights)
        optimizer.load_state_dict(state["optimizer"])
        probe.load_state_dict(state["probe"])
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError) as error:
        reason = shorten(str(error), 160, placeholder=" …")
        raise UserError(
            f"checkpoint {checkpoint.path} does not match the run's recipe.json ({reason}); restore both, or start a new run"
        ) from error
    return checkpoint.step
