"""How splits are called, and how the name of a split is recognised in the name of a folder or a file."""

import re

ALL = "all"  # the images of a source without named splits
OTHER = "other"  # what lies beside the named splits
TRAIN = ("train", "training")
TEST = ("test", "testing", "validation", "val", "valid", "dev", "eval")  # in the order of preference
SPLITS = (*TRAIN, *TEST, "unlabeled", "unlabelled")

_SHARD = re.compile(r"^(?P<split>\w[\w.]*)-\d+-of-\d+$")  # train-00000-of-00001, as the hub writes them
_WORD = re.compile(rf"^(?P<split>{'|'.join(sorted(SPLITS, key=len, reverse=True))})([-_.]?\d.*|[-_.].*)?$")


def is_split(name: str) -> bool:
    return name.lower() in SPLITS


def split_of_file(path: str) -> str | None:
    """Return the split that a Parquet file belongs to, from its own name or else from its folders.

    >>> split_of_file("data/train-00000-of-00004.parquet"), split_of_file("test_1.parquet"), split_of_file("val/a.parquet")
    ('train', 'test', 'val')
    """
    *folders, file = path.removesuffix(".parquet").split("/")
    if match := _SHARD.match(file) or _WORD.match(file.lower()):
        return match["split"]
    return next((folder.lower() for folder in reversed(folders) if is_split(folder)), None)
