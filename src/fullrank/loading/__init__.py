"""Load a MODEL (a run or its checkpoint, a model of timm or of the hub, a file of weights) as a frozen backbone with its preprocessing."""

from fullrank.loading.device import resolve_device
from fullrank.loading.load import load
from fullrank.loading.model import Model
from fullrank.loading.runs import load_run

__all__ = ["Model", "load", "load_run", "resolve_device"]
