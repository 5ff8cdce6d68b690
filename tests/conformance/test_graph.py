import broken_losses
import pytest
import torch

from fullrank.conformance.graph import fullgraph, no_host_sync


def test_a_sound_loss_passes(failed):
    assert failed(fullgraph, broken_losses.sound) == {}
    assert failed(no_host_sync, broken_losses.sound) == {}


def branches(Z):
    return {"loss": Z.square().mean() if Z.sum() > 0 else Z.mean()}


def counts_the_living(Z):
    return {"loss": Z[Z > 0].mean()}


@pytest.mark.parametrize("loss", [broken_losses.item_inside, branches, counts_the_living])
def test_a_value_that_is_read_on_the_host_is_found(failed, loss):
    assert failed(no_host_sync, loss)["never waits for the device"].startswith("reads a value on the host")


def test_a_branch_on_a_value_breaks_the_graph(failed):
    assert "Unsupported" in failed(fullgraph, branches)["compiles into one graph"]


def test_a_compiled_function_with_other_terms_is_found(failed):
    def loss(Z):
        return {"loss": Z.square().mean() * (2 if torch.compiler.is_compiling() else 1)}

    assert failed(fullgraph, loss)["compiles into one graph"].startswith("differs by")
