"""WebDataset shards: tar files of images, with labels in members of the same key or in class folders. Nothing is ever
unpacked.
"""

import json
import os
import posixpath
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fullrank.errors import UserError, pick, printable
from fullrank.images.decode import open_bytes
from fullrank.images.decode_errors import ImageDecodeError, convert_errors
from fullrank.images.files import BYTES_PER_PIXEL, check_regular
from fullrank.images.folder import EXTENSIONS, MIN_IMAGES, choose_classes, group_by_split, why_no_classes
from fullrank.images.reading import MAX_PIXELS, Labels
from fullrank.images.source import MAX_CLASSES, Images, RawImage
from fullrank.images.splits import ALL, OTHER, is_split, split_of_file

CLS = "cls"
"""Extension of a member with a class number or a class name, as WebDataset writes it."""
JSON_KEYS = ("label", "labels", "class", "cls", "class_name", "category", "target")
"""Keys of the object of a `.json` member that are labels, the first that exists."""
MAX_CLS_BYTES = 256
MAX_JSON_BYTES = 2**20


class TarImages(Images):
    """Images that are members of tar files, read at their place in the file.

    Args:
        source: the source URI.
        files: the tar files.
        shard: (n,) the tar file of each image.
        offsets: (n,) the first byte of each image.
        sizes: (n,) the number of bytes of each image.
        names: (n,) the names of the images, as bytes.
        max_pixels: refuse an image with more pixels.
    """

    def __init__(
        self,
        source: str,
        files: Sequence[str],
        shard: np.ndarray,
        offsets: np.ndarray,
        sizes: np.ndarray,
        names: np.ndarray,
        *,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.source, self.files, self.max_pixels = source, tuple(files), max_pixels
        self.shard, self.offsets, self.sizes, self.names = shard, offsets, sizes, names
        self.labels, self.classes = np.full(len(names), -1, dtype=np.int64), ()

    def select(self, source: str, rows: np.ndarray) -> "TarImages":
        """Return some of the images, without labels, under another source."""
        return TarImages(
            source,
            self.files,
            self.shard[rows],
            self.offsets[rows],
            self.sizes[rows],
            self.names[rows],
            max_pixels=self.max_pixels,
        )

    def name(self, index: int) -> str:
        """Return the shard and the name of the member."""
        return f"{os.path.basename(self.files[self.shard[index]])}/{os.fsdecode(self.names[index])}"

    def open(self, index: int) -> RawImage:
        name, size = self.name(index), int(self.sizes[index])
        with convert_errors(name):
            if not 0 <= size <= BYTES_PER_PIXEL * self.max_pixels:  # a damaged header can have a negative size
                raise ImageDecodeError(
                    name, f"the image has {size} bytes, which is negative or more than data.max_pixels can need"
                )
            with open(self.files[self.shard[index]], "rb") as file:
                file.seek(int(self.offsets[index]))
                data = file.read(size)
            if len(data) < size:
                raise ImageDecodeError(name, "the tar file is truncated")
        return open_bytes(data, name, max_pixels=self.max_pixels)


def open_shards(
    source: str,
    root: Path,
    files: Sequence[str],
    *,
    labels: Labels = "auto",
    label: str | None = None,
    max_pixels: int = MAX_PIXELS,
) -> dict[str, Images]:
    """Return the images of each split of tar files, by the split in their names (`train-000000.tar`), with labels if
    there are any.

    The key of a member is its name up to the first dot of the last part, so `a/01.jpg` has its label in `a/01.cls` (a
    class number, or the name of a class) or in the object of `a/01.json`. The first of these gives the labels of all
    splits: `.cls` members, the first of `JSON_KEYS` that a `.json` member has, and class folders inside the tar files
    by the rules of a folder (`why_no_classes`). Links, devices and other members that are no files are ignored.

    Args:
        source: The source URI.
        root: The folder of the tar files.
        files: The tar files, relative to `root`.
        labels: "auto" as above; "folders": the top folders inside the tar files; "none": no labels.
        label: The key of `.json` members that has the label, or `cls` for the `.cls` members.
        max_pixels: Refuse an image with more pixels.

    Raises:
        UserError: a file cannot be read, there are no images, or no image has the requested label.
    """
    found = {file: split_of_file(file.removesuffix(Path(file).suffix)) for file in files}
    rest = OTHER if any(found.values()) else ALL
    members: dict[str, list[str]] = {}
    for file, split in found.items():
        members.setdefault(split or rest, []).append(str(root / file))
    indexed = {
        split: _index(source if split == ALL else f"{source}[{split}]", shards, max_pixels)
        for split, shards in members.items()
    }
    splits = {split: images for split, (images, _) in sorted(indexed.items()) if len(images)}
    if not splits:
        raise UserError(f"the tar files of {source} contain no images ({' '.join(sorted(EXTENSIONS))})")
    texts = {split: texts for split, (_, texts) in indexed.items() if split in splits}
    inside = _without_common_folder({split: images.names for split, images in splits.items()})
    if ALL in splits and ALL not in (groups := group_by_split(inside[ALL])):  # folders inside the files name the splits
        index = {
            split: np.array(
                [k for k, name in enumerate(inside[ALL]) if (name.partition("/")[0] if "/" in name else OTHER) == split]
            )
            for split in groups
        }
        splits = {split: splits[ALL].select(f"{source}[{split}]", rows) for split, rows in index.items()}
        texts = {split: [texts[ALL][k] for k in rows] for split, rows in index.items()}
        inside = {split: [inside[ALL][k].removeprefix(f"{split}/") for k in rows] for split, rows in index.items()}
    if labels != "none":
        _label(source, splits, texts, inside, labels, label)
    return dict(splits)


_Texts = list[dict[str, str]]  # for each image: `cls` or the key of the JSON object → label


def _index(source: str, files: list[str], max_pixels: int) -> tuple[TarImages, _Texts]:
    """Return the images of some tar files, and what each image has as labels."""
    rows: list[tuple[int, int, int, bytes]] = []
    texts: _Texts = []
    for shard, path in enumerate(files):
        keys: list[str] = []
        labels: dict[str, dict[str, str]] = {}
        try:
            check_regular(os.stat(path))
            with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
                for member in tar:
                    folder, slash, base = member.name.rpartition("/")
                    key, _, extension = base.partition(".")
                    key = folder + slash + key
                    if not member.isreg() or member.issparse() or base.startswith("."):
                        continue
                    if extension.lower() == CLS and member.size <= MAX_CLS_BYTES:
                        text = (tar.extractfile(member) or file).read(member.size).decode().strip()
                        labels.setdefault(key, {})[CLS] = text
                    elif extension.lower() == "json" and member.size <= MAX_JSON_BYTES:
                        given = _json_labels((tar.extractfile(member) or file).read(member.size))
                        labels[key] = given | labels.get(key, {})
                    elif os.path.splitext(base)[1].lower() in EXTENSIONS:
                        rows.append((shard, member.offset_data, member.size, os.fsencode(member.name)))
                        keys.append(key)
                    tar.members = []  # pyright: ignore[reportAttributeAccessIssue]  # tarfile keeps all
        except (OSError, tarfile.TarError, ValueError, EOFError) as error:
            reason = getattr(error, "strerror", None) or f"{error}"
            remedy = "give complete, uncompressed tar files (unpack .tar.gz first)"
            raise UserError(f"cannot read the tar file '{path}': {printable(reason)}; {remedy}") from error
        texts += [labels.get(key, {}) for key in keys]
    shards, offsets, sizes = (np.array([row[k] for row in rows], dtype=np.int64) for k in range(3))
    return TarImages(
        source, files, shards, offsets, sizes, np.array([row[3] for row in rows]), max_pixels=max_pixels
    ), texts


def _json_labels(data: bytes) -> dict[str, str]:
    """Return the values of a JSON object that can be labels, integers and short texts; {} for what is no JSON
    object.
    """
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    items = values.items() if isinstance(values, dict) else ()
    return {
        key: f"{v}"
        for key, v in items
        if (isinstance(v, int) and not isinstance(v, bool)) or (isinstance(v, str) and 0 < len(v) < 256)
    }


def _without_common_folder(names: dict[str, np.ndarray]) -> dict[str, list[str]]:
    """Return the names of the members without `./` and without the folder that contains them all."""
    clean = {
        split: [posixpath.normpath(os.fsdecode(name)).lstrip("/") for name in members]
        for split, members in names.items()
    }
    common = posixpath.commonpath([posixpath.dirname(name) for members in clean.values() for name in members])
    while common and is_split(posixpath.basename(common)):  # all images are in one split, whose name is kept
        common = posixpath.dirname(common)
    return {split: [name.removeprefix(f"{common}/") for name in members] for split, members in clean.items()}


def _label(
    source: str,
    splits: dict[str, TarImages],
    texts: dict[str, _Texts],
    inside: dict[str, list[str]],
    labels: Labels,
    requested: str | None,
) -> None:
    """Set the labels of the images of all splits, from the members or from the class folders."""
    known = {key for members in texts.values() for own in members for key in own}
    if requested is not None and labels != "folders":
        pick(requested, dict.fromkeys(sorted(known)), f"label of the members of {source}")
    if labels == "folders":
        _set_folders(source, splits, inside, labels)
    elif key := requested or next((key for key in (CLS, *JSON_KEYS) if key in known), None):
        values = {split: [own.get(key) for own in members] for split, members in texts.items()}
        where = "the .cls members are" if key == CLS else f"the values of '{printable(key)}' in the .json members are"
        _set_texts(splits, values, where, asked=requested is not None, given=key == CLS)
    else:
        _set_folders(source, splits, inside, labels)


def _set_texts(
    splits: dict[str, TarImages], texts: dict[str, list[str | None]], where: str, *, asked: bool, given: bool
) -> None:
    """Set labels and classes: class numbers if all labels are numbers, else the sorted names of the classes, the same
    in all splits.
    """
    present = [text for members in texts.values() for text in members if text is not None]
    values = sorted(set(present))
    numbers = all(
        text.removeprefix("-").isascii() and text.removeprefix("-").isdecimal() and len(text) < 19 for text in values
    )
    number = {text: max(int(text), -1) if numbers else k for k, text in enumerate(values)}
    classes = () if numbers else tuple(map(printable, values))
    reason = None
    if max(number.values()) >= MAX_CLASSES:
        reason = f"its numbers go up to {max(number.values())}"
    elif not (asked or given) and len(present) >= MIN_IMAGES and 2 * len(values) > len(present):
        reason = f"it has {len(values)} different values for {len(present)} images"
    if reason and asked:
        raise UserError(
            f"{where} no label of classes: {reason}; name another key with --data.label_column, or give --data.labels none"
        )
    for split, images in splits.items():
        if reason:
            images.notes = (f"no labels, although {where} there: {reason}, so it does not look like a label",)
            continue
        images.labels = np.array([-1 if text is None else number[text] for text in texts[split]], dtype=np.int64)
        images.classes, images.notes = classes, (f"{where} the labels (--data.labels none: no labels)",)


def _set_folders(source: str, splits: dict[str, TarImages], inside: dict[str, list[str]], labels: Labels) -> None:
    """Set the labels to the top folders inside the tar files, by the rules of class folders."""
    every = [name for members in inside.values() for name in members]
    tops = {
        split: [name.partition("/")[0] if "/" in name else None for name in members]
        for split, members in inside.items()
    }
    found = sorted({top for own in tops.values() for top in own if top is not None})
    classes, note = choose_classes(found, labels, why_no_classes(every))
    if labels == "folders" and not classes:
        raise UserError(
            f"data.labels is folders, but the tar files of {source} have no class folders inside; expected auto or none"
        )
    number = {name: k for k, name in enumerate(classes)}
    for split, images in splits.items():
        images.notes = note
        if classes:
            images.labels = np.array([number.get(top or "", -1) for top in tops[split]], dtype=np.int64)
            images.classes = tuple(map(printable, classes))
