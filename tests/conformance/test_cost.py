import torch

from fullrank.conformance import objective_case
from fullrank.conformance.cost import Cost, cost, findings, kept, seconds, slope


def test_a_slope_is_the_exponent_of_a_power():
    assert abs(slope([(8, 7 * 8**1.5), (64, 7 * 64**1.5), (100, 7 * 100**1.5)]) - 1.5) < 1e-12


def test_a_gram_matrix_is_kept_and_the_embeddings_are_not():
    def pairs(Z):
        return {"loss": (Z[0] @ Z[1].mT).exp().sum()}

    assert kept(objective_case(pairs), N=50, D=3) == 50 * 50 * 4


def test_quadratic_work_has_a_larger_exponent_than_linear_work():
    def linear(Z):
        return {"loss": Z.square().sum()}

    def quadratic(Z):
        return {"loss": (Z[0] @ Z[1].mT).exp().sum()}

    few, many = ({N: seconds(objective_case(f), N=N, D=64) for N in (512, 2048)} for f in (linear, quadratic))
    assert slope(list(many.items())) > slope(list(few.items())) + 0.5


def test_threads_are_given_back():
    threads = torch.get_num_threads()
    found = cost(objective_case(lambda Z: {"loss": Z.square().sum()}, name="energy"))
    assert torch.get_num_threads() == threads
    assert all(value > 0 for _, value in found.samples + found.dimensions)


def test_findings_lay_it_beside_frossl():
    own = Cost(samples=((1, 1.0), (2, 4.0)), dimensions=((1, 1.0), (2, 2.0)), kept=2_000_000)
    reference = Cost(samples=((1, 1.0), (2, 2.0)), dimensions=((1, 1.0), (2, 8.0)), kept=4_000_000)
    said = [finding.measured for finding in findings(own, reference)]
    assert said == [
        "4e+03 ms, 2 times FroSSL's; grows as N^2.0",
        "2e+03 ms, 0.25 times FroSSL's; grows as D^1.0",
        "2 MB; FroSSL 4 MB",
    ]
