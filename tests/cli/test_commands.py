"""The commands that take a MODEL, on a real run."""

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import fullrank as package
from fullrank.recipes import ORIGINS, RECIPES, from_dict, to_dict
from fullrank.training import save_checkpoint


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
    assert "majority class" in out
    assert "[ ]: 95 % interval over the test images" in " ".join(out.split())
    assert "balanced accuracy" in out
    assert out.splitlines()[-1] == result["verdict"]
    assert result["verdict"] in (copy / "report.html").read_text()
    _, _, err = fullrank("evaluate", copy, "--probes", "knn", "--no-baselines")
    (again,) = json.loads((copy / "evaluation.json").read_text())["evaluations"]
    for score in (
        *result["scores"],
        *again["scores"],
    ):  # kNN is the main probe now, so its scores by class get intervals
        del score["balanced_accuracy_interval"], score["auroc_interval"]
    assert again == result  # the linear probe keeps its scores
    assert "1 earlier scores" in err


def test_evaluate_compares_several_models_on_labelled_images(fullrank, copy, photos):
    other = f"{copy}@6"
    status, out, err = fullrank(
        "evaluate", copy, other, "--labelled", photos, "--probes", "knn", "--supervised", "--supervised-epochs", 1
    )
    assert status == 0
    (result,) = json.loads((copy / "evaluation.json").read_text())["evaluations"]
    against = [comparison["against"] for comparison in result["comparisons"]]
    assert against == [other, "raw pixels", "untrained backbone", "labels alone"]
    assert "test images are also among the 1,438 images of pretraining" in err
    assert out.splitlines()[-1].startswith("Undecided: by kNN,")  # the photos are few
    status, _, err = fullrank("evaluate", copy, "--labelled", photos, "--data", photos)
    assert (status, err) == (2, "fullrank: --labelled names the labelled images; leave out --data and --transfer\n")
    status, _, err = fullrank("evaluate", copy, "nowhere")
    assert (status, err.startswith("fullrank: model 'nowhere' is no run directory")) == (2, True)


def test_scores_of_several_data_sets_stand_side_by_side(fullrank, copy, photos, monkeypatch):
    assert fullrank("evaluate", copy, "--probes", "knn")[0] == 0
    assert fullrank("evaluate", copy, "--probes", "knn", "--no-baselines", "--data", photos)[0] == 0
    digits, other = package.Run(copy).evaluations
    assert (digits.data, other.data) == ("digits (held out)", f"{photos} (held out)")
    assert [len(evaluation.scores) for evaluation in (digits, other)] == [3, 1]
    assert (digits.step, other.majority) == (22, 0.5)
    monkeypatch.chdir(photos.parent)  # another name of the same images
    assert fullrank("evaluate", copy, "--probes", "linear", "--no-baselines", "--data", "./photos/")[0] == 0
    assert [len(evaluation.scores) for evaluation in package.Run(copy).evaluations] == [3, 2]


def test_scores_of_an_older_checkpoint_are_kept_apart(fullrank, copy):
    assert fullrank("evaluate", copy, "--probes", "knn", "linear", "--no-baselines")[0] == 0
    stored = json.loads((copy / "evaluation.json").read_text())
    stored["evaluations"][0]["step"] = 11  # the run was continued since
    (copy / "evaluation.json").write_text(json.dumps(stored))
    assert fullrank("evaluate", copy, "--probes", "knn", "--no-baselines")[0] == 0
    old, new = json.loads((copy / "evaluation.json").read_text())["evaluations"]
    assert (old["step"], len(old["scores"]), new["step"], len(new["scores"])) == (11, 2, 22, 1)
    (newest,) = package.Run(copy).evaluations
    assert newest.step == 22


def test_transfer_scores_further_data_sets_beside_the_images_of_the_run(fullrank, copy, photos):
    """The network takes grey images of 8 px; the photos are colours of other sizes."""
    status, out, err = fullrank(
        "evaluate", copy, "--probes", "knn", "--no-baselines", "--knn.k", 5, "--transfer", photos
    )
    assert status == 0
    own, other = package.Run(copy).evaluations
    assert (own.data, other.data) == ("digits (held out)", f"{photos} (held out)")
    assert [[score.probe for score in evaluation.scores] for evaluation in (own, other)] == [["kNN, k 5"]] * 2
    assert own.scores[0].accuracy > 0.3
    assert f"{photos} (held out)" in (copy / "report.html").read_text()
    assert out.count("majority class") == 2
    assert "digits has no test split" in err


def test_all_data_sets_are_checked_before_the_first_is_scored(fullrank, copy, photos, tmp_path):
    (tmp_path / "flat").mkdir()
    for i, path in enumerate(photos.rglob("*.*")):
        shutil.copy(path, tmp_path / "flat" / f"{i}{path.suffix}")
    status, out, err = fullrank("evaluate", copy, "--probes", "knn", "--transfer", photos, tmp_path / "flat")
    assert (status, out) == (2, "")
    assert "have no labels" in err
    assert not (copy / "evaluation.json").exists()


def test_a_model_that_is_no_run_is_scored_on_the_transfer_data_alone(fullrank, photos, tmp_path):
    arguments = ("--probes", "knn", "--no-baselines", "--out", tmp_path / "scores.json")
    assert fullrank("evaluate", "timm-untrained:test_resnet", "--transfer", photos, *arguments)[0] == 0
    (entry,) = json.loads((tmp_path / "scores.json").read_text())["evaluations"]
    assert entry["data"] == f"{photos} (held out)"


def test_scores_of_other_numbers_stand_side_by_side(fullrank, copy):
    """Other numbers, another resize: a new score; the same numbers: the score is replaced, and a line says so."""
    for numbers in ({}, {"protocols": {"knn": {"k": 3}}}, {"protocols": {"knn": {"temperature": 0.5}}}, {"resize": 10}):
        package.evaluate(copy, probes=["knn"], baselines=False, **numbers)
    assert "1 earlier scores" in fullrank("evaluate", copy, "--probes", "knn", "--no-baselines", "--knn.k", 3)[2]
    (evaluation,) = package.Run(copy).evaluations
    assert [score.probe for score in evaluation.scores] == ["kNN", "kNN, k 3", "kNN, temperature 0.5", "kNN, resize 10"]
    assert [score.protocol.get("resize") for score in evaluation.scores] == [None, None, None, 10]
    page = (copy / "report.html").read_text()
    assert all(score.probe in page for score in evaluation.scores)


def test_a_resize_below_the_side_of_the_network_is_refused(refused, copy):
    assert "resize is 7, expected at least 8" in refused("evaluate", copy, "--resize", 7)


def test_evaluate_says_that_a_run_is_not_finished(fullrank, copy):
    arguments = ("--probes", "knn", "--no-baselines")
    assert "not finished" not in fullrank("evaluate", copy, *arguments)[2]
    shutil.rmtree(copy / "checkpoints" / "step-00000022")
    (newest,) = [max(checkpoint.step for checkpoint in package.Run(copy).checkpoints)]
    assert f"{copy} is not finished: the scores are of step {newest} of 22" in fullrank("evaluate", copy, *arguments)[2]


def test_images_without_labels_change_no_scores(fullrank, refused, copy, photos, tmp_path):
    """Scores of a run were once replaced by an empty list."""
    assert fullrank("evaluate", copy, "--probes", "knn")[0] == 0
    before = (copy / "evaluation.json").read_bytes()
    (tmp_path / "flat").mkdir()
    for i, path in enumerate(photos.rglob("*.*")):
        shutil.copy(path, tmp_path / "flat" / f"{i}{path.suffix}")
    assert "have no labels" in refused_last(fullrank, "evaluate", copy, "--data", tmp_path / "flat")
    assert (copy / "evaluation.json").read_bytes() == before


def refused_last(fullrank, *arguments):
    status, _, err = fullrank(*arguments)
    assert status == 2
    return err.splitlines()[-1]


@pytest.mark.parametrize("command", ["evaluate", "embed", "export", "spectrum"])
def test_weights_that_are_not_finite_are_refused_with_the_last_finite_checkpoint(refused, copy, tmp_path, command):
    run = package.Run(copy)
    *_, newest = run.checkpoints
    for step, value in ((newest.step - 1, float("inf")), (newest.step, float("nan"))):
        weights = newest.weights()
        weights["backbone.conv1.weight"][0, 0, 0, 0] = value
        save_checkpoint(copy / "checkpoints", step, weights=weights, state={}, meta=newest.meta(), keep=-1)
    out = {"embed": tmp_path / "a.parquet", "export": tmp_path / "a.onnx"}.get(command)
    line = refused(command, copy, *(("--out", out) if out else ()))
    assert "step-00000022" in line
    assert "not finite" in line
    assert f"{copy}@{max(c.step for c in run.checkpoints if c.step < newest.step - 1)}" in line
    assert not out or not out.exists()


@pytest.mark.parametrize("suffix", ["csv", "npz", "npy"])
def test_embed_writes_the_format_of_the_suffix(fullrank, run, tmp_path, suffix):
    expected = package.embed(run)
    out = tmp_path / f"digits.{suffix}"
    assert fullrank("embed", run.path, "--out", out)[0] == 0
    if suffix == "csv":
        import pandas

        table = pandas.read_csv(out)
        assert list(table)[:4] == ["name", "label", "class", "0"]
        assert table["class"].astype(str).tolist() == [expected.classes[label] for label in expected.labels]
        found = table[[str(i) for i in range(16)]].to_numpy()
    elif suffix == "npz":
        with np.load(out) as file:
            assert file["labels"].tolist() == expected.labels.tolist()
            assert file["names"].tolist() == expected.names
            assert tuple(file["classes"]) == expected.classes
            found = file["embeddings"]
    else:
        found = np.load(out)
    np.testing.assert_allclose(found, expected.X.numpy(), rtol=1e-5)


def test_embed_refuses_a_suffix_that_it_does_not_write(refused, run, tmp_path):
    assert ".parquet, .csv, .npz or .npy" in refused("embed", run.path, "--out", tmp_path / "digits.xlsx")
    assert list(tmp_path.iterdir()) == []


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
    features = [
        score["features"] for score in json.loads((tmp_path / "scores.json").read_text())["evaluations"][0]["scores"]
    ]
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
    assert line.endswith("has the splits test, train; choose one with --split (split='test' in Python)")


def test_export_writes_onnx(fullrank, run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    status, _, err = fullrank("export", run.path, "--out", tmp_path / "backbone.onnx")
    assert status == 0
    assert "ONNX Runtime and torch differ by" in err
    import onnx

    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "backbone.onnx").metadata_props}
    preprocess = package.load(run.path).preprocess
    expected = {"channels": 1, "size": 8, "mean": list(preprocess.mean), "std": list(preprocess.std)}
    assert json.loads(metadata["preprocess"]) == expected | {"bits": preprocess.bits, "resize": 0}
    assert json.loads(metadata["classes"]) == list("0123456789")
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


@pytest.mark.parametrize(
    "name", ["digits", "cifar10", "cifar10-swav-multicrop", "stl10-wmse-fork", "imagenet-directclr"]
)
def test_recipes_prints_a_recipe_as_json(fullrank, name):
    status, out, err = fullrank("recipes", name)
    assert (status, err) == (0, "")
    assert from_dict(json.loads(out)) == RECIPES[name]
    assert json.loads(out) == to_dict(RECIPES[name])


def test_recipes_lists_them(fullrank):
    status, out, _ = fullrank("recipes")
    assert status == 0
    assert "92.8 %" in out
    for name in RECIPES:
        assert name in out
        assert ORIGINS[name] in out
