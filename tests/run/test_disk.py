from dataclasses import replace

import pytest

from fullrank.recipes import build_method
from fullrank.run.disk import checkpoint_bytes
from fullrank.training import OptimizerConfig


def size(path):
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize(("keep", "kept"), [(2, 2), (1, 1), (-1, 4), (9, 4)])
def test_weights_are_counted_for_each_checkpoint_and_one_more(small, keep, kept):
    recipe = replace(small, keep_checkpoints=keep, optimizer=OptimizerConfig(name="sgd"))
    method = build_method(recipe)
    weights = sum(tensor.nbytes for tensor in method.state_dict().values())
    parameters = sum(parameter.nbytes for parameter in method.parameters())
    assert checkpoint_bytes(recipe, method) == (kept + 1) * weights + (min(kept, 2) + 1) * parameters
    adamw = replace(recipe, optimizer=OptimizerConfig(name="adamw"))
    assert checkpoint_bytes(adamw, method) == (kept + 1) * weights + (min(kept, 2) + 1) * 2 * parameters


def test_the_estimate_is_that_of_a_run(run, small):
    written = size(run.path / "checkpoints")
    estimate = checkpoint_bytes(small, build_method(small))
    assert written < 1.2 * estimate + 200_000  # file headers and the fingerprint of the images
    assert estimate < 2 * written
