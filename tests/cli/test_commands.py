"""The commands that take a MODEL, on a real run."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import fullrank as package
from fullrank.recipes import RECIPES, from_dict, to_dict


def test_evaluate_scores_a_run_and_its_baselines(fullrank, copy):
    status, out, err = fullrank("evaluate", copy, "--probes", "linear", "knn")
    assert status == 0
    (result,) = json.loads((copy / "evaluation.json").read_text())["evaluations"]
    assert result["model"] == str(copy)
    assert (result["train_images"], result["test_images"]) == (1438, 359)
    assert {score["features"] for score in result["scores"]} == {"backbone", "raw pixels", "untrained backbone"}
    assert {score["probe"] for score in result["scores"]} == {"linear (full batch)", "kNN"}
    assert all(0 <= score["accuracy"] <= 1 for score in result["scores"])
    assert "untrained backbone" in out
    assert "digits has no test split: 20 % of its images are held out" in err
    assert f"scores: {copy / 'evaluation.json'}\n" in err
    assert "linear (full batch)" in (copy / "report.html").read_text()
    assert fullrank("evaluate", copy, "--probes", "knn", "--no-baselines")[0] == 0
    assert json.loads((copy / "evaluation.json").read_text())["evaluations"] == [result]  # the linear probe keeps its scores


def test_evaluate_writes_to_the_file_of_out(fullrank, copy, tmp_path):
    arguments = ("--probes", "knn", "--no-baselines", "--out", tmp_path / "scores.json")
    assert fullrank("evaluate", f"{copy}@6", *arguments)[0] == 0
    assert json.loads((tmp_path / "scores.json").read_text())["evaluations"][0]["model"] == f"{copy}@6"
    assert fullrank("evaluate", copy, *arguments, "--overwrite")[0] == 0
    assert not (copy / "evaluation.json").exists()


def test_evaluate_of_a_step_writes_nothing_into_the_run(fullrank, copy):
    before = sorted(path.name for path in copy.iterdir())
    status, out, _ = fullrank("evaluate", f"{copy}@6", "--probes", "knn", "--no-baselines")
    assert status == 0
    assert "kNN" in out
    assert sorted(path.name for path in copy.iterdir()) == before


def test_evaluate_of_some_dimensions_writes_nothing_into_the_run(fullrank, copy, tmp_path):
    arguments = ("--probes", "knn", "--dimensions")
    before = sorted(path.name for path in copy.iterdir())
    status, out, _ = fullrank("evaluate", copy, *arguments, "4:", "--out", tmp_path / "scores.json")
    assert status == 0
    assert "backbone[4:]" in out
    features = [score["features"] for score in json.loads((tmp_path / "scores.json").read_text())["evaluations"][0]["scores"]]
    assert features == ["backbone[4:]", "raw pixels", "untrained backbone[4:]"]
    assert sorted(path.name for path in copy.iterdir()) == before
    for text, message in (("360", "--dimensions 360 is not a range"), (":17", "dimensions is :17")):
        status, _, err = fullrank("evaluate", copy, *arguments, text)
        assert status == 2
        assert message in err


def test_embed_writes_one_row_per_image(fullrank, run, tmp_path):
    status, out, err = fullrank("embed", run.path, "--out", tmp_path / "digits.parquet")
    assert (status, out) == (0, "")
    assert err == f"1,797 embeddings of digits: {tmp_path / 'digits.parquet'}\n"
    table = pq.read_table(tmp_path / "digits.parquet")
    assert table.num_rows == 1797
    from fullrank.images import open_images

    first = package.load(run.path).features([open_images("digits")["all"].open(0)])
    np.testing.assert_allclose(table["embedding"][0].as_py(), first[0].numpy(), rtol=1e-4, atol=1e-5)


def test_embed_skips_unreadable_files_and_names_them(fullrank, run, photos, tmp_path):
    folder = shutil.copytree(photos, tmp_path / "photos")
    (folder / "cat" / "broken [1].png").write_bytes(b"")
    status, _, err = fullrank("embed", run.path, "--data", folder, "--out", tmp_path / "photos.parquet")
    assert status == 0
    assert pq.read_table(tmp_path / "photos.parquet").num_rows == 60
    assert "skipped cat/broken [1].png: " in err


def test_embed_needs_a_split_if_there_are_several(refused, run, photos, tmp_path):
    for split in ("train", "test"):
        shutil.copytree(photos, tmp_path / "splits" / split)
    line = refused("embed", run.path, "--data", tmp_path / "splits", "--out", tmp_path / "a.parquet")
    assert line.endswith("has the splits test, train; choose one with --split")


def test_export_writes_onnx(fullrank, run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    status, _, err = fullrank("export", run.path, "--out", tmp_path / "backbone.onnx")
    assert status == 0
    assert "ONNX Runtime and torch differ by" in err
    images = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    (features,) = onnxruntime.InferenceSession(tmp_path / "backbone.onnx").run(None, {"images": images.numpy()})
    with torch.inference_mode():
        np.testing.assert_allclose(features, package.load(run.path).backbone(images).numpy(), rtol=1e-3, atol=1e-4)


def test_report_compares_two_runs(fullrank, run, copy, tmp_path):
    out_file = tmp_path / "compare.html"
    status, out, _ = fullrank("report", run.path, copy, "--out", out_file)
    assert (status, out) == (0, f"{out_file}\n")
    page = out_file.read_text()
    assert "<title>" in page
    assert "small and copy" in page
    assert "<img" in page
    assert fullrank("report", copy, "--out", out_file, "--no-images", "--overwrite")[0] == 0
    assert "<img" not in out_file.read_text()


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_prints_a_recipe_as_json(fullrank, name):
    status, out, err = fullrank("recipes", name)
    assert (status, err) == (0, "")
    assert from_dict(json.loads(out)) == RECIPES[name]
    assert json.loads(out) == to_dict(RECIPES[name])


def test_recipes_lists_them(fullrank):
    status, out, _ = fullrank("recipes")
    assert status == 0
    for name in RECIPES:
        assert name[:5] in out
