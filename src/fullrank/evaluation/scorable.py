"""What can be scored: the name of a data set, and the reasons why its images have no score."""

import torch

from fullrank.images import Images, MemoryImages
from fullrank.images.splits import TRAIN


def name_data(train: Images | MemoryImages, test: Images | MemoryImages) -> str:
    """Return the name of a data set: the source of the test images, and that of the training images if it is not the usual one.

    >>> from fullrank.images import train_and_test
    >>> splits = train_and_test("digits")
    >>> name_data(splits.train, splits.test)
    'digits (held out)'
    """
    train_source, test_source = getattr(train, "source", "memory"), getattr(test, "source", "memory")
    if train_source == test_source:
        return test_source if train is test else f"{test_source} (held out)"
    data, _, split = train_source.rstrip("]").rpartition("[")
    usual = split.lower() in TRAIN and test_source.startswith(f"{data}[")
    return test_source if usual else f"{test_source} (trained on {train_source})"


def report_unlabelled(images: Images | MemoryImages, split: str) -> list[str]:
    """Return a list with one line, the number of unlabelled images, or an empty list if all images have labels."""
    missing = int((torch.as_tensor(images.labels) < 0).sum())
    return [f"{missing} of {len(images)} {split} images: unlabelled"] if missing else []


def why_not_scorable(train: Images | MemoryImages, test: Images | MemoryImages) -> str:
    """Return the reason why no probe can be scored, or an empty string."""
    y, y_test = (torch.as_tensor(images.labels) for images in (train, test))
    classes = len(y[y >= 0].unique())
    if classes == 0:
        remedy = "name labelled images with --labelled SOURCE: class folders, or a table with a label column"
        return f"the training images{_source(train)} have no labels; {remedy}"
    if classes == 1:
        return f"all labelled training images{_source(train)} have the same class, but a probe needs at least two classes"
    return "" if (y_test >= 0).any() else f"the test images{_source(test)} have no labels; name another test split"


def _source(images: Images | MemoryImages) -> str:
    return f" of {source}" if (source := getattr(images, "source", "")) else ""
