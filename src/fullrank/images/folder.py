"""Images in a folder, read without a copy or a cache, with labels from class folders if there are any."""

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from fullrank.errors import UserError
from fullrank.files import check_file
from fullrank.images.formats import is_dicom
from fullrank.images.labels import by_split, folder_labels, is_split, splits_of_folders
from fullrank.images.reading import Reading
from fullrank.images.source import FileRows, Images, is_below

PILLOW = ".jpg .jpeg .jpe .png .bmp .gif .webp .avif .tif .tiff .ppm .pgm .pbm .pnm"
# Files with other extensions are ignored.
EXTENSIONS = frozenset((*PILLOW.split(), ".npy", ".dcm"))


def walk(root: Path, extensions: Collection[str], *, follow_links: bool = False) -> tuple[list[str], int]:
    """Return the files below `root` with one of the extensions, and with `.dcm` also DICOM files without a suffix or
    with a number as suffix, as sorted relative paths; and the number of symbolic links that were not followed.

    Hidden files and folders are ignored. Each real folder is visited once, however many symbolic links lead to it, and
    before all links. Links to places outside `root` are counted, and followed only with `follow_links`: the folder may
    be untrusted. What is not a regular file is in the list; to open it raises `ImageDecodeError`.

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
            path, is_folder = f"{folder}{entry.name}", os.path.isdir(entry)
            suffix = os.path.splitext(entry.name)[1].lower()
            numbered = ".dcm" in extensions and (not suffix or suffix[1:].isdecimal())  # as DICOM files often are
            if entry.name.startswith(".") or not (is_folder or suffix in extensions or numbered):
                continue
            if entry.is_symlink() and not is_below(root / path, below):
                links_out += not follow_links
                if not follow_links:
                    continue
            if is_folder:
                (links if entry.is_symlink() else pending).append(f"{path}/")
            elif not numbered or _has_dicom_mark(root / path):
                files.append(path)
    return sorted(files), links_out


def _has_dicom_mark(path: Path) -> bool:
    """Return whether a file without a suffix is a DICOM file; what is not a regular file is not opened."""
    try:
        check_file(path)
        with open(path, "rb") as file:
            return is_dicom(file.read(132))
    except OSError:
        return False


def open_folder(
    source: str, root: Path, files: Sequence[str], reading: Reading, notes: tuple[str, ...] = ()
) -> dict[str, Images]:
    """Return the images of each named split of a folder (`splits_of_folders`), with labels from class folders; without
    named splits, return `{"all": …}`.

    Inside a split, the top folders are the classes (`folder_labels`). A single folder that contains everything is
    skipped.
    """
    prefix = common_folder(files)
    files = [file.removeprefix(prefix) for file in files]
    splits, inside = splits_of_folders(files)
    found = folder_labels(inside, splits, reading.labels)
    found = replace(found, notes=notes + found.notes)
    images = Images(source, FileRows(files, os.path.join(root, prefix)), **vars(found), max_pixels=reading.max_pixels)
    return by_split(images, source, splits)


def common_folder(files: Sequence[str]) -> str:
    """Return the folder, with a slash at its end, that contains all files and is not named like a split, or "".

    >>> common_folder(["photos/cats/1.png", "photos/dogs/2.png"]), common_folder(["photos/train/1.png"])
    ('photos/', 'photos/')
    """
    parts = os.path.commonpath([os.path.dirname(file) for file in files]).split("/") if files else []
    return "".join(f"{part}/" for part in takewhile(lambda part: part and not is_split(part), parts))
