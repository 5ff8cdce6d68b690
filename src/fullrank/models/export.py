"""Export a backbone with its preprocessing: safetensors, which timm can load, the whole network as ONNX, or a folder
for the Hugging Face hub.
"""

import copy
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

from fullrank.errors import Notify, UserError, exception_line, silent
from fullrank.files import atomic_write, check_new, parse_json, read_jsonl, read_text
from fullrank.methods.backbones import feature_dim
from fullrank.models.loading import load, parse_model
from fullrank.models.model import Model, ModelLike
from fullrank.recipes import to_dict
from fullrank.training.checkpoints import to_safetensors

# The files of a folder; a network that timm cannot build has no config.json.
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"


def export(
    model: ModelLike,
    out: Path | str,
    *,
    push_to_hub: str | None = None,
    overwrite: bool = False,
    notify: Notify = silent,
) -> Path:
    """Write the backbone of a model to FILE.safetensors or FILE.onnx, or to a folder for the Hugging Face hub, and
    return the path.

    A folder has model.safetensors, config.json and a model card with recipe, scores and spectrum; plain timm loads it:
    `timm.create_model("local-dir:FOLDER", pretrained=True)`. The weights and the ONNX file hold the preprocessing
    (channels, size, mean, std) and the names of the classes as metadata. `fullrank.load("file:FILE")` loads a
    safetensors file; timm alone can load the weights of a backbone with a standard stem.

    Args:
        model: a MODEL (see `load`), a `Run`, or a loaded model.
        out: the file, whose suffix determines the format; a path without a suffix is a folder.
        push_to_hub: upload the folder to this repository, OWNER/NAME; a new repository is private.
        overwrite: replace an existing file.
        notify: receives a line that says how to load the file.

    Raises:
        UserError: the model does not exist, the suffix is unknown, the file exists or cannot be written, or the upload
            fails.
    """
    path = Path(out)
    suffix = "" if os.path.isdir(path) else path.suffix.lower()
    if suffix not in ("", ".safetensors", ".onnx"):
        raise UserError(f"{out} ends in '{suffix}', expected .safetensors, .onnx, or a folder, whose name has no dot")
    if suffix and push_to_hub is not None:
        raise UserError(f"a folder is uploaded to {push_to_hub}, but out is the file {out}; give a folder")
    loaded = load(model)
    if not suffix:
        write_hub_folder(loaded, path, overwrite=overwrite, notify=notify)
        if push_to_hub is not None:
            notify(f"uploaded: {upload(path, push_to_hub)}")
    elif suffix == ".onnx":
        difference = export_onnx(loaded, path, overwrite=overwrite)
        notify(f"{path}: ONNX Runtime and torch differ by at most {difference:.1e}")
    else:
        with atomic_write(path, overwrite=overwrite) as draft:
            draft.write_bytes(safetensors_of(loaded))
        notify(f"{path}: fullrank.load('file:{path}')")
        if loaded.is_plain:
            arguments = {"num_classes": 0, "in_chans": loaded.preprocess.channels, **loaded.spec.arguments}
            words = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
            notify(f"or timm.create_model('{loaded.spec.name}', {words}).load_state_dict(…)")
    return path


def export_onnx(model: Model, path: Path | str, *, overwrite: bool = False) -> float:
    """Write the network as one ONNX file for any number of images, with the preprocessing as metadata, and compare its
    features with torch.

    ONNX's checker validates the file, and ONNX Runtime runs it on batches of 1 and 3 random images, before the file
    appears.

    Returns:
        The largest absolute difference between the features of ONNX Runtime and of torch.

    Raises:
        UserError: the onnx extra is not installed, or the file exists or cannot be written.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401  torch.onnx needs it
    except ModuleNotFoundError as missing:
        needed = f"export to ONNX needs {missing.name}, which is not installed"
        raise UserError(f"{needed}; run: pip install 'fullrank[onnx]'") from missing
    network = copy.deepcopy(model.backbone).cpu().eval()
    C, S = model.preprocess.channels, model.preprocess.size
    images = torch.randn(3, C, S, S, generator=torch.Generator().manual_seed(0))
    with atomic_write(Path(path), overwrite=overwrite) as temporary:
        torch.onnx.export(
            network,
            (images,),
            temporary,
            dynamo=True,
            external_data=False,  # one file
            verbose=False,
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("n")},),
        )
        stored = onnx.load(temporary)
        onnx.helper.set_model_props(stored, model.metadata)
        onnx.save(stored, temporary)
        onnx.checker.check_model(temporary, full_check=True)
        session = onnxruntime.InferenceSession(temporary, providers=["CPUExecutionProvider"])
        runs = [(session.run(["features"], {"images": n.numpy()})[0], n) for n in (images, images[:1])]
        with torch.inference_mode():
            return max((torch.from_numpy(found) - network(batch)).abs().max().item() for found, batch in runs)


def write_hub_folder(
    model: Model,
    folder: Path | str,
    *,
    overwrite: bool = False,
    notify: Notify = silent,
    classes: int = 0,
    extra: Mapping[str, bytes] = {},
) -> Path:
    """Write the backbone as a folder that timm loads: `timm.create_model("local-dir:FOLDER", pretrained=True)`.

    timm has no small stem and no `last_residual=False`; the folder of such a network has no config.json, and its card
    says how to build it.

    Args:
        model: a loaded model.
        folder: the folder; other files in it are kept.
        overwrite: replace existing files.
        notify: receives a line that says how to load the model.
        classes: the number of classes of a classifier beside the weights; 0: there is none.
        extra: further files.

    Raises:
        UserError: a file exists or cannot be written.
    """
    folder = Path(folder)
    card = model_card(model, classes=classes).encode(errors="backslashreplace")
    files = {WEIGHTS: safetensors_of(model), CARD: card, **extra}
    said = f"fullrank.load('file:{folder / WEIGHTS}'); timm cannot build this network alone, see {folder / CARD}"
    if model.is_plain:  # the configuration is last: a folder without it is incomplete for timm
        files[CONFIG] = (json.dumps(timm_config(model), indent=2) + "\n").encode()
        said = f"timm.create_model('local-dir:{folder}', pretrained=True)"
    check_folder(folder, files, overwrite=overwrite)
    for name, content in files.items():
        with atomic_write(folder / name, overwrite=overwrite) as draft:
            draft.write_bytes(content)
    notify(f"{folder}: {said}")
    return folder


def check_folder(folder: Path, names: Iterable[str], *, overwrite: bool) -> None:
    """Check that a folder can take files with these names.

    Raises:
        UserError: it is a file, or has one of the files already.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, expected a folder; give another name")
    check_new(*(folder / name for name in names), overwrite=overwrite)


def safetensors_of(model: Model) -> bytes:
    """Return the parameters and buffers of the backbone as a file, with the metadata that describes network and
    preprocessing; timm's loader requires a format.
    """
    return to_safetensors(model.backbone.state_dict(), {"format": "pt"} | model.metadata)


def timm_config(model: Model) -> dict[str, Any]:
    """Return the content of config.json, in timm's format: architecture, arguments, and the preprocessing of the
    images.
    """
    preprocess, known = model.preprocess, dict(getattr(model.backbone, "pretrained_cfg", None) or {})
    C, S = preprocess.channels, preprocess.size
    pretrained: dict[str, Any] = {name: known.get(name) for name in ("fixed_input_size", "first_conv", "classifier")}
    pretrained |= {"tag": "fullrank", "custom_load": False, "num_classes": 0, "pool_size": None}
    pretrained |= {"input_size": [C, S, S], "mean": list(preprocess.mean), "std": list(preprocess.std)}
    pretrained |= {"interpolation": "bilinear", "crop_pct": S / preprocess.resized, "crop_mode": "center"}
    return {
        "architecture": model.spec.name.partition(".")[0],  # a tag names other weights
        "num_classes": 0,
        "num_features": feature_dim(model.backbone),
        "model_args": {**model.spec.arguments, "in_chans": C},
        "pretrained_cfg": pretrained,
    }


def upload(folder: Path, repository: str) -> str:
    """Upload the files of the folder to a repository of the hub, which is created as private if it does not exist;
    return its address.

    Raises:
        UserError: nobody is logged in, the name is wrong, or the hub refuses.
    """
    api = HfApi(library_name="timm")
    try:
        address = api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id,
            folder_path=folder,
            allow_patterns=[WEIGHTS, CONFIG, CARD],
            commit_message="Upload a backbone",
        )
    except (HfHubHTTPError, LocalTokenNotFoundError, HFValidationError, OSError) as error:
        remedy = f"log in with `hf auth login`; the folder {folder} is complete, so upload it later"
        raise UserError(f"cannot upload to {repository} ({exception_line(error)}); {remedy}") from error
    return str(address)


def model_card(model: Model, *, classes: int = 0) -> str:
    """Return README.md with its metadata for the hub.

    The card has no path of this computer: of a local source of images, it names the last folder.

    Args:
        model: a loaded model.
        classes: the number of classes of a classifier beside the weights; 0: there is none.
    """
    recipe: dict[str, Any] = to_dict(model.recipe) if model.recipe else {}
    if recipe:
        for part, field in ((recipe["data"], "source"), (recipe, "init"), (recipe["probe"], "labelled")):
            part[field] = public_name(part[field])
    environment = jinja2.Environment()
    environment.filters |= {"public": public_name, "percent": lambda share: f"{100 * share:.1f}"}
    template = environment.from_string(Path(__file__).with_name("model_card.md.j2").read_text("utf-8"))
    name = os.path.basename(model.name.rstrip("/").partition("@")[0]) or "backbone"
    parts = {"model": model, "preprocess": model.preprocess, "recipe": recipe, "json": json.dumps(recipe, indent=2)}
    return template.render(name=name, classes=classes, **parts, **measured(model))


def measured(model: Model) -> dict[str, Any]:
    """Return the scores of a checkpoint of a run, each after its entry in evaluation.json, and the last spectra up to
    it, of metrics.jsonl.
    """
    if model.recipe is None or model.step is None:
        return {}
    run = model.path or Path(parse_model(model.name).name)  # RUN@STEP
    file = run / "evaluation.json"
    entries = parse_json(read_text(file))["evaluations"] if file.exists() else []
    of_step = [entry for entry in entries if entry.get("step") == model.step]
    by_class = ("balanced accuracy", "AUROC")
    scores = [(entry, score) for entry in of_step for score in entry["scores"] if score["metric"] not in by_class]
    rows, _ = read_jsonl(run / "metrics.jsonl")
    spectra = [row for row in rows if row["kind"] == "spectrum" and row["step"] <= model.step]
    return {"scores": scores, "spectrum": spectra[-1] if spectra else None}


def public_name(source: str) -> str:
    """Return the name of a source or of a MODEL without the folders of this computer.

    >>> public_name("/home/me/photos[test]"), public_name("hf:uoft-cs/cifar10[test]"), public_name("folder:a/b")
    ('photos[test]', 'hf:uoft-cs/cifar10[test]', 'b')
    """
    return source if source.startswith(("hf:", "hf-hub:", "timm:")) else os.path.basename(source.rstrip("/")) or source
