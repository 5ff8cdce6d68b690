"""`fullrank finetune`: train all weights of a model on labelled images, beside the same network from random weights."""

from dataclasses import replace
from functools import partial
from pathlib import Path

from fullrank.arguments import check_source
from fullrank.cli.flags import Model, call
from fullrank.cli.heavy import heavy_imports
from fullrank.cli.model_flags import ModelFlags, ModelOptions, load_model
from fullrank.cli.sources import ReadFlags, ReadOptions
from fullrank.errors import UserError, printable
from fullrank.terminal import stderr


def finetune(
    model: Model,
    /,
    *,
    labelled: str | None = None,
    out: Path | None = None,
    seeds: int = 3,
    epochs: int = 50,
    lr: float = 1e-3,
    weight_decay: float = 0.05,
    batch_size: int = 64,
    train: str | None = None,
    test: str | None = None,
    read: ReadFlags = ReadOptions(),  # noqa: B008  frozen
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Train all weights of a model with a classifier on labelled images, and the same network from random weights in the same way.

    The command prints both accuracies for each seed, and one sentence: whether the weights of the model help, with a 95 % interval.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        labelled: source of the labelled images; by default the images of the run. Without a test split, a fifth of each class is held out.
        out: folder for backbone.safetensors and classifier.safetensors, the fine-tuned weights of the first seed, and finetuning.json.
            file:FOLDER/backbone.safetensors is a MODEL.
        seeds: number of seeds, from 0 on.
        epochs: passes over the training images.
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW, not of biases and norms.
        batch_size: images per step.
        train: training split; by default that of the run, or 'train'.
        test: test split; by default that of the run, or 'test' or 'validation'.
        read: how images are read, and where the network is trained.
        network: the network of a file that another library wrote.
        overwrite: replace the files of an earlier call.
    """
    if labelled is not None:
        if read.data is not None:
            raise UserError("--labelled and --data both name the labelled images; give one of them")
        check_source(labelled)
        read = replace(read, data=labelled)
    read.check(model)
    with heavy_imports():
        from rich.console import Console

        from fullrank.finetuning import RESULT, check_folder, table
        from fullrank.finetuning import finetune as train_model
        from fullrank.images import DecodeErrors

    if out is not None:
        check_folder(out, overwrite=overwrite)
    console, loaded = stderr(), load_model(model, network)
    decode_errors = DecodeErrors(max_error_fraction=read.max_error_fraction)
    with console.status("") as status:
        result = train_model(
            loaded,
            read.images(loaded),
            out,
            seeds=seeds,
            epochs=epochs,
            lr=lr,
            weight_decay=weight_decay,
            batch_size=batch_size,
            train=train,
            test=test,
            overwrite=overwrite,
            device=read.accelerator,
            workers=read.workers,
            decode_errors=decode_errors,
            notify=partial(console.print, markup=False, soft_wrap=True),
            progress=status.update,
        )
    for name, reason in decode_errors.reasons.items():
        console.print(printable(f"skipped {name}: {reason}"), markup=False, soft_wrap=True)
    Console().print(table(result))
    Console().print(result.verdict, markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        console.print(printable(f"written: {out / RESULT}"), markup=False, soft_wrap=True)


run = partial(call, finetune, command="finetune")
