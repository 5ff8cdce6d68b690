"""Fine-tuning on labelled images, beside the same network from random weights."""

import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import fullrank
from fullrank.errors import UserError
from fullrank.evaluation.features import extract_features
from fullrank.finetuning import FineTuning, compare, table
from fullrank.images import train_and_test
from fullrank.structure import structure


@pytest.fixture(scope="module")
def tuned(run, tmp_path_factory):
    """The fine-tuning of the run on the digits, and its folder."""
    folder = tmp_path_factory.mktemp("tuned") / "out"
    before = {name: tensor.clone() for name, tensor in fullrank.load(run).backbone.state_dict().items()}
    model = fullrank.load(run)
    result = fullrank.finetune(model, "digits", folder, seeds=2, epochs=12, lr=5e-3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.backbone.state_dict().items())
    return result, folder


def test_both_networks_learn_and_the_numbers_are_stored(tuned):
    result, folder = tuned
    assert min(*result.fine_tuned, *result.from_scratch) > 0.3  # chance is 0.1
    assert (result.seeds, result.test_images, result.train_images) == ((0, 1), 359, 1438)
    assert result.comparison.accuracy == pytest.approx(np.mean(result.fine_tuned))
    assert result.comparison.reference == pytest.approx(np.mean(result.from_scratch))
    stored = json.loads((folder / "finetuning.json").read_text())
    assert stored.pop("verdict") == result.verdict
    assert structure(stored, FineTuning, "finetuning.json") == result


def test_the_stored_weights_give_the_accuracy_of_the_first_seed(tuned):
    result, folder = tuned
    model = fullrank.load(f"file:{folder / 'backbone.safetensors'}")
    classifier = load_file(folder / "classifier.safetensors")
    test = train_and_test("digits", seed=0).test
    features = extract_features(model.backbone, test, model.preprocess)
    predictions = (features.X @ classifier["weight"].T + classifier["bias"]).argmax(1)
    accuracy = (predictions == features.labels).double().mean().item()
    assert accuracy == pytest.approx(result.fine_tuned[0], abs=1.01 / 359)


def test_a_longer_training_from_pretrained_weights_is_another_network(run, tuned):
    _, folder = tuned
    one, other = fullrank.load(run).backbone.state_dict(), load_file(folder / "backbone.safetensors")
    changed = [name for name in other if other[name].is_floating_point() and not torch.equal(one[name], other[name])]
    assert len(changed) == sum(tensor.is_floating_point() for tensor in other.values())


def test_the_interval_covers_seeds_and_images():
    generator = np.random.default_rng(0)
    theirs = (generator.random((400, 3)) < 0.5).astype(float)
    same_gain = np.maximum(theirs, (generator.random((400, 1)) < 0.2).astype(float))
    by_images = compare(same_gain, theirs)
    assert by_images.low < by_images.difference < by_images.high
    one_good_seed = theirs.copy()
    one_good_seed[:, 0] = 1  # the mean gain is of one seed of three
    wide = compare(one_good_seed, theirs)
    assert wide.low == pytest.approx(0, abs=0.01)  # (2/3)³ = 30 % of the resamples leave the good seed out
    assert by_images.low > 0.02
    expected = math.sqrt((same_gain - theirs).mean(1).var() / 400)  # the error of the mean over images
    assert (by_images.high - by_images.low) / 3.92 > 0.9 * expected


def test_a_group_of_images_is_resampled_as_a_whole():
    ours, theirs = np.repeat(np.eye(2)[[0, 1] * 20][:, :1], 10, axis=0), np.full((400, 1), 0.4)
    groups = np.repeat(np.arange(40), 10)
    alone, together = compare(ours, theirs), compare(ours, theirs, groups)
    assert (together.units, together.grouped) == (40, True)
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_the_table_has_a_column_for_each_seed(tuned):
    console = Console(width=120, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table(tuned[0]))
    text = console.export_text()
    assert "seed 1" in text
    assert "from random weights" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": [1, 1]}, "seeds is .1, 1."),
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 1}, "batch_size is 1"),
        ({"lr": -1.0}, "lr is -1.0"),
        ({"labelled": torch.zeros(20, 1, 8, 8, dtype=torch.uint8)}, "nothing can be trained: .* have no labels"),
    ],
)
def test_bad_arguments_are_refused(run, changes, message):
    with pytest.raises(UserError, match=message):
        fullrank.finetune(run, **({"labelled": "digits"} | changes))


def test_files_are_replaced_only_on_request(run, tuned, tmp_path):
    with pytest.raises(UserError, match=r"has a backbone.safetensors already"):
        fullrank.finetune(run, "digits", tuned[1])
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="is a file, expected a folder"):
        fullrank.finetune(run, "digits", tmp_path / "file", overwrite=True)


def test_evaluate_compares_trained_networks(run):
    result = fullrank.evaluate(run, probes=["knn"], finetune=True, supervised_epochs=1, store=False)
    scores = {(score.features, score.probe): score.accuracy for score in result.scores}
    assert {comparison.probe for comparison in result.comparisons} == {"fine-tuning"}
    by_name = {comparison.against: comparison for comparison in result.comparisons}
    assert by_name["labels alone"].reference == scores["labels alone", "network from scratch"]
    assert by_name["raw pixels"].reference == scores["raw pixels", "kNN"]
    assert by_name["labels alone"].accuracy == scores["backbone", "fine-tuning"]
    assert "by fine-tuning" in result.verdict
