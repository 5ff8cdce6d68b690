"""Which modes count as learned, and when, on the exact curves of the theory."""

import math

import numpy as np
import torch

from fullrank_papers.figures.stepwise import networks
from fullrank_papers.theory import stepwise


def test_modes_that_have_settled_are_learned_at_the_predicted_steps_and_no_others():
    rate, steps = 0.01, [0, *range(1, 2001, 3)]
    gamma = torch.tensor([1.0, 0.5, 0.3, 0.2, 0.12, 0.06, 0.03], dtype=torch.float64)
    start = torch.tensor([1e-6] * 4 + [0.8, 1e-6, 1e-6], dtype=torch.float64)  # the fifth is there from the start
    curves = stepwise.eigenvalues(rate * torch.tensor(steps).double(), (start / gamma).sqrt(), gamma)
    run = {"gamma": gamma.tolist(), "rate": rate, "steps": steps, "eigenvalues": curves.tolist()}
    predicted, measured = networks.learned(run)
    np.testing.assert_allclose(measured, predicted, rtol=0.02)  # the sixth and the seventh still grow at the end
    np.testing.assert_allclose(predicted, stepwise.learning_times((start / gamma).sqrt(), gamma)[:4] / rate)
    (correlation,) = networks.rank_correlations({"runs": [run | {"objective": "vicreg"}]}, "vicreg")
    assert math.isnan(correlation)  # of four modes
