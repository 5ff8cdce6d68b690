"""What can be scored: the name of a data set, and the reasons why its images have no score."""

import torch

from fullrank.images import Images, MemoryImages

SEVERAL = "have several labels each, which only fullrank evaluate scores; name a column of one label each with --data.label_column"


def report_unlabelled(images: Images | MemoryImages, split: str) -> list[str]:
    """Return a list with one line, the number of unlabelled images, or an empty list if all images have labels."""
    labels = torch.as_tensor(images.labels if images.multi_labels is None else images.multi_labels[:, 0])
    missing = int((labels < 0).sum())
    return [f"{missing} of {len(images)} {split} images: unlabelled"] if missing else []


def why_not_scorable(train: Images | MemoryImages, test: Images | MemoryImages, *, several: bool = False) -> str:
    """Return the reason why no probe can be scored, or an empty string; `several`: whether images with several labels
    can be scored.
    """
    if train.multi_labels is not None or test.multi_labels is not None:
        return _why_not_several(train, test) if several else f"the images{_source(train)} {SEVERAL}"
    y, y_test = (torch.as_tensor(images.labels) for images in (train, test))
    classes = len(y[y >= 0].unique())
    if classes == 0:
        remedy = "name labelled images with --labelled SOURCE: class folders, or a table with a label column"
        return f"the training images{_source(train)} have no labels; {remedy}"
    if classes == 1:
        return (
            f"all labelled training images{_source(train)} have the same class, but a probe needs at least two classes"
        )
    return "" if (y_test >= 0).any() else f"the test images{_source(test)} have no labels; name another test split"


def _why_not_several(train: Images | MemoryImages, test: Images | MemoryImages) -> str:
    if train.multi_labels is None or test.multi_labels is None:
        return "some images have several labels each, and others one; give the labels of training and test images in the same form"
    Y, Y_test = (torch.as_tensor(images.multi_labels) for images in (train, test))
    if Y.shape[1] != Y_test.shape[1] or tuple(train.classes) != tuple(test.classes):
        return f"the training images have labels of {Y.shape[1]} classes, the test images of {Y_test.shape[1]}; give the same classes"
    if not ((Y == 1).any(0) & (Y == 0).any(0)).any():
        return f"no class divides the training images{_source(train)}, but a probe needs images with a class and images without it"
    return "" if (Y_test == 1).any() else f"no test image{_source(test)} has a class; name another test split"


def _source(images: Images | MemoryImages) -> str:
    return f" of {source}" if (source := getattr(images, "source", "")) else ""
