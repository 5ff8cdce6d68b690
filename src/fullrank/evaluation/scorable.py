"""What can be scored: the number of images without labels, and the reasons why images have no score."""

import torch

from fullrank.images import Images, MemoryImages

AnyImages = Images | MemoryImages


def report_unlabelled(images: AnyImages, split: str) -> list[str]:
    """Return a list with one line, the number of unlabelled images, or an empty list if all images have labels."""
    labels = torch.as_tensor(images.labels if images.multi_labels is None else images.multi_labels[:, 0])
    missing = int((labels < 0).sum())
    return [f"{missing} of {len(images)} {split} images: unlabelled"] if missing else []


def why_not_scorable(train: AnyImages, test: AnyImages, *, several: bool = False) -> str:
    """Return the reason why no probe can be scored, or an empty string; `several`: whether images with several labels
    can be scored.
    """
    of_train, of_test = (f" of {source}" if (source := getattr(part, "source", "")) else "" for part in (train, test))
    if train.multi_labels is not None or test.multi_labels is not None:
        if not several:
            only = "which only fullrank evaluate scores; name a column of one label each with --data.label_column"
            return f"the images{of_train} have several labels each, {only}"
        if train.multi_labels is None or test.multi_labels is None or tuple(train.classes) != tuple(test.classes):
            return "the training and the test images have labels of other forms or classes; give the same for both"
        Y, Y_test = (torch.as_tensor(part.multi_labels) for part in (train, test))
        if not ((Y == 1).any(0) & (Y == 0).any(0)).any():
            needed = "but a probe needs images with a class and images without it"
            return f"no class divides the training images{of_train}, {needed}"
        return "" if (Y_test == 1).any() else f"no test image{of_test} has a class; name another test split"
    y, y_test = (torch.as_tensor(part.labels) for part in (train, test))
    classes = len(y[y >= 0].unique())
    if classes == 0:
        remedy = "name labelled images with --labelled SOURCE: class folders, or a table with a label column"
        return f"the training images{of_train} have no labels; {remedy}"
    if classes == 1:
        return f"all labelled training images{of_train} have the same class, but a probe needs at least two classes"
    return "" if (y_test >= 0).any() else f"the test images{of_test} have no labels; name another test split"
