"""A folder of images, walked as it lies: no copy, no cache, labels from class folders where there are any."""

import os
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

import numpy as np

from fullrank.errors import UserError
from fullrank.images.decode import open_bytes
from fullrank.images.decode_error import reading
from fullrank.images.names import ALL, OTHER, TRAIN, is_split
from fullrank.images.source import Images, Picture

# Other files are ignored.
EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".npy")
)


class FolderImages(Images):
    """Image files below a folder."""

    def __init__(self, source: str, root: Path, files: list[str], labels: np.ndarray, classes: tuple[str, ...]):
        self.source, self.root, self.labels, self.classes = source, root, labels, classes
        self.files = np.array([os.fsencode(file) for file in files])  # one buffer: worker processes share it, a list they would copy

    def name(self, index: int) -> str:
        return os.fsdecode(self.files[index])

    def open(self, index: int) -> Picture:
        name = self.name(index)
        with reading(name):
            data = (self.root / name).read_bytes()
        return open_bytes(data, name)


def walk(root: Path, extensions: Collection[str]) -> list[str]:
    """List the files below `root` with one of the extensions, as sorted paths relative to it.

    Symbolic links are followed, except to a folder that contains them; hidden files and folders are ignored.

    Raises:
        UserError: a folder may not be read.
    """
    found: list[str] = []
    pending: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while pending:
        below, above = pending.pop()
        try:
            status = os.stat(root / below)
            if (identity := (status.st_dev, status.st_ino)) in above:
                continue
            entries = list(os.scandir(root / below))
        except OSError as error:
            raise UserError(f"cannot read folder '{root / below}': {error.strerror}; check its permissions") from error
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                pending.append((f"{below}{entry.name}/", above | {identity}))
            elif os.path.splitext(entry.name)[1].lower() in extensions and (entry.is_file() or entry.is_symlink()):
                found.append(f"{below}{entry.name}")  # a dangling link counts: opening it says why it is bad
    return sorted(found)


def folder_splits(source: str, root: Path, files: list[str]) -> dict[str, Images]:
    """Arrange the files of a folder in named splits (`{"all": …}` without any), with labels from class folders.

    Folders at the top are splits if all of them, or at least two, are called like one (`train`, `test`, `val`, …); files beside
    them form the split `"other"`. Below that, the top folders are the classes, in sorted order, if there are at least two; the
    classes are those of the training split where there is one, and an image outside of them is unlabelled.
    A single folder around everything is looked through.
    """
    around = ""
    while len(tops := {file[: file.find("/") + 1] for file in files}) == 1 and (top := tops.pop()) and not is_split(top[:-1]):
        around += top
        files = [file.removeprefix(top) for file in files]
    groups = _groups(files)
    inside = groups if ALL in groups else {split: [file.removeprefix(f"{split}/") for file in files] for split, files in groups.items()}
    teachers = [inside[split] for split in groups if split.lower() in TRAIN] or inside.values()
    classes = sorted({file.split("/")[0] for members in teachers for file in members if "/" in file})
    classes = tuple(classes) if len(classes) > 1 else ()
    number = {name: k for k, name in enumerate(classes)}
    return {
        split: FolderImages(
            source if split == ALL else f"{source}[{split}]",
            root / around,
            members,
            np.array([number.get(file.split("/")[0], -1) if "/" in file else -1 for file in inside[split]], dtype=np.int64),
            classes,
        )
        for split, members in groups.items()
    }


def _groups(files: list[str]) -> dict[str, list[str]]:
    tops = {file.partition("/")[0] for file in files if "/" in file}
    named = {top for top in tops if is_split(top)}
    if not named or (named != tops and len(named) < 2):  # one class among others may be called "train"
        return {ALL: files}
    groups = defaultdict(list)
    for file in files:
        groups[file.partition("/")[0] if "/" in file else OTHER].append(file)
    return dict(sorted(groups.items()))
