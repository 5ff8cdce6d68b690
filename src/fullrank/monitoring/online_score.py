"""Score the online probe of a run on all test images."""

from collections.abc import Iterable, Iterator

import torch
from lightning.fabric import Fabric
from torch import Tensor

from fullrank.evaluation.frozen import restore_modes
from fullrank.evaluation.online import OnlineProbe, OnlineScore
from fullrank.images import Preprocess
from fullrank.images.load import Batch
from fullrank.methods import Method, at_least_float32


@torch.no_grad()
def score_online(method: Method, probe: OnlineProbe, batches: Iterable[Batch], preprocess: Preprocess, fabric: Fabric) -> OnlineScore:
    """Return the accuracies of the online probe on the representations of images, in eval mode.

    Backbone and probe use their running statistics, and nothing draws random numbers, so the method and the run are unchanged afterwards.

    Args:
        method: a `Method` with a backbone.
        probe: the online probe of the run.
        batches: pixels and labels of the images.
        preprocess: turns pixels into the input of the backbone.
        fabric: gives the device and the precision of the run.
    """

    def features() -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches:
            with fabric.autocast():
                R = method.backbone(preprocess.normalize(batch.pixels.to(fabric.device)))
            yield at_least_float32(R), batch.labels.to(fabric.device)

    with restore_modes(method):
        method.eval()
        return probe.score(features())
