"""The table of docs/own-loop.md: the losses of lightly that have our value and gradient, and those that
differ."""

import math
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightly")
from lightly import loss as lightly

from benchmarks.contenders import IN_LIGHTLY, gradients, inputs, losses
from fullrank.nn import Loss

PAGE = Path(__file__).parents[2].joinpath("docs", "own-loop.md").read_text()
# Objective → factor of our value and gradient.
EQUAL = dict.fromkeys(("simclr", "swav", "simsiam", "dino", "vicreg", "wmse"), 1.0) | {"byol": 4.0}
# Objective → least and largest cosine of the gradients.
DIFFERENT = {
    "barlow_twins": (1 - 1e-8, 1.0),
    "moco": (0.999, 1 - 1e-6),
    "tico": (0.99, 0.999),
    "frossl": (0.9, 0.99),
    "directclr": (0.9, 0.99),
}


def both(name):
    """Return value and gradient of ours and of lightly's."""
    tensors = inputs(name, 24, 8, dtype=torch.float64)
    for who in ("fullrank", "lightly"):
        loss = losses(name, tensors)[who]  # anew: lightly's classes keep a state
        yield loss(**tensors).detach(), torch.cat([g.flatten() for g in gradients(losses(name, tensors)[who], tensors)])


def test_the_table_has_every_objective_whose_counterpart_in_lightly_is_compared():
    assert {*EQUAL, *DIFFERENT} == {*IN_LIGHTLY}
    table = PAGE.partition("### Beside lightly")[2].partition("##")[0]
    assert all(f"| `{name}` |" in table for name in IN_LIGHTLY)


def test_the_page_names_every_loss_of_lightly():
    words = {word.removesuffix("loss") for word in re.findall("[a-z]+", PAGE.lower())}
    names = [name for name in dir(lightly) if name.endswith("Loss")]
    families = [name.removesuffix("Loss").replace("Patch", "").lower() for name in names]
    known = {"detconb": "detcon", "detcons": "detcon", "pmsncustom": "pmsn", "ibotplusplus": "ibot"}
    known["kernelalignment"] = "alignment"
    assert not [name for name in families if known.get(name, name) not in words]


@pytest.mark.parametrize("name", EQUAL)
def test_value_and_gradient_are_those_of_lightly(name):
    (value, gradient), (theirs, its_gradient) = both(name)
    torch.testing.assert_close(gradient, EQUAL[name] * its_gradient, rtol=1e-6, atol=1e-9)
    if name != "byol":  # 4 + 4 ℒ
        assert value.item() == pytest.approx(theirs.item(), rel=1e-8)


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_gradient_differs_as_the_table_says(name):
    (_, gradient), (_, theirs) = both(name)
    low, high = DIFFERENT[name]
    assert low <= torch.cosine_similarity(gradient, theirs, dim=0) <= high


def test_the_loss_of_lightlys_frossl_is_ours_without_centring_up_to_a_constant():
    z0, z1 = torch.randn(2, 24, 8, dtype=torch.float64, requires_grad=True)
    ours, theirs = Loss("frossl", center=False)(z0, z1), lightly.FroSSLLoss()([z0, z1])
    gradients = (torch.stack(torch.autograd.grad(loss, (z0, z1))) for loss in (ours, theirs))
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


def test_the_nuclear_norm_and_the_distance_to_the_nearest_neighbour_are_those_of_lightly():
    Z = torch.nn.functional.normalize(torch.randn(2, 24, 8, dtype=torch.float64), dim=-1)
    theirs = lightly.MMCRLoss(lmda=0.0)(*Z[:, :, None])
    assert Loss("mmcr")(Z).item() == pytest.approx(theirs.item() / math.sqrt(24 * 8), rel=1e-9)
    theirs = sum(lightly.KoLeoLoss()(z) for z in Z) / 2
    assert Loss("simmer", invariance=0.0)(Z).item() == pytest.approx(theirs.item(), abs=1e-6)
