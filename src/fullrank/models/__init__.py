"""Load a MODEL (a run or its checkpoint, a model of timm or of the hub, a file of weights) as a frozen backbone with
its preprocessing.
"""

from fullrank.models.device import resolve_device
from fullrank.models.load import load
from fullrank.models.model import Model
from fullrank.models.runs import load_run

__all__ = ["Model", "load", "load_run", "resolve_device"]
