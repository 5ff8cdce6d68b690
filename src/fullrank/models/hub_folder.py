"""A folder for the Hugging Face hub: model.safetensors, config.json, from which timm builds the network, and a model
card.
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from torch import nn

from fullrank.errors import UserError
from fullrank.files import atomic_write
from fullrank.models import Model
from fullrank.models.exporting import export_weights
from fullrank.models.model_card import model_card
from fullrank.models.weight_files import export_metadata

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
"""The files of the folder; a network that timm cannot build has no config.json."""


def write_hub_folder(
    model: Model,
    folder: Path | str,
    *,
    overwrite: bool = False,
    notify: Callable[[str], Any] = lambda line: None,
    card: str = "",
) -> Path:
    """Write the backbone as a folder that timm loads: `timm.create_model("local-dir:FOLDER", pretrained=True)`.

    Before the files appear, timm loads them, and the features of two random images are compared with those of the
    model. timm has no small stem and no `last_residual=False`; the folder of such a network has no config.json, and its
    card says how to build it.

    Args:
        model: a loaded model.
        folder: the folder; other files in it are kept.
        overwrite: replace existing files.
        notify: receives a line that says how to load the model.
        card: a further section of the model card.

    Raises:
        UserError: a file exists or cannot be written, or the loaded network differs.
    """
    folder, plain = Path(folder), is_plain(model)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, expected a folder; give another name")
    files = [WEIGHTS, CARD] + [CONFIG] * plain
    if taken := [name for name in files if (folder / name).exists() and not overwrite]:
        remedy = "choose another folder, or replace this one with --overwrite (overwrite=True in Python)"
        raise UserError(f"{folder} has a {taken[0]} already; {remedy}")
    with tempfile.TemporaryDirectory() as draft:
        export_weights(model.backbone, Path(draft, WEIGHTS), {"format": "pt"} | export_metadata(model))
        Path(draft, CARD).write_text(model_card(model, plain=plain, section=card), "utf-8", errors="backslashreplace")
        if plain:
            Path(draft, CONFIG).write_text(json.dumps(timm_config(model), indent=2) + "\n", "utf-8")
            difference = compare_with_timm(model, Path(draft))
        for name in files:  # the configuration is last: a folder without it is incomplete for timm
            with atomic_write(folder / name, overwrite=overwrite) as path:
                path.write_bytes(Path(draft, name).read_bytes())
    if plain:
        notify(
            f"{folder}: timm.create_model('local-dir:{folder}', pretrained=True) differs by at most {difference:.1e}"
        )
    else:
        notify(
            f"{folder}: fullrank.load('file:{folder / WEIGHTS}'); timm cannot build this network alone, see {folder / CARD}"
        )
    return folder


def is_plain(model: Model) -> bool:
    """Return whether `timm.create_model` alone builds the network."""
    return model.spec.stem == "standard" and model.spec.last_residual


def timm_config(model: Model) -> dict[str, Any]:
    """Return the content of config.json, in timm's format: architecture, arguments, and the preprocessing of the
    images.
    """
    backbone: Any = model.backbone
    preprocess, known = model.preprocess, dict(getattr(backbone, "pretrained_cfg", {}) or {})
    side = [preprocess.channels, preprocess.size, preprocess.size]
    pretrained: dict[str, Any] = {
        "tag": "fullrank",
        "custom_load": False,
        "input_size": side,
        "fixed_input_size": bool(known.get("fixed_input_size", False)),
        "interpolation": "bilinear",
        "crop_pct": preprocess.size / preprocess.resized,
        "crop_mode": "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "num_classes": 0,
        "pool_size": None,
        "first_conv": known.get("first_conv"),
        "classifier": known.get("classifier"),
    }
    architecture, _, _ = model.spec.name.partition(".")  # a tag names other weights
    return {
        "architecture": architecture,
        "num_classes": 0,
        "num_features": _features(backbone, preprocess).shape[1],
        "model_args": {**model.spec.arguments, "in_chans": preprocess.channels},
        "pretrained_cfg": pretrained,
    }


def compare_with_timm(model: Model, folder: Path) -> float:
    """Return the largest difference between the features of the model and those of the network that timm builds from
    the folder.

    Raises:
        UserError: timm cannot build the network, or the features differ.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            again = timm.create_model(f"local-dir:{folder}", pretrained=True)
        expected, found = (_features(network, model.preprocess) for network in (model.backbone, again))
        difference = float((expected - found).abs().max())
    except Exception as error:  # timm raises exceptions of many types
        raise UserError(
            f"timm {timm.__version__} cannot load the exported network ({error!s:.160}); export FILE.safetensors"
        ) from error
    if not difference <= 1e-4 * max(float(expected.abs().max()), 1e-6):
        raise UserError(
            f"the network that timm loads differs by {difference:.1e} in its features; export FILE.safetensors"
        )
    return difference


@torch.inference_mode()
def _features(network: nn.Module, preprocess: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, preprocess.channels, preprocess.size, preprocess.size, generator=generator)
    device = next((tensor.device for tensor in network.parameters()), torch.device("cpu"))
    was_training = network.training
    features = network.eval()(images.to(device)).float().cpu()
    network.train(was_training)
    return features


def push_to_hub(folder: Path, repository: str) -> str:
    """Upload the files of the folder to a repository of the hub, which is created as private if it does not exist;
    return its address.

    Raises:
        UserError: nobody is logged in, the name is wrong, or the hub refuses.
    """
    api = HfApi(library_name="timm")
    try:
        address = api.create_repo(repository, private=True, exist_ok=True)
        files = [name for name in (WEIGHTS, CONFIG, CARD) if (folder / name).exists()]
        api.upload_folder(
            repo_id=address.repo_id, folder_path=folder, allow_patterns=files, commit_message="Upload a backbone"
        )
    except (HfHubHTTPError, LocalTokenNotFoundError, HFValidationError, OSError) as error:
        reason = str(error).partition("\n")[0][:160]
        raise UserError(
            f"cannot upload to {repository} ({reason}); log in with `hf auth login`; the folder {folder} is complete, so upload it later"
        ) from error
    return str(address)
