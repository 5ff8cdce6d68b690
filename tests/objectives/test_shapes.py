import pickle
from functools import partial

import pytest
import torch

from fullrank.errors import UserError
from fullrank.objectives import OBJECTIVES
from fullrank.objectives.signature import required_views, tensor_names
from fullrank_papers.theory.objectives import THEORY

ALL = OBJECTIVES | THEORY
TWO_VIEWS = [name for name, objective in ALL.items() if required_views(objective) == 2]


def test_some_objectives_take_two_views():
    assert {"vicreg", "corinfomax_batch", "ivne", "barlow_twins", "corinfomax", "frossl_linear"} <= set(TWO_VIEWS)


@pytest.mark.parametrize("name", TWO_VIEWS)
def test_three_views_are_one_line_that_names_V(name):
    with pytest.raises(UserError, match=rf"{name}: [ZR] has V = 3 views, shape \(3, 12, 5\)") as error:
        ALL[name](*[torch.randn(3, 12, 5) for _ in tensor_names(ALL[name])])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["frossl", "simclr", "vicreg"])
def test_views_as_two_arguments_are_told_to_be_stacked(name):
    z1, z2 = torch.randn(2, 8, 4)
    with pytest.raises(UserError, match=rf"{name}: got 2 arguments.*expected Z .*torch\.stack\(\[z1, z2\]\)"):
        ALL[name](z1, z2)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_list_or_one_view_is_told_which_shape_is_wanted(name):
    first, *others = tensor_names(OBJECTIVES[name])
    with pytest.raises(UserError, match=rf"{name}: {first} is a list, expected a tensor \(.*\); .*torch\.stack"):
        OBJECTIVES[name](list(torch.randn(2, 8, 4)), *[torch.randn(2, 8, 4) for _ in others])
    with pytest.raises(UserError, match=rf"{name}: {first} has the shape \(8, 4\), expected \("):
        OBJECTIVES[name](torch.randn(8, 4), *[torch.randn(2, 8, 4) for _ in others])


def test_axes_of_one_name_have_one_length():
    with pytest.raises(UserError, match=r"byol: T has the shape \(2, 6, 4\), expected N = 8"):
        OBJECTIVES["byol"](torch.randn(2, 8, 4), T=torch.randn(2, 6, 4))


def test_a_missing_tensor_stays_a_type_error():
    with pytest.raises(TypeError, match="missing"):
        OBJECTIVES["byol"](torch.randn(2, 8, 4))


def test_a_checked_objective_keeps_its_name_signature_and_state():
    moco = OBJECTIVES["moco"]
    assert (moco.__name__, tensor_names(moco), list(moco.state.tensors)) == ("moco", ("Q", "K", "queue"), ["queue"])
    assert pickle.loads(pickle.dumps(moco)) is moco
    assert pickle.loads(pickle.dumps(partial(moco, temperature=0.5)))(
        *torch.randn(2, 2, 8, 4), torch.randn(6, 4)
    ).keys() == {"alignment", "uniformity"}
