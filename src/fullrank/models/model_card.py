"""The model card of an exported backbone: how to load it, what it was trained on, its scores and its spectrum."""

import json
import os
from pathlib import Path
from typing import Any

from fullrank.files import parse_json, read_text
from fullrank.models import Model
from fullrank.recipes import to_dict


def model_card(model: Model, *, plain: bool, section: str = "") -> str:
    """Return README.md with its metadata for the hub.

    The card has no path of this computer: of a local source of images, it names the last folder.

    Args:
        model: a loaded model.
        plain: whether timm alone builds the network.
        section: a further section, after the one on loading.
    """
    name = os.path.basename(model.name.rstrip("/").partition("@")[0]) or "backbone"
    sections = [_front_matter(), f"# {name}\n\n{_introduction(model)}", _loading(model, plain=plain), section]
    run = _run_of(model)
    if model.recipe:
        sections.append(_recipe(model))
    if run and model.step is not None:
        sections += [_scores(run / "evaluation.json", model.step), _spectrum(run / "metrics.jsonl", model.step)]
    return "\n\n".join(section for section in sections if section) + "\n"


def classifier_section(file: str, classes: int) -> str:
    """Return the section on the linear classifier of a fine-tuned backbone, which is in a file of its own.

    Args:
        file: name of the safetensors file with weight (K, D), bias (K,) and the names of the classes as metadata.
        classes: the number of classes K.
    """
    code = [
        "import json",
        "from safetensors import safe_open",
        "",
        f'with safe_open("{file}", "pt") as file:',
        '    classes = json.loads(file.metadata()["classes"])  # their names, in the order of the logits; empty if the labels are numbers',
        '    weight, bias = file.get_tensor("weight"), file.get_tensor("bias")',
        "logits = features @ weight.T + bias  # (n, K)",
        "probabilities = logits.softmax(1)",
    ]
    text = (
        f"The backbone was fine-tuned with labels. `{file}` is the linear classifier of {classes} classes that was trained with it: "
        f"`weight` (K, D), `bias` (K,), and the names of the classes as metadata. `{file}` fits the features of `model.safetensors` only."
    )
    before = "`features` is the output of the backbone for n images, (n, D)."
    return "\n".join(["## Classify", "", text, "", "```python", *code, "```", "", before])


def _run_of(model: Model) -> Path | None:
    if model.path or model.recipe is None:
        return model.path
    path = Path(model.name.rpartition("@")[0])  # RUN@STEP
    return path if path.is_dir() else None


def public_name(source: str) -> str:
    """Return the name of a source or of a MODEL without the folders of this computer.

    >>> public_name("/home/me/photos[test]"), public_name("hf:uoft-cs/cifar10[test]"), public_name("folder:a/b"), public_name("digits")
    ('photos[test]', 'hf:uoft-cs/cifar10[test]', 'b', 'digits')
    """
    return source if source.startswith(("hf:", "hf-hub:", "timm:")) else os.path.basename(source.rstrip("/")) or source


def _front_matter() -> str:
    tags = ["image-feature-extraction", "timm", "fullrank", "self-supervised-learning"]
    return "\n".join(
        [
            "---",
            "library_name: timm",
            "pipeline_tag: image-feature-extraction",
            "tags:",
            *(f"- {tag}" for tag in tags),
            "---",
        ]
    )


def _introduction(model: Model) -> str:
    size, channels = model.preprocess.size, model.preprocess.channels
    network = f"a {model.spec.name} for images of {size} × {size} px with {channels} channel{'s' * (channels != 1)}"
    if model.recipe is None:
        return f"The backbone is {network}."
    source = public_name(model.recipe.data.source)
    return (
        f"The backbone is {network}. fullrank pretrained it on {source} without labels, by the objective "
        f"{model.recipe.objective}; the weights are those of step {model.step:,}. It returns features and has no classifier."
    )


def _loading(model: Model, *, plain: bool) -> str:
    preprocess = model.preprocess
    if plain:
        code = [
            "import timm",
            "",
            'model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()  # or "hf-hub:OWNER/NAME"',
            "config = timm.data.resolve_model_data_config(model)",
            "transform = timm.data.create_transform(**config, is_training=False)",
            "features = model(transform(image)[None])  # image: a Pillow image",
        ]
        extra = "For fine-tuning, `num_classes=10` adds a classifier."
    else:
        arguments = "".join(f", {key}={value!r}" for key, value in model.spec.arguments.items())
        code = [
            "import timm, torch",
            "from safetensors.torch import load_file",
            "",
            f'model = timm.create_model("{model.spec.name}", num_classes=0, in_chans={preprocess.channels}{arguments})',
        ]
        if model.spec.stem == "small":
            code += [
                "model.conv1 = torch.nn.Conv2d(model.conv1.in_channels, model.conv1.out_channels, 3, padding=1, bias=False)",
                "model.maxpool = torch.nn.Identity()",
            ]
        code += ['model.load_state_dict(load_file("model.safetensors"))', "model.eval()"]
        extra = (
            "timm's `create_model` has no argument for this network, so the code changes the network that timm builds."
        )
        if not model.spec.last_residual:
            code, extra = [], "timm cannot build this network, whose last block has no shortcut; fullrank can."
    mean, std = ([round(value, 4) for value in values] for values in (preprocess.mean, preprocess.std))
    lines = ["## Load", *(["```python", *code, "```", ""] if code else []), extra, ""]
    lines += [
        f"Pixels in [0, 1], mean {mean}, standard deviation {std}; the shorter side is resized to {preprocess.resized} px."
    ]
    lines += ['With fullrank: `fullrank.load("file:model.safetensors")`, which has the preprocessing.']
    return "\n".join(lines)


def _recipe(model: Model) -> str:
    assert model.recipe is not None
    values: dict[str, Any] = to_dict(model.recipe)
    values["data"]["source"] = public_name(str(values["data"]["source"]))
    values["init"] = public_name(str(values["init"]))
    rows = {"objective": model.recipe.objective, "epochs": model.recipe.epochs, "step of these weights": model.step}
    rows |= {"batch size": model.recipe.batch_size, "seed": model.recipe.seed}
    table = [f"| {name} | {value} |" for name, value in rows.items()]
    whole = [
        "<details><summary>Complete recipe</summary>",
        "",
        "```json",
        json.dumps(values, indent=2),
        "```",
        "",
        "</details>",
    ]
    return "\n".join(["## Recipe", "", "| | |", "|---|---|", *table, "", *whole])


def _scores(file: Path, step: int) -> str:
    """Return a table of the scores of a checkpoint, from the evaluation.json of its run."""
    entries = parse_json(read_text(file))["evaluations"] if file.exists() else []
    rows = [
        f"| {public_name(entry['data'])}, {entry['test_images']:,} | {public_name(score['features'])} | {score['probe']} "
        f"| {100 * score['accuracy']:.1f} %{_interval(score)} |"
        for entry in entries
        if entry.get("step") == step
        for score in entry["scores"]
    ]
    text = "Accuracy of probes on frozen features, or the metric that the probe names, on test images; in brackets its 95 % interval."
    head = ["| images | features | probe | score |", "|---|---|---|---:|"]
    return "\n".join(["## Scores", "", text, "", *head, *rows]) if rows else ""


def _interval(score: dict[str, Any]) -> str:
    spread = f" ± {100 * score['sd']:.1f} (n = {score['n']})" if score.get("sd") is not None else ""
    if score.get("low") is None or score.get("high") is None:
        return spread
    return f"{spread} [{100 * score['low']:.1f}, {100 * score['high']:.1f}]"


def _spectrum(file: Path, step: int) -> str:
    """Return a table of the last spectra up to a checkpoint, from the metrics.jsonl of its run."""
    lines = read_text(file).splitlines() if file.exists() else []
    rows = [row for line in lines if (row := parse_json(line))["kind"] == "spectrum" and row["step"] <= step]
    if not rows:
        return ""
    table = [
        f"| {where} | {rows[-1][where]['samples']:,} | {rows[-1][where]['dimensions']:,} | {rank:.1f} | {collapsed} |"
        for where in ("backbone", "projector")
        if (rank := rows[-1][where].get("effective_rank")) is not None
        and (collapsed := rows[-1][where].get("collapsed_dimensions")) is not None
    ]
    heading = f"Covariance of the features of held-out images, at step {rows[-1]['step']:,}."
    head = ["| | images | dimensions | effective rank | collapsed dimensions |", "|---|---:|---:|---:|---:|"]
    return "\n".join(["## Spectrum", "", heading, "", *head, *table])
