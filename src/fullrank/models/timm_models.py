"""Models of timm, with pretrained or with random weights."""

from functools import partial

import timm
from huggingface_hub import model_info, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from fullrank.errors import UserError, suggest
from fullrank.methods import BackboneConfig
from fullrank.models.model import Model
from fullrank.models.network import build_untrained, summarize, timm_preprocess


def load_timm(name: str) -> Model:
    """Load a timm model with its pretrained weights.

    Size, mean and std are timm's, and so is the side to which images are resized before the crop (256 for many models
    of 224 px). The filter is bilinear; timm's evaluation may use another one.
    """
    if not timm.is_model(name):
        raise UserError(
            f"unknown timm model '{name}', expected one of timm.list_models(){suggest(name, timm.list_models())}"
        )
    if not timm.is_model_pretrained(name):
        hint = suggest(name, timm.list_pretrained())
        raise UserError(
            f"timm:{name} has no pretrained weights, expected one of timm.list_pretrained(){hint}; timm-untrained:{name} has random weights"
        )
    try:
        _check_hub(name)
        network = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub raises exceptions of many types
        raise UserError(
            f"the weights of timm:{name} are not available ({summarize(error)}); "
            "connect to the internet once so that they are cached, or give a RUN or file:PATH"
        ) from error
    spec, preprocess = BackboneConfig(name=name), timm_preprocess(network)
    return Model(
        f"timm:{name}", network.eval(), preprocess, spec, untrained=partial(build_untrained, spec, preprocess.channels)
    )


def load_timm_untrained(name: str) -> Model:
    """Load a timm model with random weights, equal at each call; the hub is not needed."""
    if not timm.is_model(name):
        raise UserError(
            f"unknown timm model '{name}', expected one of timm.list_models(){suggest(name, timm.list_models())}"
        )
    spec = BackboneConfig(name=name)
    network = build_untrained(spec, 3)
    untrained = partial(build_untrained, spec, 3)
    return Model(f"timm-untrained:{name}", network.eval(), timm_preprocess(network), spec, untrained=untrained)


def _check_hub(name: str) -> None:
    """Request the model once from the hub if its weights are not cached; without internet, timm would retry for a
    minute.
    """
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None or cfg.hf_hub_id is None:  # the weights are not on the hub
        return
    try:
        snapshot_download(cfg.hf_hub_id, local_files_only=True)
    except LocalEntryNotFoundError:
        model_info(cfg.hf_hub_id, timeout=10)
