"""`fullrank neighbours`: what lies close together in a set of images, and what lies alone; Parquet files."""

from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from fullrank.cli.flags import Model, call
from fullrank.cli.heavy import heavy_imports
from fullrank.cli.model_flags import ModelFlags, ModelOptions, load_model
from fullrank.cli.sources import ReadFlags, ReadOptions
from fullrank.errors import UserError, printable
from fullrank.terminal import stderr

LISTED = 10
"""Lines of each list in the terminal."""


def neighbours(
    model: Model,
    /,
    *,
    out: Path | None = None,
    query: tuple[Path, ...] = (),
    split: str | None = None,
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 10,
    duplicates: float = 0.98,
    batch_size: int = 512,
    read: ReadFlags = ReadOptions(),  # noqa: B008  frozen
    network: ModelFlags = ModelOptions(),  # noqa: B008  frozen
    overwrite: bool = False,
) -> None:
    """Find nearest neighbours, near-duplicates (also across train and test), outliers and doubtful labels of a set of
    images.

    All splits of the source are searched together. The terminal shows the first of each kind.

    Args:
        model: a run directory, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH.
        out: write a folder: images.parquet, duplicates.parquet and, with --query, queries.parquet.
        query: image files whose neighbours are asked for.
        split: name of the split to search; by default all splits.
        k: number of neighbours of each image.
        duplicates: least correlation of the pixels of near-duplicates, on thumbnails of 16x16 pixels.
        batch_size: images per forward pass.
        overwrite: replace existing files.
        read: how images are read, and where the backbone runs.
        network: the network of a file that another library wrote.
    """
    read.check(model)
    for path in query:
        if not path.is_file():
            raise UserError(f"--query {path} is no file; give the path of an image")
    if out is not None and out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file, expected a folder; give another name")
    with heavy_imports():
        from rich.console import Console

        from fullrank.evaluation.neighbourhood import neighbours as find
        from fullrank.evaluation.neighbourhood.result import FILES
        from fullrank.images import DecodeErrors
        from fullrank.report.neighbours import summary

    if out is not None and not overwrite and (taken := [out / name for name in FILES if (out / name).exists()]):
        raise UserError(f"{taken[0]} exists already; choose another folder, or replace it with --overwrite")
    loaded, console = load_model(model, network), stderr()
    decode_errors = DecodeErrors(max_error_fraction=read.max_error_fraction)
    with console.status("neighbours") as status:
        found = find(
            loaded,
            read.images(loaded),
            query=list(query) or None,
            split=split,
            k=k,
            duplicates=duplicates,
            map_images=0,
            batch_size=batch_size,
            device=read.accelerator,
            workers=read.workers,
            decode_errors=decode_errors,
            progress=lambda line: status.update(printable(line)),
        )
        if out is not None:
            status.update("writing")
            found.write(out, overwrite=overwrite)
    for name, reason in decode_errors.reasons.items():
        console.print(printable(f"skipped {name}: {reason}"), markup=False, soft_wrap=True)
    lines = summary(found)
    if found.queries:
        for name, indices, similarities in zip(
            found.queries.names, found.queries.indices, found.queries.similarities, strict=True
        ):
            lines += ["", f"nearest to {name}"]
            lines += [f"  {value:.3f}  {found.names[i]}" for i, value in zip(indices, similarities, strict=True)]
    if found.duplicates:
        lines += ["", "near-duplicates"]
        for pair in found.duplicates[:LISTED]:
            lines.append(
                f"  {'equal' if pair.equal else f'{pair.correlation:.3f}'}  {found.names[pair.first]}  {found.names[pair.second]}"
            )
    lines += ["", "outliers"] + [f"  {found.outlier_score[i]:.3f}  {found.names[i]}" for i in found.outliers(LISTED)]
    if doubtful := found.doubtful_labels(LISTED):
        lines += ["", "doubtful labels"]
        lines += [f"  {found.names[i]}  {found.labels[i]}, its neighbours {found.usual_label(i)[0]}" for i in doubtful]
    for line in lines:
        Console().print(printable(line), markup=False, highlight=False, soft_wrap=True)
    if out is not None:
        console.print(f"written: {printable(str(out))}", markup=False, soft_wrap=True)


run = partial(call, neighbours, command="neighbours")
