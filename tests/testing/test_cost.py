import torch

from fullrank.testing import objective_case
from fullrank.testing.cost import (
    Cost,
    cost_results,
    measure_cost,
    measure_saved_bytes,
    measure_seconds,
    power_law_exponent,
)


def test_the_exponent_of_a_power_law():
    assert abs(power_law_exponent([(8, 7 * 8**1.5), (64, 7 * 64**1.5), (100, 7 * 100**1.5)]) - 1.5) < 1e-12


def test_saved_bytes_include_a_gram_matrix_and_exclude_the_embeddings():
    def pairs(Z):
        return {"loss": (Z[0] @ Z[1].mT).exp().sum()}

    assert measure_saved_bytes(objective_case(pairs), N=50, D=3) == 50 * 50 * 4


def test_quadratic_work_has_a_larger_exponent_than_linear_work():
    def linear(Z):
        return {"loss": Z.square().sum()}

    def quadratic(Z):
        return {"loss": (Z[0] @ Z[1].mT).exp().sum()}

    few, many = ({N: measure_seconds(objective_case(f), N=N, D=64) for N in (512, 2048)} for f in (linear, quadratic))
    assert power_law_exponent(list(many.items())) > power_law_exponent(list(few.items())) + 0.5


def test_the_number_of_threads_is_restored():
    threads = torch.get_num_threads()
    cost = measure_cost(objective_case(lambda Z: {"loss": Z.square().sum()}, name="energy"))
    assert torch.get_num_threads() == threads
    assert all(value > 0 for _, value in cost.samples + cost.dimensions)


def test_results_compare_with_frossl():
    cost = Cost(samples=((1, 1.0), (2, 4.0)), dimensions=((1, 1.0), (2, 2.0)), saved_bytes=2_000_000)
    reference = Cost(samples=((1, 1.0), (2, 2.0)), dimensions=((1, 1.0), (2, 8.0)), saved_bytes=4_000_000)
    assert [result.measured for result in cost_results(cost, reference)] == [
        "4e+03 ms, 2 times FroSSL's; grows as N^2.0",
        "2e+03 ms, 0.25 times FroSSL's; grows as D^1.0",
        "2 MB; FroSSL 4 MB",
    ]
