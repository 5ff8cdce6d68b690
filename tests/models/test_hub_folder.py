"""The folder of `fullrank export` for the Hugging Face hub, loaded by plain timm."""

import json
import os
import re
import shutil

import pytest
import timm
import torch
from PIL import Image

import fullrank as package
from fullrank import export, load
from fullrank.errors import UserError
from fullrank.models.export import upload


def code_of(card):
    return re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_timm_loads_the_folder_with_the_preprocessing(name, tmp_path):
    model, said = load(f"timm-untrained:{name}"), []
    folder = export(model, tmp_path / "hub", notify=said.append)
    assert sorted(os.listdir(folder)) == ["README.md", "config.json", "model.safetensors"]
    again = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, 3, model.preprocess.size, model.preprocess.size)
    assert torch.equal(again(images), model.backbone(images))
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(again), is_training=False)
    picture = Image.effect_noise((300, 200), 80).convert("RGB")
    with torch.inference_mode():
        assert torch.allclose(again(transform(picture)[None]), model.features(picture), atol=1e-4)
    assert "local-dir" in said[0]
    classifier = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=7).eval()  # for fine-tuning
    assert torch.equal(classifier.forward_features(images), model.backbone.forward_features(images))
    assert classifier(images).shape == (2, 7)


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_transformers_loads_the_folder(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = load(f"timm-untrained:{name}")
    again = transformers.AutoModel.from_pretrained(export(model, tmp_path / "hub")).eval()
    images = torch.randn(2, 3, model.preprocess.size, model.preprocess.size)
    with torch.inference_mode():
        assert torch.equal(again(images).pooler_output, model.backbone(images))


def test_the_code_on_the_card_builds_a_network_that_timm_has_not(copy, tmp_path):
    """The run has the small stem, arguments of the network, and grey images."""
    package.evaluate(copy, probes=["knn"], baselines=False)
    folder = export(copy, tmp_path / "hub")
    assert sorted(os.listdir(folder)) == ["README.md", "model.safetensors"]
    card = (folder / "README.md").read_text()
    names = {}
    exec(code_of(card).replace("FOLDER", str(folder)), names)
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(names["model"](images), load(copy).backbone(images))
    score = package.Run(copy).evaluations[0].main
    assert f"| backbone | kNN | {100 * score.value:.1f} % [{100 * score.low:.1f}, {100 * score.high:.1f}] |" in card
    rank = package.Run(copy).metrics.spectrum[-1].backbone.effective_rank
    assert f"| {rank:.1f} |" in card
    assert '"objective": "frossl"' in card
    assert str(tmp_path) not in card


def test_the_card_of_an_earlier_checkpoint_has_its_spectrum_and_no_later_score(copy, tmp_path):
    package.evaluate(copy, probes=["knn"], baselines=False)
    run = package.Run(copy)
    step = run.checkpoints[0].step
    card = (export(f"{copy}@{step}", tmp_path / "hub") / "README.md").read_text()
    assert "## Scores" not in card
    assert f"at step {max(row.step for row in run.metrics.spectrum if row.step <= step):,}." in card


def test_the_card_of_an_earlier_checkpoint_below_runs_is_complete_and_names_no_local_table(copy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(copy, tmp_path / "runs" / "short")
    recipe = json.loads((tmp_path / "runs/short/recipe.json").read_text())
    recipe["probe"]["labelled"] = str(tmp_path / "labels.csv")
    (tmp_path / "runs/short/recipe.json").write_text(json.dumps(recipe))
    step = package.Run(copy).checkpoints[0].step
    card = (export(f"short@{step}", tmp_path / "hub") / "README.md").read_text()
    assert "at step" in card
    assert "labels.csv" in card
    assert str(tmp_path) not in card


def test_a_folder_is_not_overwritten_by_default_and_keeps_other_files(tmp_path):
    model = load("timm-untrained:test_resnet")
    folder = export(model, tmp_path / "hub")
    (folder / "notes.txt").write_text("mine")
    (folder / "config.json").write_text("{}")
    with pytest.raises(UserError, match="already"):
        export(model, folder)
    assert (folder / "config.json").read_text() == "{}"
    export(model, folder, overwrite=True)
    assert json.loads((folder / "config.json").read_text())["architecture"] == "test_resnet"
    assert (folder / "notes.txt").read_text() == "mine"


def test_only_the_folder_is_uploaded_and_only_when_asked(tmp_path, monkeypatch):
    calls = []

    class Api:
        def __init__(self, **_):
            pass

        def create_repo(self, name, **options):
            calls.append((name, options["private"]))
            return type("Address", (str,), {"repo_id": name})(f"https://huggingface.co/{name}")

        def upload_folder(self, **options):
            calls.append(sorted(options["allow_patterns"]))

    monkeypatch.setattr("fullrank.models.export.HfApi", Api)
    model, said = load("timm-untrained:test_resnet"), []
    export(model, tmp_path / "hub")
    assert calls == []
    export(model, tmp_path / "hub", push_to_hub="me/mine", overwrite=True, notify=said.append)
    assert calls == [("me/mine", True), ["README.md", "config.json", "model.safetensors"]]
    assert said[-1] == "uploaded: https://huggingface.co/me/mine"
    with pytest.raises(UserError, match="give a folder"):
        export(model, tmp_path / "a.onnx", push_to_hub="me/mine")


def test_a_refused_upload_is_a_user_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no network\nmore")

    monkeypatch.setattr("fullrank.models.export.HfApi.create_repo", refuse)
    with pytest.raises(UserError, match=r"^cannot upload to me/mine \(ConnectionError: no network\)"):
        upload(tmp_path, "me/mine")


def test_the_command_writes_a_folder_and_refuses_other_suffixes(tmp_path, capsys):
    from fullrank.cli import main

    assert main(["export", "timm-untrained:test_resnet", "--out", str(tmp_path / "hub")]) == 0
    assert (tmp_path / "hub" / "config.json").exists()
    assert main(["export", "timm-untrained:test_resnet", "--out", str(tmp_path / "a.pt")]) == 2
    assert "or a folder" in capsys.readouterr().err
