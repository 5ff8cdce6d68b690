"""Parts for a training loop of your own: every objective as a module, the modules around it, and the augmented views.

`Loss("vicreg")(z0, z1)` is called like the losses of other libraries. With several processes it is the loss of the
whole batch. It carries the state of the objective in its buffers. The objectives themselves are pure functions
(`fullrank.objectives`).
"""

from fullrank.distributed import SyncBatchNorm, convert_sync_batchnorm
from fullrank.methods.heads import ClipToUnitBall, L2Normalize, Prototypes, build_predictor
from fullrank.methods.projectors import IterNorm, ProjectorConfig, build_projector
from fullrank.methods.teacher_student import EMA
from fullrank.nn.loss import Loss
from fullrank.nn.views import Views

__all__ = [
    "EMA", "ClipToUnitBall", "IterNorm", "L2Normalize", "Loss", "ProjectorConfig", "Prototypes", "SyncBatchNorm",
    "Views", "build_predictor", "build_projector", "convert_sync_batchnorm",
]  # fmt: skip
