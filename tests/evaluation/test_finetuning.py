"""Fine-tuning beside the same network from random weights."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file

import fullrank
from fullrank.errors import UserError
from fullrank.evaluation.finetuning import CLASSIFIER, FINE_TUNING, RANDOM, compare, random_network, seed_half_width
from fullrank.evaluation.result import ProbeResult
from fullrank.images import MemoryImages, open_images
from fullrank.run import Run

FAST: dict[str, Any] = {"seeds": 1, "epochs": 1, "batch_size": 16}


@pytest.fixture
def digits():
    return open_images("digits")["all"].subset(range(60))


def page_functions():
    """Return the functions of docs/finetuning.md."""
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", Path("docs/finetuning.md").read_text("utf-8"), re.DOTALL):
        if "def " in block:
            exec(block, names)
    return names


def result(predictions):
    return ProbeResult(0.0, None, torch.tensor(predictions))


def test_the_result_of_a_run_is_stored_and_repeated_by_evaluate(copy, digits):
    evaluation = fullrank.finetune(copy, digits, **FAST)
    assert [(score.features, score.probe) for score in evaluation.scores] == [
        ("backbone", FINE_TUNING),
        (RANDOM, FINE_TUNING),
    ]
    (stored,) = [entry for entry in Run(copy).evaluations if entry.finetuned]
    assert stored.finetuned == evaluation.finetuned != ""
    later = fullrank.evaluate(copy, digits, probes=["knn"], baselines=True)
    assert later.finetuned == evaluation.finetuned
    assert later.verdict not in ("", later.finetuned)
    entry = Run(copy).evaluations[-1]
    assert {score.probe for score in entry.scores} == {FINE_TUNING, "kNN"}
    assert {comparison.probe for comparison in entry.comparisons} == {FINE_TUNING, "kNN"}


def test_unlabelled_images_do_not_separate_the_entries_of_fine_tuning_and_probes(copy, digits):
    digits.labels = np.where(np.arange(60) % 9 == 0, -1, digits.labels)
    evaluation = fullrank.finetune(copy, digits, **FAST)
    assert fullrank.evaluate(copy, digits, probes=["knn"], baselines=False).finetuned == evaluation.finetuned != ""


def test_training_is_a_function_of_the_seed_and_leaves_the_model_alone(copy, digits):
    model = fullrank.load(str(copy))
    before = {name: tensor.clone() for name, tensor in model.backbone.state_dict().items()}
    first, again = (fullrank.finetune(model, digits, store=False, **FAST) for _ in range(2))
    assert first == again
    torch.testing.assert_close(model.backbone.state_dict(), before, rtol=0, atol=0)


def test_random_weights_differ_between_seeds_and_fit_the_network(copy):
    model = fullrank.load(str(copy))
    zero, one = (random_network(model, seed).state_dict() for seed in (0, 1))
    assert {name: tensor.shape for name, tensor in zero.items()} == {
        n: t.shape for n, t in model.backbone.state_dict().items()
    }
    assert not torch.equal(zero["conv1.weight"], one["conv1.weight"])


def test_the_folder_is_a_network_for_timm_and_for_load(tmp_path, monkeypatch):
    pixels = torch.randint(0, 255, (40, 3, 32, 32), dtype=torch.uint8)
    images = MemoryImages(pixels, torch.arange(40) % 2, tuple(map(str, range(40))), ("cat", "dog"))
    source = fullrank.load("timm-untrained:test_resnet")
    out = tmp_path / "tuned"
    lines = []
    fullrank.finetune(source, images, out=out, progress=lines.append, **FAST)
    loaded = fullrank.load(f"file:{out / 'model.safetensors'}")
    assert not torch.equal(
        loaded.backbone.state_dict()["conv1.0.weight"], source.backbone.state_dict()["conv1.0.weight"]
    )
    network = timm.create_model(f"local-dir:{out}", pretrained=True, num_classes=0).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(network(x), loaded.backbone(x))
        head = load_file(out / CLASSIFIER)
        network = page_functions()["load_classifier"](out)
        logits = loaded.backbone(x) @ head["weight"].T + head["bias"]
        torch.testing.assert_close(network(x), logits)
        monkeypatch.chdir(out)
        *_, code = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
        names = {"features": loaded.backbone(x)}
        exec(code, names)
    torch.testing.assert_close(names["probabilities"], logits.softmax(1))
    assert names["classes"] == ["cat", "dog"]
    assert [line for line in lines if "epoch 1 of 1" in line] == lines[-2:], "both trainings say their epoch"
    with pytest.raises(UserError, match="already"):
        fullrank.finetune(source, images, out=out, **FAST)


def test_the_network_reads_as_many_bits_as_the_labelled_images_have(tmp_path):
    for k in range(20):
        (tmp_path / "images" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(k).integers(0, 2**12, (8, 8)).astype(np.uint16)
        Image.fromarray(values).save(tmp_path / "images" / "ab"[k % 2] / f"{k}.png")
    fullrank.finetune("timm-untrained:test_resnet", str(tmp_path / "images"), out=tmp_path / "out", **FAST)
    assert fullrank.load(f"file:{tmp_path / 'out' / 'model.safetensors'}").preprocess.bits == 12


def test_the_interval_joins_the_errors_of_images_and_seeds():
    y = torch.arange(100) % 2
    ours = [result(y.tolist()) for _ in range(3)]
    theirs = [result(torch.where(torch.arange(100) < wrong, 1 - y, y).tolist()) for wrong in (10, 20, 30)]
    scores, (comparison,) = compare({"a": ours, "b": theirs}, y, None, protocol={})
    half = 4.302653 * 0.1 / math.sqrt(3)  # t(0.975, 2) · sd / √3
    assert comparison.seed_half_width == pytest.approx(half, rel=1e-5)
    assert comparison.difference == pytest.approx(0.2)
    assert seed_half_width(np.array([0.2])) == 0.0
    assert comparison.low < 0.2 - half
    assert comparison.high > 0.2 + half
    assert (scores[1].n, scores[1].sd) == (3, pytest.approx(0.1))


def test_equal_predictions_decide_nothing():
    y = torch.arange(40) % 2
    same = [result(y.tolist()), result((1 - y).tolist())]
    (comparison,) = compare({"a": same, "b": same}, y, np.arange(40) // 2, protocol={})[1]
    assert (comparison.difference, comparison.low, comparison.high) == (0.0, 0.0, 0.0)
    assert (comparison.units, comparison.grouped) == (20, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"seeds": 0}, "seeds is 0"), ({"lr": 0.0}, "lr is 0.0"), ({"batch_size": 1}, "batch_size is 1")],
)
def test_wrong_numbers_are_errors(digits, changes, message):
    with pytest.raises(UserError, match=message):
        fullrank.finetune("timm-untrained:test_resnet", digits, **changes)
