import broken_losses
import pytest
import torch

from fullrank.testing.graph import check_compile, check_host_sync


def test_a_correct_loss_passes(failed):
    assert failed(check_compile, broken_losses.correct) == {}
    assert failed(check_host_sync, broken_losses.correct) == {}


def branches(Z):
    return {"loss": Z.square().mean() if Z.sum() > 0 else Z.mean()}


def selects_positive(Z):
    return {"loss": Z[Z > 0].mean()}


@pytest.mark.parametrize("loss", [broken_losses.item_inside, branches, selects_positive])
def test_a_value_that_is_read_on_the_host_fails(failed, loss):
    assert failed(check_host_sync, loss)["no host synchronisation"].startswith("reads a value on the host")


def test_a_branch_on_a_value_breaks_the_graph(failed):
    assert "Unsupported" in failed(check_compile, branches)["compiles into one graph"]


def test_a_compiled_function_with_other_terms_fails(failed):
    def loss(Z):
        return {"loss": Z.square().mean() * (2 if torch.compiler.is_compiling() else 1)}

    assert failed(check_compile, loss)["compiles into one graph"].startswith("differs by")
