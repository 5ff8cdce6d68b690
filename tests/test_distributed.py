"""Compare several processes, each with a part of the data, with one process that has all data."""

import runpy
from pathlib import Path

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from fullrank import distributed
from fullrank.errors import UserError
from fullrank.objectives import OBJECTIVES
from fullrank.testing import measure_exactness, objective_case
from process_group import in_float64

WORKER = Path(__file__).with_name("distributed_worker.py")
LAYERS = ["1d", "2d", "3d", "timm's with activation", "average of all batches", "not affine", "no running statistics"]
LAYERS += ["one process without samples"]


@pytest.fixture(scope="module")
def two(together):
    """The results of two processes."""
    return together(WORKER)


@pytest.fixture(scope="module")
def one():
    """The results of one process."""
    with in_float64():
        return runpy.run_path(str(WORKER))["main"]()


@pytest.fixture(scope="module")
def objectives():
    """The exactness check of `fullrank check`: every objective behind a small network, in groups of 2 and 4 processes
    and in one."""
    hyper = {"directclr": {"d0": 3}, "directclr_paper": {"d0": 3}}  # of 5 dimensions
    cases = [objective_case(f, hyper=hyper.get(name)) for name, f in OBJECTIVES.items()]
    return measure_exactness(cases, processes=(2, 4))


def assert_same_gradients(found, expected):
    """‖g_W − g_1‖ of each parameter ≤ 1e-10 of the norm of the whole gradient."""
    whole = torch.cat([g.flatten() for g in expected]).norm()
    assert whole > 0
    assert len(found) == len(expected)
    for g, e in zip(found, expected, strict=True):
        assert (g - e).norm() <= 1e-10 * whole


@pytest.mark.ddp
@pytest.mark.parametrize("name", OBJECTIVES)
def test_loss_and_gradients_of_every_objective_equal_those_of_one_process(name, objectives):
    assert [groups.processes for groups in objectives[name]] == [2, 4]
    for groups in objectives[name]:
        assert groups.exception == ""
        assert groups.value_error <= 1e-12
        assert groups.gradient_error <= 1e-10


@pytest.mark.ddp
def test_gradients_of_a_timm_backbone_equal_those_of_one_process(one, two):
    for process in two:
        assert_same_gradients(process["backbone"], one["backbone"])


@pytest.mark.ddp
@pytest.mark.parametrize("layer", LAYERS)
def test_batchnorm_of_unequal_parts_equals_batchnorm_of_the_whole_batch(layer, one, two):
    expected, parts = one["layers"][layer], [process["layers"][layer] for process in two]
    for i, whole in enumerate(expected["shards"]):
        torch.testing.assert_close(torch.cat([part["shards"][i] for part in parts]), whole, rtol=1e-10, atol=1e-12)
    for i, whole in enumerate(expected["sums"]):
        torch.testing.assert_close(sum(part["sums"][i] for part in parts), whole, rtol=1e-10, atol=1e-12)
    for part in parts:
        torch.testing.assert_close(part["same"], expected["same"], rtol=1e-12, atol=1e-14)
    if layer != "no running statistics":  # in eval mode, it uses the statistics of its part
        evaluated = torch.cat([part["eval"][0] for part in parts])
        torch.testing.assert_close(evaluated, expected["eval"][0], rtol=1e-10, atol=1e-12)


@pytest.mark.ddp
def test_moments_of_unequal_parts_equal_those_of_all_embeddings(one, two):
    n, mean, scatter = one["moments"]
    for process in two:
        assert process["moments"][0] == n == 10
        torch.testing.assert_close(process["moments"][1], mean, rtol=1e-12, atol=0)
        torch.testing.assert_close(process["moments"][2], scatter, rtol=1e-12, atol=1e-12)


@pytest.mark.ddp
def test_gather_is_the_inverse_of_rank_slice(one, two):
    for process in two:
        for found, expected in zip(process["gather"], one["gather"], strict=True):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)


@pytest.mark.ddp
def test_a_batch_that_is_not_divisible_is_an_error(two):
    words = "a batch of 13 is not divisible by 2 processes; choose a multiple of 2"
    assert [process["error"] for process in two] == [words] * 2


@pytest.mark.ddp
def test_unequal_shapes_are_an_error_with_all_shapes_on_every_process(two):
    for process in two:
        shares, axes = process["unequal shapes"]
        assert "(2, 3, 4) on process 0, (2, 4, 4) on process 1" in shares
        assert "(2, 2) on process 0, (2, 2, 2) on process 1" in axes


def test_all_gather_object_and_all_reduce_max(two):
    for process in two:
        assert process["all_gather_object"] == [{"rank": 0}, {"rank": 1}]
        assert process["all_reduce_max"] == [0, 15, 2]


@pytest.mark.ddp
def test_unreadable_files_of_all_processes_are_listed(two):
    for process in two:
        tried, failed, reasons = process["decode_errors"]
        assert (tried, failed) == (10, 2)
        assert reasons == {"both.jpg": "empty file", "0.jpg": "no image", "1.jpg": "no image"}


def network():
    torch.manual_seed(0)
    one = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    activated = nn.Sequential(BatchNormAct2d(3, act_layer=nn.GELU))
    two = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, eps=1e-3, momentum=0.3), activated)
    return nn.ModuleDict({"one": one, "two": two})


def test_conversion_keeps_outputs_names_and_parameters():
    plain, converted = network(), network()
    before = dict(converted.named_parameters())
    assert distributed.convert_sync_batchnorm(converted) is converted
    assert all(before[name] is parameter for name, parameter in converted.named_parameters())
    assert converted.state_dict().keys() == plain.state_dict().keys()
    for training in (True, False):
        plain.train(training), converted.train(training)
        for name, x in (("one", torch.randn(8, 3)), ("two", torch.randn(4, 1, 6, 6))):
            assert torch.equal(plain[name](x), converted[name](x))
    for name, value in plain.state_dict().items():
        assert torch.equal(value, converted.state_dict()[name])


def test_conversion_is_idempotent():
    twice = distributed.convert_sync_batchnorm(distributed.convert_sync_batchnorm(network()))
    types = [type(m).__name__ for m in twice.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert types == ["SyncBatchNorm", "SyncBatchNorm", "SyncBatchNormAct"]
    assert isinstance(distributed.convert_sync_batchnorm(nn.BatchNorm1d(3).eval()), distributed.SyncBatchNorm)
    assert not distributed.convert_sync_batchnorm(nn.BatchNorm1d(3).eval()).training


def test_a_batchnorm_that_overrides_forward_is_an_error():
    class Twice(nn.BatchNorm1d):
        def forward(self, input):
            return 2 * super().forward(input)

    with pytest.raises(UserError, match="cannot convert Twice"):
        distributed.convert_sync_batchnorm(nn.Sequential(Twice(3)))
