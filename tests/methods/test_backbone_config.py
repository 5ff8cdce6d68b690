"""The configuration of the parts of a run is checked without timm; the names that it refuses are those of the installed
timm."""

import inspect

import timm
from timm.models import build_model_with_cfg

from fullrank.methods.config import NOT_ARCHITECTURE


def test_every_argument_of_timm_that_is_not_of_an_architecture_is_refused():
    for function in (timm.create_model, build_model_with_cfg):
        for name in inspect.signature(function).parameters:
            assert NOT_ARCHITECTURE.search(name), f"{name} of timm.{function.__name__}"
