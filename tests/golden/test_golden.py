"""What a refactor must not change: see `compute.py`."""

import json

import pytest

from golden import compute as golden

VALUES = json.loads(golden.VALUES.read_text())
STEPS = 6  # later, training amplifies the rounding errors of another processor, to 0.3 % of the loss after 22 steps


def test_every_objective_has_its_terms_and_gradients():
    found = golden.golden_gradients()
    assert found.keys() == VALUES["gradients"].keys()
    for name, expected in VALUES["gradients"].items():
        assert found[name]["terms"] == pytest.approx(expected["terms"], rel=1e-9), name
        assert found[name]["gradients"] == pytest.approx(expected["gradients"], rel=1e-8, abs=1e-9), name


def test_every_recipe_has_its_values():
    found = golden.golden_recipes()
    assert found["default"] == VALUES["recipes"]["default"]
    assert found == VALUES["recipes"]


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.ddp)])
def test_a_run_has_its_losses_spectrum_and_scores(devices, tmp_path):
    found, expected = golden.golden_run(devices, tmp_path), VALUES["runs"][str(devices)]
    for name in ("train", "probe"):
        assert found[name][:STEPS] == pytest.approx(expected[name][:STEPS], rel=1e-5), name
        assert found[name] == pytest.approx(expected[name], rel=0.01), name
    assert found["spectrum"][:2] == pytest.approx(expected["spectrum"][:2], rel=0.05)  # effective ranks
    if devices == 1:
        assert found["scores"] == pytest.approx(expected["scores"], abs=0.03)
