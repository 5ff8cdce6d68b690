"""Images in a folder, read without a copy or a cache, with labels from class folders if there are any."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fullrank.errors import UserError, printable
from fullrank.images import dicom
from fullrank.images.decode import open_bytes
from fullrank.images.decode_errors import convert_errors
from fullrank.images.files import BYTES_PER_PIXEL, check_regular, is_below, read_regular_file
from fullrank.images.reading import MAX_PIXELS, Labels
from fullrank.images.source import Images, RawImage
from fullrank.images.splits import ALL, OTHER, TRAIN, is_split

# Files with other extensions are ignored.
EXTENSIONS = frozenset(
    (
        ".jpg",
        ".jpeg",
        ".jpe",
        ".png",
        ".bmp",
        ".gif",
        ".webp",
        ".avif",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".npy",
        ".dcm",
    )
)
MIN_IMAGES = 20  # the sizes of the folders of fewer images say nothing
MAX_MAJORITY = 0.75  # labels are assumed only if no class folder holds a larger share of the images
# Names of folders that sort photos by time, camera or origin: 2019, 2019-07, 100CANON, DCIM, camera roll, part 3, …
_ALBUM = re.compile(
    r"(19|20)\d\d([-_. ]?\d\d){0,2}\b.*|\d{3}[a-z_]{3,5}\d{0,2}|dcim|camera.*|photos?|pictures?|images?|img|albums?|screenshots?|"
    r"downloads?|"
    r"unsorted|misc|raw|originals?|edited|exports?|backups?|old|new|tmp|temp|thumb(nail)?s?|new folder.*|"
    r"(part|batch|set|vol|folder|album|roll|disc)[-_ ]?\d+",
    re.IGNORECASE,
)


class FolderImages(Images):
    """Image files below a folder."""

    def __init__(
        self,
        source: str,
        root: Path,
        files: list[str],
        labels: np.ndarray,
        classes: tuple[str, ...],
        *,
        notes: tuple[str, ...] = (),
        max_pixels: int = MAX_PIXELS,
    ):
        self.source, self.root, self.labels, self.classes, self.notes = source, root, labels, classes, notes
        self.max_pixels = max_pixels
        self.files = np.array(
            [os.fsencode(file) for file in files]
        )  # worker processes share this one buffer; they would copy a list

    def name(self, index: int) -> str:
        return os.fsdecode(self.files[index])

    def open(self, index: int) -> RawImage:
        name = self.name(index)
        with convert_errors(name):
            data = read_regular_file(self.root / name, max_bytes=BYTES_PER_PIXEL * self.max_pixels)
        return open_bytes(data, name, max_pixels=self.max_pixels)


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
            path = f"{folder}{entry.name}"
            is_folder = _is_folder(entry)
            if entry.name.startswith("."):
                continue
            suffix = os.path.splitext(entry.name)[1].lower()
            unnamed = ".dcm" in extensions and (
                not suffix or suffix[1:].isdecimal()
            )  # DICOM files are often named by their number
            if not (is_folder or suffix in extensions or unnamed):
                continue
            if entry.is_symlink() and not is_below(root / path, below):
                links_out += 1
                if not follow_links:
                    continue
            if unnamed and not is_folder and not _has_dicom_mark(root / path):
                continue
            if is_folder:
                (links if entry.is_symlink() else pending).append(f"{path}/")
            else:
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


def folder_splits(
    source: str,
    root: Path,
    files: list[str],
    *,
    labels: Labels = "auto",
    notes: tuple[str, ...] = (),
    max_pixels: int = MAX_PIXELS,
) -> dict[str, Images]:
    """Return the images of each named split of a folder, with labels from class folders; without named splits, return
    `{"all": …}`.

    The top folders are splits if all top folders, or at least two, have the name of a split (`train`, `test`, `val`,
    …); files next to the splits form the split `"other"`. Inside a split, the top folders are the classes, in sorted
    order, if there are at least two. If there is a training split, the classes of this split apply to all splits, and
    an image of another class has no label. A single folder that contains everything is skipped.

    With `labels="auto"` and without named splits, the folders are classes only if `why_no_classes` finds no reason
    against it; `"folders"` always uses them, `"none"` never.
    """
    prefix = ""
    while (
        len(tops := {file[: file.find("/") + 1] for file in files}) == 1
        and (top := tops.pop())
        and not is_split(top[:-1])
    ):
        prefix += top
        files = [file.removeprefix(top) for file in files]
    groups = group_by_split(files)
    relative = (
        groups
        if ALL in groups
        else {split: [file.removeprefix(f"{split}/") for file in files] for split, files in groups.items()}
    )
    labelled = [relative[split] for split in groups if split.lower() in TRAIN] or relative.values()
    classes = sorted({file.split("/")[0] for members in labelled for file in members if "/" in file})
    classes, note = choose_classes(classes, labels, why_no_classes(groups[ALL]) if ALL in groups else None)
    class_index = {name: k for k, name in enumerate(classes)}
    return {
        split: FolderImages(
            source if split == ALL else f"{source}[{split}]",
            root / prefix,
            members,
            np.array(
                [class_index.get(file.split("/")[0], -1) if "/" in file else -1 for file in relative[split]],
                dtype=np.int64,
            ),
            tuple(map(printable, classes)),
            notes=(*notes, *note),
            max_pixels=max_pixels,
        )
        for split, members in groups.items()
    }


def choose_classes(folders: list[str], labels: Labels, reason: str | None) -> tuple[list[str], tuple[str, ...]]:
    """Return the class folders, and a note on the decision if there is anything to decide."""
    if len(folders) < 2 or labels == "none":
        return [], ()
    if reason and labels == "auto":
        return [], (f"no labels, because {reason} (--data.labels folders: the {len(folders)} folders are classes)",)
    return folders, (f"the {len(folders)} folders are classes (--data.labels none: no labels)",)


def why_no_classes(files: list[str]) -> str | None:
    """Return why the top folders of these files are probably not classes, or None.

    Folders of classes are named after what they show, contain the images themselves, and are of comparable size.

    >>> why_no_classes(["2019/a.png", "2020/b.png"])
    'the names of the folders look like albums (2019, 2020)'
    >>> why_no_classes(["cat/a.png", "dog/b.png"])
    """
    sizes = Counter(file.partition("/")[0] for file in files if "/" in file)
    if len(sizes) < 2:
        return None
    albums = [name for name in sizes if _ALBUM.fullmatch(name)]
    if 2 * len(albums) >= len(sizes):
        return f"the names of the folders look like albums ({', '.join(albums[:3])}{', …' * (len(albums) > 3)})"
    nested = sum(file.count("/") > 1 for file in files)
    if 2 * nested > sizes.total():
        return "most images are in folders inside these folders"
    (largest, count), n = sizes.most_common(1)[0], sizes.total()
    if n >= MIN_IMAGES and count > MAX_MAJORITY * n:
        return f"{count / n:.0%} of the images are in one folder, '{largest}'"
    if n >= MIN_IMAGES and 2 * len(sizes) > n:
        return f"there are {len(sizes)} folders for {n} images"
    return None


def group_by_split(files: list[str]) -> dict[str, list[str]]:
    """Return the files of each top folder, if the top folders have the names of splits, or else `{"all": files}`."""
    tops = {file.partition("/")[0] for file in files if "/" in file}
    named = {top for top in tops if is_split(top)}
    if not named or (named != tops and len(named) < 2):  # a class may have the name "train"
        return {ALL: files}
    groups = defaultdict(list)
    for file in files:
        groups[file.partition("/")[0] if "/" in file else OTHER].append(file)
    return dict(sorted(groups.items()))
