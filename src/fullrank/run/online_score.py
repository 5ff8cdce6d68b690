"""Scores during training, in eval mode: the online probe on all test images, or a linear probe on labels from another
place.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from lightning.fabric import Fabric
from torch import Tensor

from fullrank.evaluation.features import standardize
from fullrank.models.features import restore_modes
from fullrank.evaluation.linear import linear_probe
from fullrank.evaluation.outcomes import MANY_CLASSES, accuracy
from fullrank.evaluation.online import OnlineProbe, OnlineScore
from fullrank.images import Preprocess
from fullrank.images.load import Batch
from fullrank.methods import Method, at_least_float32

Batches = Iterable[Batch]


@torch.no_grad()
def score_online(
    method: Method, probe: OnlineProbe, batches: Batches, preprocess: Preprocess, fabric: Fabric
) -> OnlineScore:
    """Return the accuracies of the online probe on the representations of images, in eval mode.

    Backbone and probe use their running statistics, and nothing draws random numbers, so the method and the run are
    unchanged afterwards.

    Args:
        method: a `Method` with a backbone.
        probe: the online probe of the run.
        batches: pixels and labels of the images.
        preprocess: turns pixels into the input of the backbone.
        fabric: gives the device and the precision of the run.
    """
    with _eval_mode(method):
        return probe.score(_representations(method, batches, preprocess, fabric))


@torch.no_grad()
def score_labelled(
    method: Method, train: Batches, test: Batches, preprocess: Preprocess, fabric: Fabric, *, seed: int
) -> OnlineScore:
    """Return the accuracies of a linear probe that is trained on the representations of labelled images, in eval mode.

    The probe is the `linear` of `fullrank evaluate`: standardised features, full-batch L-BFGS, and a penalty chosen on
    held-out tenths of the training images. It keeps no state and draws no number of torch's generators, so the method
    and the run are unchanged afterwards.

    Args:
        method: a `Method` with a backbone.
        train: pixels and labels of the images that the probe is trained on.
        test: pixels and labels of the images that the probe is scored on.
        preprocess: turns pixels into the input of the backbone.
        fabric: gives the device and the precision of the run.
        seed: seed of the tenths.
    """
    with _eval_mode(method):
        X, y = map(torch.cat, zip(*_representations(method, train, preprocess, fabric), strict=True))
        X_test, y_test = map(torch.cat, zip(*_representations(method, test, preprocess, fabric), strict=True))
    X, X_test = standardize(X, X_test)
    logits = linear_probe(X[y >= 0], y[y >= 0], X_test, seed=seed).logits
    top5 = accuracy(logits, y_test, top=5) if max(y.max(), y_test.max()) >= MANY_CLASSES else None
    return OnlineScore(accuracy(logits, y_test), top5, len(y_test))


def _representations(
    method: Method, batches: Batches, preprocess: Preprocess, fabric: Fabric
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield representations (n, D_b) and labels (n,) of each batch."""
    for batch in batches:
        with fabric.autocast():
            R = method.backbone(preprocess.normalize(batch.pixels.to(fabric.device)))
        yield at_least_float32(R), batch.labels.to(fabric.device)


@contextmanager
def _eval_mode(method: Method) -> Iterator[None]:
    """Set eval mode inside the context, and restore the mode of every module afterwards."""
    with restore_modes(method):
        method.eval()
        yield
