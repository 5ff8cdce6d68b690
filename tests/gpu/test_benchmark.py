"""`python -m benchmarks.gpu`: every piece runs, and continues where it was stopped."""

import json
import time

import pytest
import torch

from benchmarks.gpu import accuracy, correctness
from benchmarks.gpu.parts import Part, Results, failures, run


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "gpu.json", "a GPU")


def quiet(line):
    pass


def test_a_part_is_measured_once_and_a_failed_part_again(results):
    calls = []

    def measure(name, *, fails=False):
        calls.append(name)
        if fails and calls.count(name) == 1:
            raise ValueError("no luck")
        return {"value": len(calls)}

    parts = [Part(name, lambda name=name: measure(name, fails=name == "b")) for name in "abc"]
    later = time.monotonic() + 60
    assert not run("piece", parts, results, deadline=later, notify=quiet)
    assert failures(results) == ["piece: b: ValueError: no luck"]
    again = Results(results.path, "a GPU")  # another process
    assert run("piece", parts, again, deadline=later, notify=quiet)
    assert calls == ["a", "b", "c", "b"]
    assert not failures(again)
    assert run("piece", parts, Results(results.path, "another GPU"), deadline=later, notify=quiet)
    assert len(calls) == 7
    assert sorted(json.loads(results.path.read_text())) == ["a GPU", "another GPU"]


def judged(name, epochs, seed, seconds, linear):
    steps = enumerate(linear, start=1)
    rows = [{"step": k, "seconds": seconds * k / 2, "linear": value, "kNN": value - 0.05} for k, value in steps]
    return {"name": name, "epochs": epochs, "seed": seed, "training_seconds": seconds, "accuracies": rows}


def test_the_time_to_a_level_needs_every_seed():
    found = [judged("a", 40, seed, 40 + seed, (0.8, value)) for seed, value in enumerate((0.91, 0.92, 0.93))]
    short = zip((20, 20, 20), ((0.80, 0.859), (0.7, 0.84), (0.7, 0.86)), strict=True)  # 85 % is missed with one seed
    found += [judged("a", 20, seed, *each) for seed, each in enumerate(short)]
    results = {str(k): result for k, result in enumerate(found)}
    assert accuracy.times_to(results, "linear", 0.85) == ("a, 40 epochs", [40, 41, 42])
    assert accuracy.times_to(results, "linear", 0.95) is None
    assert accuracy.times_to(results, "linear", 0.80) == ("a, 20 epochs", [10.0, 20.0, 20.0])


def test_a_wrong_gradient_and_a_missed_alarm_fail_a_check(monkeypatch):
    device = torch.device("cpu")
    right = correctness.value_and_grad
    calls = []

    def wrong(case, tensors, **options):
        calls.append(1)
        found = right(case, tensors, **options)
        longer = {name: 1.1 * g for name, g in found.gradients.items()}
        return found if len(calls) % 2 else found._replace(gradients=longer)

    assert correctness.check_objective("frossl", device, smoke=True)["passed"]
    monkeypatch.setattr(correctness, "value_and_grad", wrong)
    assert not correctness.check_objective("frossl", device, smoke=True)["passed"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(correctness.CHECKS))
def test_checks_pass_on_a_gpu(name):
    assert correctness.CHECKS[name](torch.device("cuda"))["passed"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(correctness.OBJECTIVES))
def test_a_gpu_gives_the_values_and_gradients_of_the_cpu(name):
    assert correctness.check_objective(name, torch.device("cuda"))["passed"]
