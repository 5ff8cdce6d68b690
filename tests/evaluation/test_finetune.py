"""Training of whole networks with labels: the supervised baseline, and fine-tuning beside random weights."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from torch import nn

import fullrank
from fullrank.errors import UserError
from fullrank.evaluation import Task, accuracy
from fullrank.evaluation.finetune import CLASSIFIER, RANDOM, SupervisedTraining
from fullrank.evaluation.protocol import SupervisedProtocol
from fullrank.images import Device, open_images
from fullrank.methods import BackboneConfig
from fullrank.models import Model
from fullrank.models.model_images import LabelledSplits
from fullrank.run import Run

FAST: dict[str, Any] = {"seeds": 1, "epochs": 1, "batch_size": 16}


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()
        return nn.Sequential(*first, nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())


def train(preprocess, images, test, *, seed=0, trained=None, **numbers):
    """Return the logits of the test images."""
    protocol = SupervisedProtocol(**{"batch_size": 32, "flip": 0.0} | numbers)
    training = SupervisedTraining(images, test, preprocess, protocol, torch.device("cpu"))
    return training.run(trained or network(), seed=seed)[1].logits


@pytest.fixture
def sixty():
    return open_images("digits")["all"].subset(range(60))


def test_a_network_learns_from_right_labels_and_not_from_wrong_ones(halves, preprocess):
    images, test = halves
    assert accuracy(train(preprocess, images, test, epochs=15, lr=5e-3), test.labels) > 0.7
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    wrong = replace(images, labels=images.labels[order])
    assert accuracy(train(preprocess, wrong, test, epochs=4), test.labels) < 0.3


def test_several_labels_an_image_are_learned(halves, preprocess):
    several = (torch.stack([half.labels == 0, half.labels % 2 == 0], 1).to(torch.int8) for half in halves)
    images, test = (replace(half, multi_labels=each) for half, each in zip(halves, several, strict=True))
    logits = train(preprocess, images, test, epochs=15, lr=5e-3)
    assert ((logits > 0) == (test.multi_labels == 1)).double().mean(0).min() > 0.8


def test_training_is_a_function_of_the_seed_and_leaves_the_random_state_alone(few, preprocess):
    state = torch.get_rng_state()
    first, again, other = (train(preprocess, *few, epochs=2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_unlabelled_images_are_left_out(few, preprocess):
    labels = few[0].labels.clone()
    labels[30:] = -1
    splits = LabelledSplits(replace(few[0], labels=labels), few[1], "digits", "")
    model = Model("flat", network(), preprocess, BackboneConfig())
    protocol = SupervisedProtocol(epochs=2, batch_size=32, flip=0.0)
    _, found = SupervisedTraining.of(Task(splits, Device(accelerator="cpu")), model, protocol).run(network(), seed=0)
    assert torch.equal(found.logits, train(preprocess, few[0].subset(range(30)), few[1], epochs=2))


def test_every_image_is_seen_once_in_each_epoch_in_even_batches(few, preprocess):
    class Count(nn.Module):
        def __init__(self):
            super().__init__()
            self.sizes, self.scale = [], nn.Parameter(torch.ones(1))

        def forward(self, x):
            if self.training:
                self.sizes.append(len(x))
            return self.scale * x.flatten(1)

    for n, size, expected in ((33, 32, [17, 16]), (3, 2, [3]), (60, 64, [60])):
        train(preprocess, few[0].subset(range(n)), few[1], trained=(counter := Count()), epochs=1, batch_size=size)
        assert counter.sizes == expected


def test_the_result_of_a_run_is_stored_and_repeated_by_evaluate(copy, sixty):
    sixty.labels = np.where(np.arange(60) % 9 == 0, -1, sixty.labels)  # both count the same images
    result = fullrank.finetune(copy, sixty, **FAST | {"seeds": 2})
    found = [s for s in result.scores if s.metric == "accuracy"]
    assert [(s.features, s.probe, s.n) for s in found] == [("backbone", "finetune", 2), (RANDOM, "finetune", 2)]
    (comparison,) = result.comparisons
    assert (comparison.against, comparison.seeds) == (RANDOM, 2)
    assert comparison.low <= comparison.difference <= comparison.high
    assert any("unlabelled" in line for line in result.left_out)
    (stored,) = [entry for entry in Run(copy).evaluations if entry.finetuned]
    assert stored.finetuned == result.finetuned != ""
    later = fullrank.evaluate(copy, sixty, probes=["knn"])
    assert later.finetuned == result.finetuned
    assert later.verdict not in ("", later.finetuned)
    entry = Run(copy).evaluations[-1]
    assert {each.probe for each in (*entry.scores, *entry.comparisons)} == {"finetune", "knn"}


def test_fine_tuning_repeats_and_leaves_the_model_alone(run, sixty):
    model = fullrank.load(str(run.path))
    before = {name: tensor.clone() for name, tensor in model.backbone.state_dict().items()}
    first, again = (fullrank.finetune(model, sixty, store=False, **FAST) for _ in range(2))
    assert first == again
    torch.testing.assert_close(dict(model.backbone.state_dict()), before, rtol=0, atol=0)
    zero, one = (model.untrained(seed).state_dict() for seed in (0, 1))
    assert {name: tensor.shape for name, tensor in zero.items()} == {n: t.shape for n, t in before.items()}
    assert not torch.equal(zero["conv1.weight"], one["conv1.weight"])


def test_the_folder_is_a_network_for_timm_and_for_load(tmp_path):
    pixels = torch.randint(0, 255, (40, 3, 32, 32), dtype=torch.uint8)
    data, out = (pixels, ["cat", "dog"] * 20), tmp_path / "tuned"
    source = fullrank.load("timm-untrained:test_resnet")
    fullrank.finetune(source, data, out=out, **FAST)
    loaded = fullrank.load(f"file:{out / 'model.safetensors'}")
    name = "conv1.0.weight"
    assert not torch.equal(loaded.backbone.state_dict()[name], source.backbone.state_dict()[name])
    network = timm.create_model(f"local-dir:{out}", pretrained=True, num_classes=0).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode(), safe_open(out / CLASSIFIER, "pt") as file:
        torch.testing.assert_close(network(x), loaded.backbone(x))
        assert json.loads(file.metadata()["classes"]) == ["cat", "dog"]
        logits = loaded.backbone(x) @ file.get_tensor("weight").T + file.get_tensor("bias")
    assert logits.shape == (2, 2)
    with pytest.raises(UserError, match="already"):
        fullrank.finetune(source, data, out=out, **FAST)


def test_the_network_reads_as_many_bits_as_the_labelled_images_have(tmp_path):
    for k in range(40):
        (tmp_path / "images" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(k).integers(0, 2**12, (8, 8)).astype(np.uint16)
        Image.fromarray(values).save(tmp_path / "images" / "ab"[k % 2] / f"{k}.png")
    fullrank.finetune("timm-untrained:test_resnet", str(tmp_path / "images"), out=tmp_path / "out", **FAST)
    assert fullrank.load(f"file:{tmp_path / 'out' / 'model.safetensors'}").preprocess.bits == 12


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"lr": 0.0}, {"batch_size": 1}, {"epoch": 3}])
def test_wrong_numbers_are_errors(sixty, wrong):
    with pytest.raises(UserError):
        fullrank.finetune("timm-untrained:test_resnet", sixty, **wrong)
