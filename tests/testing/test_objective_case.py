import broken_losses
import pytest
import torch

from fullrank.errors import UserError
from fullrank.methods.builders import BY_TENSORS
from fullrank.objectives import OBJECTIVES, corinfomax, dino, directclr, frossl, moco, tico, vicreg
from fullrank.testing import objective_case


def shapes(objective):
    return {
        name: tuple(t.shape)
        for name, t in objective_case(objective).random_tensors(torch.Generator(), N=7, D=4).items()
    }


def test_tensors_have_the_shapes_of_their_names():
    assert shapes(frossl) == {"Z": (3, 7, 4)}
    assert shapes(vicreg) == {"Z": (2, 7, 4)}
    assert shapes(moco) == {"Q": (3, 7, 4), "K": (3, 7, 4), "queue": (13, 4)}
    assert shapes(dino) == {"S": (3, 7, 4), "T": (3, 7, 4), "c": (4,)}
    assert shapes(corinfomax) == {"Z": (2, 7, 4), "R": (2, 4, 4), "mu": (2, 4)}
    assert shapes(tico) == {"Z": (3, 7, 4), "T": (3, 7, 4), "C": (4, 4)}


def test_r_is_a_representation_alone_and_a_covariance_with_mu():
    assert objective_case(directclr, hyper={"d0": 3}).embedding_names == ("R",)
    assert objective_case(corinfomax).state_names == ("R", "mu")
    assert torch.linalg.eigvalsh(objective_case(corinfomax).random_tensors(torch.Generator())["R"]).min() > 0


def test_keys_of_a_queue_are_unit_rows_and_cosines_are_at_most_one():
    queue = objective_case(moco).random_tensors(torch.Generator())["queue"]
    torch.testing.assert_close(queue.norm(dim=-1), torch.ones(len(queue), dtype=torch.float64))
    assert objective_case(OBJECTIVES["swav"]).random_tensors(torch.Generator())["S"].abs().max() <= 1


def test_tensors_are_a_function_of_the_generator():
    one, other = (objective_case(moco).random_tensors(torch.Generator().manual_seed(3)) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["Q"], objective_case(moco).random_tensors(torch.Generator().manual_seed(4))["Q"])


@pytest.mark.parametrize(
    ("loss", "views"),
    [
        (frossl, 3),
        (vicreg, 2),
        (broken_losses.correct, 3),
        (broken_losses.two_views_without_annotation, 2),  # a third view raises
        (broken_losses.stop_gradient, 2),  # ignores a third view
    ],
)
def test_the_number_of_views_fits_the_objective(loss, views):
    assert objective_case(loss).views == views


def test_tensors_of_a_registered_method_are_tested_like_embeddings(monkeypatch):
    def hidden(Z, H):
        return {"product": (Z * H).mean()}

    with pytest.raises(UserError, match="no method supplies a tensor named 'H'"):
        objective_case(hidden)
    monkeypatch.setitem(BY_TENSORS, ("Z", "H"), lambda make_encoder, objective, views: None)
    assert shapes(hidden) == {"Z": (3, 7, 4), "H": (3, 7, 4)}
    assert objective_case(hidden).embedding_names == ("Z", "H")
    with pytest.raises(UserError, match="'mu'"):
        objective_case(lambda Z, mu: {}, name="a state is no embedding")


def test_hyperparameters_are_bound():
    case = objective_case(broken_losses.correct, hyper={"invariance": 0.0})
    assert case.objective(**case.random_tensors(torch.Generator()))["invariance"] == 0


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (broken_losses.unknown_tensor, r"'unknown_tensor' takes 'z1' by position.* Z \(V, N, D\)"),
        (broken_losses.number_without_default, "no default for temperature"),
        (lambda *, weight=1.0: {}, "takes no tensor by position"),
    ],
)
def test_a_signature_that_no_method_supplies_raises(loss, words):
    with pytest.raises(UserError, match=words):
        objective_case(loss)
