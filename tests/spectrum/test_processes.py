"""The spectrum of embeddings from several processes equals that of one pass over all embeddings."""

import runpy
from pathlib import Path

import pytest
import torch

from fullrank.spectrum import Moments, Spectrum

WORKER = Path(__file__).with_name("moments_worker.py")


@pytest.mark.ddp
def test_four_processes_with_unequal_parts_compute_the_spectrum_of_one_pass(together):
    Z = runpy.run_path(str(WORKER))["embeddings"]()
    whole = Spectrum.from_embeddings(Z)
    for process in together(WORKER, 4):
        assert process["n"] == 200
        for name, power in (
            ("eigenvalues", 1),
            ("singular_values", 2),
            ("streamed", 1),
        ):  # roots of eigenvalues: these agree
            expected = (whole.eigenvalues if name == "streamed" else getattr(whole, name)) ** power
            torch.testing.assert_close(process[name] ** power, expected, rtol=0, atol=1e-12 * expected[0].item())
        torch.testing.assert_close(process["rounding"], Moments.from_embeddings(Z).rounding, rtol=1e-12, atol=0)
