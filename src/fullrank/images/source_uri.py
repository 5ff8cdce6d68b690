"""Open images by their source URI, and choose the training and the test split."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fullrank.arguments import MEMORY, existing_path, parse_uri
from fullrank.errors import UserError, pick, printable
from fullrank.images.folder import EXTENSIONS, folder_splits, walk
from fullrank.images.reading import USUAL, Reading
from fullrank.images.source import DigitImages, Images
from fullrank.images.splits import ALL, SPLITS, TEST, TRAIN, hold_out, reduce_training

FILES: dict[str, Literal["csv", "tar"]] = {".csv": "csv", ".tsv": "csv", ".tar": "tar"}
"""Suffix of a source that is one file → its kind."""


def open_images(source: str | Path, reading: Reading = USUAL, *, split: str | None = None) -> dict[str, Images]:
    """Open a source URI and return {split name: images}, or {"all": images} if there are no named splits.

    | source URI | images |
    |---|---|
    | `digits` | scikit-learn's 1797 digits (a folder of that name is `./digits`) |
    | `PATH` | a folder of images, a Parquet file, a folder of Parquet files, or what `save_to_disk` of the `datasets`
    library wrote |
    | `PATH.csv`, `PATH.tsv` | a table of paths, relative to the folder of the table; Parquet files may have a column of
    paths too |
    | `PATH.tar`, a folder of `.tar` files | WebDataset shards; labels in `.cls` or `.json` members, or class folders
    inside |
    | `folder:PATH`, `parquet:PATH` | a folder of images; a Parquet file or a folder of Parquet files |
    | `hf:NAME`, `hf:NAME:CONFIG` | a data set of the Hugging Face hub |

    Args:
        source: The source URI.
        reading: How to read it, such as `Reading(label_column="breed")`.
        split: Return only this split.

    Raises:
        UserError: the source or the split does not exist, or contains no images.

    >>> {split: len(images) for split, images in open_images("digits").items()}
    {'all': 1797}
    """
    source = str(source)
    scheme, rest = parse_uri(source)
    if scheme == "digits":
        splits: dict[str, Images] = {ALL: DigitImages()}
    elif scheme == "hf":
        from fullrank.images.table import hub_folders, load_from_hub, table_splits

        splits = table_splits(source, load_from_hub(rest), roots=hub_folders(rest), reading=reading)
    else:
        splits = _open_path(source, rest, scheme, reading)
    return splits if split is None else {split: pick(split, splits, f"split of {source}")}


def absolute_source(source: str) -> str:
    """Return a source URI with its path made absolute if the path exists, else unchanged.

    >>> absolute_source("hf:uoft-cs/cifar10"), absolute_source("digits")
    ('hf:uoft-cs/cifar10', 'digits')
    """
    scheme, rest = parse_uri(source)
    path = os.path.expanduser(rest)
    if source == MEMORY or scheme not in ("", "folder", "parquet") or not os.path.exists(path):
        return source
    absolute = str(
        Path(path).absolute()
    )  # not os.path.abspath, because `link/..` need not be the folder that contains the link
    return f"{scheme}:{absolute}" if scheme else absolute


def _open_path(source: str, path: str, scheme: str, reading: Reading) -> dict[str, Images]:
    found = find_files(path, scheme, follow_links=reading.follow_links)
    labels, max_pixels = reading.labels, reading.max_pixels
    if found.kind == "images":
        refuse_columns(source, "a folder of images", reading, ("image_column", "label_column", *COLUMNS))
        return folder_splits(source, found.root, found.files, labels=labels, notes=found.notes, max_pixels=max_pixels)
    if found.kind == "tar":
        from fullrank.images.shards import open_shards

        refuse_columns(source, "tar shards", reading, ("image_column", *COLUMNS))
        key = reading.label_column
        return open_shards(source, found.root, found.files, labels=labels, label=key, max_pixels=max_pixels)
    from fullrank.images.table import open_tables

    return open_tables(source, found.kind, found.root, found.files, reading)


COLUMNS = ("group_column", "split_column")


def refuse_columns(source: str, what: str, reading: Reading, columns: tuple[str, ...]) -> None:
    """Raise UserError if the reading names a column that a source cannot have.

    A group column that was silently ignored would let the images of one patient be in training and test images.
    """
    for flag in columns:
        if (name := getattr(reading, flag)) is not None:
            raise UserError(
                f"--data.{flag} is {name}, but {source} is {what}, which has no columns; leave the flag out, "
                "or give a table of paths (.csv or .parquet)"
            )


@dataclass(frozen=True)
class Found:
    """The files of a source, relative to a root folder: images, Parquet files, Arrow files of `save_to_disk`, tar
    files, or a CSV file.
    """

    root: Path
    files: list[str]
    kind: Literal["images", "parquet", "arrow", "csv", "tar"]
    notes: tuple[str, ...] = ()


def find_files(path: str, scheme: str = "", *, follow_links: bool = False) -> Found:
    """Return the root folder, and the image or Parquet files below this folder."""
    root = existing_path(path)
    if root.is_file():
        if root.suffix.lower() == ".parquet" and scheme != "folder":
            return Found(root.parent, [root.name], "parquet")
        if (kind := FILES.get(root.suffix.lower())) and not scheme:
            return Found(root.parent, [root.name], kind)
        raise UserError(
            f"'{path}' is a file; give a folder of images (unpack an archive first), a .parquet file, a folder of .parquet files, "
            "a table of paths (.csv, .tsv), or .tar shards"
        )
    if not root.is_dir():
        raise UserError(
            f"'{path}' is neither a file nor a folder; give a folder of images, a .parquet file or a folder of .parquet files"
        )
    found = walk(root, EXTENSIONS | {".parquet", ".arrow", ".tar"}, follow_links=follow_links)
    notes = (
        (
            f"{found.links_out} symbolic links lead out of the folder and are not followed (--data.follow_links follows them)",
        )
        if found.links_out
        else ()
    )
    by_kind: dict[str, list[str]] = {"arrow": [], "parquet": [], "tar": [], "images": []}
    for file in found.files:
        suffix = Path(file).suffix.lower()
        by_kind[suffix[1:] if suffix in (".arrow", ".parquet", ".tar") else "images"].append(file)
    arrow, tables, tar, images = by_kind.values()
    if arrow and not tables and not images and scheme == "":
        return Found(root, arrow, "arrow", notes)
    if tar and not tables and not images and not arrow and scheme == "":
        return Found(root, tar, "tar", notes)
    if scheme == "parquet" or (tables and not images and scheme != "folder"):
        kind, expected = "parquet", "Parquet files (.parquet)"
    else:
        kind, expected = (
            "images",
            f"images ({' '.join(sorted(EXTENSIONS))})" + (" or Parquet files (.parquet)" if not scheme else ""),
        )
    if tables and images and not scheme:
        raise UserError(f"'{path}' contains images and Parquet files; choose with folder:{path} or parquet:{path}")
    if not by_kind[kind]:
        empty = "" if any(root.iterdir()) else " is empty:"
        note = "; ".join(("", *notes))
        raise UserError(f"folder '{path}'{empty} contains no {expected}; give a folder with such files{note}")
    return Found(root, by_kind[kind], kind, notes)


@dataclass(frozen=True)
class Splits:
    """Training and test images, and a sentence that describes where they come from."""

    train: Images
    test: Images
    """The test images, or the validation images that take their place."""
    statement: str


def train_and_test(
    source: str | Path,
    reading: Reading = USUAL,
    *,
    seed: int = 0,
    validation: float = 0.0,
    subset: int = 0,
) -> Splits:
    """Return the training and the test images.

    The default splits are `train`, and `test` or else `validation`, `val`, `valid`, …; a test split with labels is
    preferred, because the labels of some test splits, such as ImageNet's, are secret. Without a test split, a fifth of
    each class is held out; the choice depends only on `seed`.

    Validation images, if there are any, take the place of the test images, and are no training images
    (`splits.reduce_training`).

    Args:
        source: The source URI, see `open_images`.
        reading: How to read it, with the names of the splits.
        seed: Seed of the held-out fifth.
        validation: Share of the training images that is held out for validation; 0 for none.
        subset: Number of training images; 0 for all.

    Raises:
        UserError: a split is unknown, or there are too few images for the splits, for validation or for the subset.

    >>> train_and_test("digits").statement
    'digits has no test split: 20 % of its images are held out, stratified by label, seed 0 (train 1438, test 359)'
    """
    splits, test = open_images(source, reading), reading.test
    train_images = _choose_train(splits, reading.train, f"{source}")
    if test is None:
        others = [name for name in _matching_splits(splits, TEST) if splits[name] is not train_images]
        test = min(
            others, key=lambda name: splits[name].strata.max(initial=-1) < 0, default=None
        )  # for ties, min returns the first
    if test is None:
        held_out = hold_out_test(train_images, seed=seed, validation=validation, subset=subset)
        return replace(held_out, statement=held_out.statement + _unused(splits, train_images))
    test_images = pick(test, splits, f"split of {source}")
    tested = "" if validation else f", test with {test_images.source} ({len(test_images)} images)"
    statement = f"train with {train_images.source} ({len(train_images)} images){tested}{_unused(splits, train_images, test_images)}"
    if shared := len(np.setdiff1d(np.intersect1d(train_images.groups, test_images.groups), -1)):
        statement += f"; warning: {shared} groups have images in both"
    return _reduce(train_images, test_images, statement, validation=validation, subset=subset)


def hold_out_test(images: Images, *, seed: int = 0, validation: float = 0.0, subset: int = 0) -> Splits:
    """Hold out a fifth of the images of a source without a test split; for the other arguments see `train_and_test`."""
    rest, held_out = hold_out(images, seed=seed)
    how = "stratified by label" if images.classes or images.strata.max() >= 0 else "drawn at random"
    how = "stratified by the set of labels" if images.multi_labels is not None else how
    how += ", groups kept whole" if images.groups.max() >= 0 else ""
    share = f"{100 * len(held_out) / len(images):.0f} %" if images.groups.max() >= 0 else "20 %"
    sizes = f"train {len(rest)}, test {len(held_out)}"
    statement = f"{images.source} has no test split: {share} of its images are held out, {how}, seed {seed} ({sizes})"
    return _reduce(rest, held_out, statement, validation=validation, subset=subset)


def _reduce(train: Images, test: Images, statement: str, *, validation: float, subset: int) -> Splits:
    reduced = reduce_training(train, validation=validation, subset=subset)
    statements = printable("; ".join([statement, *reduced.statements, *train.notes]))
    return Splits(reduced.train, test if reduced.validation is None else reduced.validation, statements)


def _unused(splits: dict[str, Images], *used: Images) -> str:
    """Return the end of a statement that lists the unused splits whose names are none of the usual ones: they may be
    mistyped.
    """
    others = [
        f"{name} ({len(images)} images)" for name, images in splits.items() if name not in SPLITS and images not in used
    ]
    return f"; not used: {', '.join(others)}" if others else ""


def _matching_splits(splits: dict[str, Images], names: tuple[str, ...]) -> list[str]:
    """Return the splits with one of the names (ignoring case), in the order of `names`."""
    return [
        split for name in names for split in sorted(splits, key=lambda split: split != name) if split.lower() == name
    ]


def _choose_train(splits: dict[str, Images], train: str | None, source: str) -> Images:
    if train is not None:
        return pick(train, splits, f"split of {source}")
    if matches := _matching_splits(splits, TRAIN):
        return splits[matches[0]]
    if len(splits) == 1:
        return next(iter(splits.values()))
    raise UserError(f"{source} has no split 'train', only {', '.join(splits)}; name the training split")
