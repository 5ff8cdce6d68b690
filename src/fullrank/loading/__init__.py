"""Load a MODEL (a run or its checkpoint, a model of timm or of the hub, a file of weights) as a frozen backbone with its preprocessing."""

from fullrank.loading.load import load, load_run, resolve_device
from fullrank.loading.model import Model

__all__ = ["Model", "load", "load_run", "resolve_device"]
