"""Each check finds the error that it is for, and passes a correct loss."""

import broken_losses
import pytest
import torch

from fullrank.errors import UserError
from fullrank.methods.builders import BY_TENSORS
from fullrank.objectives import OBJECTIVES, directclr, moco, swav, vicreg
from fullrank.testing import CHECKS, check, objective_case, optimize_free_embeddings, run_check
from fullrank.testing.checks import check_finite_differences, relative_changes


def failed(check, loss):
    """The failed results: name → measured."""
    results = run_check("this check", check, objective_case(loss))
    return {result.name: result.measured for result in results if result.status == "failed"}


@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("loss", [broken_losses.correct, broken_losses.random_from_the_generator])
def test_a_correct_loss_passes(name, loss):
    assert failed(CHECKS[name], loss) == {}


def branches(Z):
    return {"loss": Z.square().mean() if Z.sum() > 0 else Z.mean()}


def double(Z):
    return {"loss": Z.double().square().mean()}


def other_when_compiled(Z):
    return {"loss": Z.square().mean() * (2 if torch.compiler.is_compiling() else 1)}


def ignores_a_view(Z, T):
    return {"loss": (Z[0] - T[1].detach()).square().mean()}


def overflows(Z):
    return {"loss": torch.where(Z.abs().max() > 3, Z.square().mean() * torch.inf, Z.square().mean())}


def wrong_beside_a_stop(Z):
    return {"loss": (Z[0] - Z[1].detach()).square().mean() + (Z * Z.data).sum()}


def normalises_rounding(Z):
    """A constant column, whose rounding errors are divided by their norm, has a gradient of 1/ε."""
    A = Z - Z.mean(1, keepdim=True)
    norm = A.norm(dim=1, keepdim=True)
    U = torch.where(norm > 0, A / norm.clamp_min(torch.finfo(Z.dtype).tiny), 0 * A)
    return {"correlation": (U[..., 1:] * U[..., :-1]).sum()}


@pytest.mark.parametrize(
    ("check_name", "loss", "result", "words"),
    [
        ("terms", broken_losses.bare_tensor, "returns terms", "a bare tensor ()"),
        ("terms", broken_losses.per_sample, "returns terms", "'loss' has the shape (12,)"),
        ("terms", broken_losses.python_number, "returns terms", "'constant' is a float"),
        ("terms", broken_losses.diverges, "finite", "loss -inf"),
        ("terms", broken_losses.half_precision, "keeps the precision", "float32"),
        ("terms", broken_losses.detached, "differentiable", "detached"),
        ("terms", broken_losses.random_inside, "pure", "draws from the global generator of torch"),
        ("terms", broken_losses.keeps_state, "pure", "at the second call"),
        ("terms", broken_losses.changes_its_argument, "pure", "changes Z in place"),
        ("terms", broken_losses.raises, "this check", "AttributeError"),
        ("weights", broken_losses.weight_of_another_term, "weight invariance", "changes spread"),
        ("gradient", broken_losses.target_gets_a_gradient, "no gradient for targets and state", "a gradient for T"),
        ("gradient", ignores_a_view, "reaches every view", "none for a view of Z"),
        ("finite differences", broken_losses.wrong_gradient, "equals finite differences", "no"),
        ("finite differences", broken_losses.random_inside, "equals finite differences", "no"),
        ("finite differences", wrong_beside_a_stop, "equals finite differences", "no"),
        ("collapse", broken_losses.nan_at_a_constant_column, "collapse: constant columns", "not finite"),
        ("collapse", broken_losses.infinite_gradient_at_equal_views, "collapse: all zero", "gradient nan"),
        ("collapse", normalises_rounding, "collapse: constant columns", "largest gradient"),
        ("float32", broken_losses.cancels, "float32", "value off by"),
        ("float32", double, "float32", "float64"),
        ("bfloat16", overflows, "bfloat16 network", "not finite"),
        ("host synchronisation", broken_losses.item_inside, "no host synchronisation", "reads a value on the host"),
        ("compile", branches, "compiles into one graph", "Unsupported"),
        ("compile", other_when_compiled, "compiles into one graph", "differs by"),
    ],
)
def test_each_error_fails(check_name, loss, result, words):
    assert words in failed(CHECKS[check_name], loss)[result]


@pytest.mark.parametrize("loss", [broken_losses.stop_gradient, swav])
def test_stop_gradients_are_left_out_of_finite_differences(loss):
    (result,) = check_finite_differences(objective_case(loss))
    assert (result.status, result.measured) == ("passed", "yes, apart from detached values")


def test_an_objective_of_single_entries_has_no_invariance():
    def entries(Z):
        return {"loss": Z[0, 0, 0] + Z[-1, 1, 1].square() + Z[0, -1, -1].pow(3)}

    assert all(change > 1e-3 for change in relative_changes(objective_case(entries)).values())


def test_a_report_ends_early_without_a_gradient_and_keeps_exceptions():
    assert [result.name for result in check(broken_losses.detached).failed] == ["differentiable"]
    (result,) = check(broken_losses.raises).results
    assert (result.name, result.status) == ("terms", "failed")
    with pytest.raises(UserError, match=r"hyper\.d0"):
        check(directclr)


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_only_alignment_lowers_the_effective_rank_of_free_embeddings(name):
    case = objective_case(OBJECTIVES[name], hyper={"d0": 12} if "directclr" in name else None)
    spectra = optimize_free_embeddings(case, N=48, D=16, steps=75, learning_rate=0.06)
    growth = spectra.after.effective_rank() / spectra.before.effective_rank()
    assert growth < 1 if name in ("simsiam", "byol") else growth > 1.3


def test_tensors_have_the_shapes_of_their_names(monkeypatch):
    def shapes(objective):
        case = objective_case(objective)
        return {name: tuple(t.shape) for name, t in case.random_tensors(N=7, D=4).items()}

    def hidden(Z, H):
        return {"product": (Z * H).mean()}

    assert shapes(vicreg) == {"Z": (2, 7, 4)}
    assert shapes(moco) == {"Q": (3, 7, 4), "K": (3, 7, 4), "queue": (13, 4)}
    assert shapes(OBJECTIVES["corinfomax"]) == {"Z": (2, 7, 4), "R": (2, 4, 4), "mu": (2, 4)}
    monkeypatch.setitem(BY_TENSORS, ("Z", "H"), lambda make_encoder, objective, views: None)
    assert shapes(hidden) == {"Z": (3, 7, 4), "H": (3, 7, 4)}


@pytest.mark.parametrize(
    ("loss", "views"),
    [
        (broken_losses.correct, 3),
        (broken_losses.two_views_without_annotation, 2),  # a third view raises
        (broken_losses.stop_gradient, 2),  # ignores a third view
    ],
)
def test_the_number_of_views_fits_the_objective(loss, views):
    assert objective_case(loss).views == views


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (broken_losses.unknown_tensor, r"'unknown_tensor' takes 'z1' by position.* Z \(V, N, D\)"),
        (broken_losses.number_without_default, "no default for temperature"),
        (lambda *, weight=1.0: {}, "takes no embeddings by position"),
    ],
)
def test_a_signature_that_no_method_supplies_raises(loss, words):
    with pytest.raises(UserError, match=words):
        objective_case(loss)


def test_a_loss_that_depends_on_the_epoch_is_checked():
    def ramp(Z, *, epoch):
        return {"loss": (1 + epoch) * Z.var(1).sum()}

    assert failed(CHECKS["terms"], ramp) == {}
    assert objective_case(ramp).views == 3
