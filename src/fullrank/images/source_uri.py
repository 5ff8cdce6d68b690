"""Open images by their source URI, and choose the training and the test split."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fullrank.errors import UserError, pick, printable
from fullrank.images.folder import EXTENSIONS, open_folder, walk
from fullrank.images.reading import USUAL, Reading
from fullrank.images.source import Images, digits
from fullrank.images.splits import ALL, SPLITS, TEST, TRAIN, hold_out, reduce_training
from fullrank.images.uri import MEMORY, existing_path, parse_uri

Kind = Literal["images", "parquet", "arrow", "csv", "tar"]
# Suffix of a source that is one file → its kind.
FILES: dict[str, Kind] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".tar": "tar",
    ".parquet": "parquet",
}
# Kind of a source without columns → what it is, and the fields of `Reading` that it cannot use.
NO_COLUMNS = {
    "images": ("a folder of images", ("image_column", "label_column", "group_column", "split_column")),
    "tar": ("tar shards", ("image_column", "group_column", "split_column")),
}

_opened: dict[tuple[str, Reading], dict[str, Images]] | None = None


@contextmanager
def open_once() -> Iterator[None]:
    """Read each source once inside the context: one command asks several times for the same folder."""
    global _opened
    outer, _opened = _opened, {} if _opened is None else _opened
    try:
        yield
    finally:
        _opened = outer


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
    key = str(source), replace(reading, train=None, test=None)
    splits = _open(*key) if _opened is None or key not in _opened else _opened[key]
    if _opened is not None:
        _opened[key] = splits
    return dict(splits) if split is None else {split: pick(split, splits, f"split of {source}")}


def _open(source: str, reading: Reading) -> dict[str, Images]:
    scheme, rest = parse_uri(source)
    if scheme == "digits":
        return {ALL: digits()}
    if scheme == "hf":
        from fullrank.images.hub import open_hub

        return open_hub(source, rest, reading)
    found = find_files(rest, scheme, follow_links=reading.follow_links)
    what, unused = NO_COLUMNS.get(found.kind, ("", ()))
    for flag in unused:  # a group column that was silently ignored would let one patient be in training and test images
        if (name := getattr(reading, flag)) is not None:
            raise UserError(
                f"--data.{flag} is {name}, but {source} is {what}, which has no columns; leave the flag out, "
                "or give a table of paths (.csv or .parquet)"
            )
    if found.kind == "images":
        return open_folder(source, found.root, found.files, reading, found.notes)
    if found.kind == "tar":
        from fullrank.images.shards import open_shards

        return open_shards(source, found.root, found.files, reading)
    from fullrank.images.table import open_tables

    return open_tables(source, found.kind, found.root, found.files, reading)


def absolute_source(source: str) -> str:
    """Return a source URI with its path made absolute if the path exists, else unchanged.

    >>> absolute_source("hf:uoft-cs/cifar10"), absolute_source("digits")
    ('hf:uoft-cs/cifar10', 'digits')
    """
    scheme, rest = parse_uri(source)
    path = os.path.expanduser(rest)
    if source == MEMORY or scheme not in ("", "folder", "parquet") or not os.path.exists(path):
        return source
    # not os.path.abspath, because `link/..` need not be the folder that contains the link
    absolute = str(Path(path).absolute())
    return f"{scheme}:{absolute}" if scheme else absolute


@dataclass(frozen=True)
class Found:
    """The files of a source, relative to a root folder: images, Parquet files, Arrow files of `save_to_disk`, tar
    files, or a CSV file.
    """

    root: Path
    files: list[str]
    kind: Kind
    notes: tuple[str, ...] = ()


def find_files(path: str, scheme: str = "", *, follow_links: bool = False) -> Found:
    """Return the files of a path; among the files below a folder, images count before tables."""
    root = existing_path(path)
    if not root.is_dir():
        kind = FILES.get(root.suffix.lower()) if root.is_file() else None
        if kind is None or scheme == "folder" or (scheme == "parquet" and kind != "parquet"):
            what = "a file" if root.is_file() else "neither a file nor a folder"
            sources = "a folder of images or .parquet files, a .parquet file, a table of paths (.csv, .tsv), .tar files"
            raise UserError(f"'{path}' is {what}; give {sources} (unpack other archives first)")
        return Found(root.parent, [root.name], kind)
    found = walk(root, EXTENSIONS | {".parquet", ".arrow", ".tar"}, follow_links=follow_links)
    links = f"{found.links_out} symbolic links lead out of the folder and are not followed (--data.follow_links)"
    notes = (links,) if found.links_out else ()
    by_kind: dict[str, list[str]] = {"images": [], "parquet": [], "arrow": [], "tar": []}
    for file in found.files:
        suffix = os.path.splitext(file)[1].lower()[1:]
        by_kind[suffix if suffix in by_kind else "images"].append(file)
    kinds: tuple[Kind, ...] = ("images", "parquet", "arrow", "tar")
    wanted = {"folder": "images", "parquet": "parquet"}.get(scheme)
    kind: Kind | None = next((each for each in kinds if by_kind[each] and wanted in (None, each)), None)
    if kind is None:
        empty = "" if any(root.iterdir()) else " is empty:"
        expected = "Parquet files (.parquet)" if scheme == "parquet" else f"images ({' '.join(sorted(EXTENSIONS))})"
        expected += "" if scheme else " or Parquet files (.parquet)"
        note = "; ".join(("", *notes))
        raise UserError(f"folder '{path}'{empty} contains no {expected}; give a folder with such files{note}")
    if not scheme and by_kind["images"] and by_kind["parquet"]:
        raise UserError(f"'{path}' contains images and Parquet files; choose with folder:{path} or parquet:{path}")
    return Found(root, by_kind[kind], kind, notes)


@dataclass(frozen=True)
class Splits:
    """Training and test images, and a sentence that describes where they come from.

    Attributes:
        test: The test images, or the validation images that take their place.
    """

    train: Images
    test: Images
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
    statement = f"train with {train_images.source} ({len(train_images)} images){tested}"
    statement += _unused(splits, train_images, test_images)
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
