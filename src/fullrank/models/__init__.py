"""Load a MODEL (a run or its checkpoint, a model of timm or of the hub, a file of weights) as a frozen backbone with
its preprocessing.
"""

from fullrank.models.loading import check_run, load, load_run, parse_model
from fullrank.models.model import Model, ModelLike, resolve_device

__all__ = ["Model", "ModelLike", "check_run", "load", "load_run", "parse_model", "resolve_device"]
