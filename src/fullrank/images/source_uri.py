"""The grammar of SOURCE: from the words of a user to images, and to one clear line where that cannot be."""

import difflib
import os
import re
from pathlib import Path

from fullrank.errors import UserError, pick, suggest
from fullrank.images.digits import DigitImages
from fullrank.images.folder import EXTENSIONS, folder_splits, walk
from fullrank.images.names import ALL
from fullrank.images.source import Images

SCHEMES = ("folder", "parquet", "hf")
_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]+):(?P<rest>.*)", re.DOTALL)  # two letters at least: C: is a drive


def open_images(source: str | Path, *, split: str | None = None, image: str | None = None, label: str | None = None) -> dict[str, Images]:
    """Open a SOURCE: split name → images, `{"all": …}` where there are no named splits.

    | SOURCE | what |
    |---|---|
    | `digits` | scikit-learn's 1797 digits (a folder of that name is `./digits`) |
    | `PATH` | a folder of images, or a Parquet file or a folder of them |
    | `folder:PATH`, `parquet:PATH` | the same, said explicitly |
    | `hf:NAME`, `hf:NAME:CONFIG` | a data set of the Hugging Face hub |

    Args:
        source: The SOURCE.
        split: Only this split.
        image: The image column of a table, where it is not found by its type.
        label: The label column of a table, where it is not the ClassLabel or called `label`, `labels` or `fine_label`.

    Raises:
        UserError: there are no such images; the line says what there is.

    >>> {split: len(images) for split, images in open_images("digits").items()}
    {'all': 1797}
    """
    source = str(source)
    scheme, rest = parse(source)
    if scheme == "digits":
        splits: dict[str, Images] = {ALL: DigitImages()}
    elif scheme == "hf":
        splits = _open_hub(source, rest, image, label)
    else:
        splits = _open_path(source, rest, scheme, image, label)
    return splits if split is None else {split: pick(split, splits, f"split of {source}")}


def parse(source: str) -> tuple[str, str]:
    """Return the scheme and what follows it; a bare path has the scheme `""`.

    >>> parse("digits"), parse("hf:uoft-cs/cifar10"), parse("photos/2024")
    (('digits', ''), ('hf', 'uoft-cs/cifar10'), ('', 'photos/2024'))
    """
    if source == "digits":
        return "digits", ""
    match = _SCHEME.fullmatch(source)
    if match is None or (match["scheme"] not in SCHEMES and Path(source).exists()):
        return "", source
    if match["scheme"] not in SCHEMES:
        raise UserError(
            f"unknown kind of source '{match['scheme']}:' in '{source}'; "
            f"choose digits, a path, folder:PATH, parquet:PATH or hf:NAME{suggest(match['scheme'], SCHEMES)}"
        )
    if not match["rest"]:
        raise UserError(f"nothing after '{source}'; write {match['scheme']}:{'NAME' if match['scheme'] == 'hf' else 'PATH'}")
    return match["scheme"], match["rest"]


def _open_hub(source: str, name: str, image: str | None, label: str | None) -> dict[str, Images]:
    from fullrank.images.hub import load_hub  # `datasets` takes a second to import
    from fullrank.images.table import table_splits

    return table_splits(source, load_hub(name), image=image, label=label)


def _open_path(source: str, path: str, scheme: str, image: str | None, label: str | None) -> dict[str, Images]:
    root, files, tables = find_files(path, scheme)
    if not tables:
        return folder_splits(source, root, files)
    from fullrank.images.table import parquet_files, read_parquet, table_splits

    tables = {split: read_parquet(members) for split, members in parquet_files(root, files).items()}
    return table_splits(source, tables, image=image, label=label)


def find_files(path: str, scheme: str = "") -> tuple[Path, list[str], bool]:
    """Return the root, the files below it, and whether they are Parquet (else images)."""
    root = Path(path).expanduser()
    if not os.path.exists(root):  # unlike Path.exists, False where a folder above may not be read
        raise UserError(f"no file or folder '{path}'{_nearest(root)}")
    if root.is_file():
        if root.suffix.lower() == ".parquet" and scheme != "folder":
            return root.parent, [root.name], True
        raise UserError(f"'{path}' is a file; give a folder of images (unpack an archive first), a .parquet file or a folder of them")
    files = walk(root, EXTENSIONS | {".parquet"})
    tables = [file for file in files if file.lower().endswith(".parquet")]
    pictures = [file for file in files if not file.lower().endswith(".parquet")]
    if scheme == "parquet" or (tables and not pictures and scheme != "folder"):
        found, what = tables, "Parquet files (.parquet)"
    else:
        found, what = pictures, f"images ({' '.join(sorted(EXTENSIONS))})" + (" or Parquet files (.parquet)" if not scheme else "")
    if tables and pictures and not scheme:
        raise UserError(f"'{path}' holds images and Parquet files; say which with folder:{path} or parquet:{path}")
    if not found:
        empty = "" if any(root.iterdir()) else " is empty:"
        raise UserError(f"folder '{path}'{empty} holds no {what}; give the folder that holds them")
    return root, found, found is tables


def _nearest(path: Path) -> str:
    """Say how far the path exists, and which name there comes closest."""
    while not os.path.exists(path.parent):
        path = path.parent
    where = path.parent
    try:
        near = difflib.get_close_matches(path.name, [entry.name for entry in where.iterdir()], n=1)
    except OSError as error:
        return f"; '{where}' cannot be read: {error.strerror}; check its permissions"
    return f"; the nearest existing name is '{where / near[0]}'" if near else f"; there is no '{path.name}' in '{where.absolute()}'"
