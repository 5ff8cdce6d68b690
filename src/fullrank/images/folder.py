"""Images in a folder, read without a copy or a cache, with labels from class folders if there are any."""

import os
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

import numpy as np

from fullrank.errors import UserError
from fullrank.images.decode import open_bytes
from fullrank.images.decode_errors import convert_errors
from fullrank.images.source import Images, RawImage
from fullrank.images.splits import ALL, OTHER, TRAIN, is_split

# Files with other extensions are ignored.
EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".npy")
)


class FolderImages(Images):
    """Image files below a folder."""

    def __init__(self, source: str, root: Path, files: list[str], labels: np.ndarray, classes: tuple[str, ...]):
        self.source, self.root, self.labels, self.classes = source, root, labels, classes
        self.files = np.array([os.fsencode(file) for file in files])  # worker processes share this one buffer; they would copy a list

    def name(self, index: int) -> str:
        return os.fsdecode(self.files[index])

    def open(self, index: int) -> RawImage:
        name = self.name(index)
        with convert_errors(name):
            data = (self.root / name).read_bytes()
        return open_bytes(data, name)


def walk(root: Path, extensions: Collection[str]) -> list[str]:
    """Return the files below `root` with one of the extensions, as sorted paths relative to `root`.

    Symbolic links are followed, except links to a folder that contains the link; hidden files and folders are ignored.

    Raises:
        UserError: a folder cannot be read.
    """
    files: list[str] = []
    pending: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while pending:
        folder, ancestors = pending.pop()
        try:
            status = os.stat(root / folder)
            if (identity := (status.st_dev, status.st_ino)) in ancestors:
                continue
            entries = list(os.scandir(root / folder))
        except OSError as error:
            raise UserError(f"cannot read folder '{root / folder}': {error.strerror}; check its permissions") from error
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                pending.append((f"{folder}{entry.name}/", ancestors | {identity}))
            elif os.path.splitext(entry.name)[1].lower() in extensions and (entry.is_file() or entry.is_symlink()):
                files.append(f"{folder}{entry.name}")  # a dangling link is included: opening it raises ImageDecodeError
    return sorted(files)


def folder_splits(source: str, root: Path, files: list[str]) -> dict[str, Images]:
    """Return the images of each named split of a folder, with labels from class folders; without named splits, return `{"all": …}`.

    The top folders are splits if all top folders, or at least two, have the name of a split (`train`, `test`, `val`, …); files next to
    the splits form the split `"other"`. Inside a split, the top folders are the classes, in sorted order, if there are at least two. If
    there is a training split, the classes of this split apply to all splits, and an image of another class has no label.
    A single folder that contains everything is skipped.
    """
    prefix = ""
    while len(tops := {file[: file.find("/") + 1] for file in files}) == 1 and (top := tops.pop()) and not is_split(top[:-1]):
        prefix += top
        files = [file.removeprefix(top) for file in files]
    groups = _group_by_split(files)
    relative = groups if ALL in groups else {split: [file.removeprefix(f"{split}/") for file in files] for split, files in groups.items()}
    labelled = [relative[split] for split in groups if split.lower() in TRAIN] or relative.values()
    classes = sorted({file.split("/")[0] for members in labelled for file in members if "/" in file})
    classes = tuple(classes) if len(classes) > 1 else ()
    class_index = {name: k for k, name in enumerate(classes)}
    return {
        split: FolderImages(
            source if split == ALL else f"{source}[{split}]",
            root / prefix,
            members,
            np.array([class_index.get(file.split("/")[0], -1) if "/" in file else -1 for file in relative[split]], dtype=np.int64),
            classes,
        )
        for split, members in groups.items()
    }


def _group_by_split(files: list[str]) -> dict[str, list[str]]:
    tops = {file.partition("/")[0] for file in files if "/" in file}
    named = {top for top in tops if is_split(top)}
    if not named or (named != tops and len(named) < 2):  # a class may have the name "train"
        return {ALL: files}
    groups = defaultdict(list)
    for file in files:
        groups[file.partition("/")[0] if "/" in file else OTHER].append(file)
    return dict(sorted(groups.items()))
