"""The losses of lightly, as the benchmark of exactness measures them."""

import pickle

import pytest
import torch

from fullrank.testing import objective_case

LOSSES = pytest.importorskip("benchmarks.lightly_losses", reason="needs lightly").LOSSES


@pytest.mark.parametrize("name", LOSSES)
def test_another_process_can_compute_the_loss(name):
    case = pickle.loads(pickle.dumps(objective_case(LOSSES[name][0], name=name)))
    N, D = (16, 4) if name == "WMSELoss" else (8, 5)
    assert torch.isfinite(case.objective(case.random_tensors(N=N, D=D)["Z"])["loss"])
