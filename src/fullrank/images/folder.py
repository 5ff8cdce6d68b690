"""Images in a folder, read without a copy or a cache, with labels from class folders if there are any."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from fullrank.errors import UserError
from fullrank.images import dicom
from fullrank.images.files import check_regular, is_below
from fullrank.images.labels import folder_labels, top_folder
from fullrank.images.reading import Reading
from fullrank.images.source import FileRows, Images
from fullrank.images.splits import ALL, by_split, is_split, named_source, splits_of_folders

PILLOW = ".jpg .jpeg .jpe .png .bmp .gif .webp .avif .tif .tiff .ppm .pgm .pbm .pnm"
# Files with other extensions are ignored.
EXTENSIONS = frozenset((*PILLOW.split(), ".npy", ".dcm"))


@dataclass(frozen=True)
class FoundFiles:
    """Files below a folder, as sorted paths relative to the folder, and the number of symbolic links that were not
    followed.
    """

    files: list[str]
    links_out: int


def walk(root: Path, extensions: Collection[str], *, follow_links: bool = False) -> FoundFiles:
    """Find the files below `root` with one of the extensions, and with `.dcm` also DICOM files without a suffix or with
    a number as suffix.

    Hidden files and folders are ignored. Each real folder is visited once, however many symbolic links lead to it, and
    before all links.
    Links to places outside `root` are counted, and followed only with `follow_links`: the folder may be a stranger's.
    What is not a regular file is in the list; to open it raises `ImageDecodeError`.

    Raises:
        UserError: a folder cannot be read.
    """
    files: list[str] = []
    visited: set[tuple[int, int]] = set()
    links_out, below = 0, [os.path.realpath(root)]
    pending, links = [""], []
    while pending or links:
        folder = pending.pop() if pending else links.pop(0)
        try:
            status = os.stat(root / folder)
            if (identity := (status.st_dev, status.st_ino)) in visited:
                continue
            visited.add(identity)
            entries = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except OSError as error:
            raise UserError(f"cannot read folder '{root / folder}': {error.strerror}; check its permissions") from error
        for entry in entries:
            path, is_folder = f"{folder}{entry.name}", _is_folder(entry)
            suffix = os.path.splitext(entry.name)[1].lower()
            numbered = ".dcm" in extensions and (not suffix or suffix[1:].isdecimal())  # as DICOM files often are
            if entry.name.startswith(".") or not (is_folder or suffix in extensions or numbered):
                continue
            if entry.is_symlink() and not is_below(root / path, below):
                links_out += 1
                if not follow_links:
                    continue
            if is_folder:
                (links if entry.is_symlink() else pending).append(f"{path}/")
            elif not numbered or _has_dicom_mark(root / path):
                files.append(path)
    return FoundFiles(sorted(files), 0 if follow_links else links_out)


def _has_dicom_mark(path: Path) -> bool:
    """Return whether a file without a suffix is a DICOM file; what is not a regular file is not opened."""
    try:
        check_regular(os.stat(path))
        with open(path, "rb") as file:
            return dicom.is_dicom(file.read(132))
    except (OSError, ValueError):
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or into a folder without permission
        return False


def open_folder(
    source: str, root: Path, files: Sequence[str], reading: Reading, notes: tuple[str, ...] = ()
) -> dict[str, Images]:
    """Return the images of each named split of a folder, with labels from class folders; without named splits, return
    `{"all": …}`.

    The top folders are splits if all top folders, or at least two, have the name of a split (`train`, `test`, `val`,
    …); files next to the splits form the split `"other"`. Inside a split, the top folders are the classes
    (`folder_labels`). A single folder that contains everything is skipped.
    """
    prefix = common_folder(files)
    files = [file.removeprefix(prefix) for file in files]
    rows = by_split(splits_of_folders([top_folder(file) for file in files]))
    parts = {split: [files[k] for k in indices] for split, indices in rows.items()}
    found = folder_labels(inside_splits(parts), reading.labels)
    return {
        split: Images(
            named_source(source, split),
            FileRows(part, os.path.join(root, prefix)),
            labels=found[split].labels,
            classes=found[split].classes,
            notes=(*notes, *found[split].notes),
            max_pixels=reading.max_pixels,
        )
        for split, part in parts.items()
    }


def common_folder(files: Sequence[str]) -> str:
    """Return the folder, with a slash at its end, that contains all files and is not named like a split, or "".

    >>> common_folder(["photos/cats/1.png", "photos/dogs/2.png"]), common_folder(["photos/train/1.png"])
    ('photos/', 'photos/')
    """
    common = os.path.commonpath([os.path.dirname(file) for file in files]) if files else ""
    parts = common.split("/") if common else []
    kept = next((k for k, part in enumerate(parts) if is_split(part)), len(parts))
    return "".join(f"{part}/" for part in parts[:kept])


def inside_splits(parts: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the names of the files of each split without the folder of the split."""
    if ALL in parts:
        return parts
    return {split: [file.removeprefix(f"{split}/") for file in part] for split, part in parts.items()}
