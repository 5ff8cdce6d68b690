import math

import pytest
import torch

from fullrank.spectrum import MEASURES, Spectrum, readings

every_measure = pytest.mark.parametrize("name", MEASURES)


def orthonormal(n, D):
    """Columns that are centred and orthonormal (n, D)."""
    columns = torch.randn(n, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.linalg.qr(torch.cat([torch.ones(n, 1, dtype=torch.float64), columns], 1)).Q[:, 1:]


EXPECTED = {"D": 8.0, "log D": math.log(8), "0": 0.0, "1": 1.0, "∞": math.inf, "D − 1": 7.0}


@every_measure
def test_the_table_says_what_a_measure_is_of_equal_directions_and_of_one(name):
    for columns, says in zip((slice(None), slice(1)), MEASURES[name].full.split(", "), strict=True):
        Z = torch.zeros(200, 8, dtype=torch.float64)
        Z[:, columns] = orthonormal(200, 8)[:, columns]
        assert MEASURES[name].read(Spectrum.from_embeddings(Z)).value == pytest.approx(EXPECTED[says], abs=1e-6)


@every_measure
@pytest.mark.parametrize(
    "Z",
    [torch.zeros(20, 5), torch.ones(20, 5), torch.ones(20, 5).bfloat16() / 3, torch.ones(1, 5), torch.eye(3, 7), torch.ones(9, 1)],
    ids=["zeros", "equal", "equal in bfloat16", "one sample", "N below D", "one dimension"],
)
def test_no_measure_is_ever_nan(name, Z):
    value = MEASURES[name].read(Spectrum.from_embeddings(Z)).value
    assert not math.isnan(value)
    assert value >= 0


@every_measure
def test_every_value_comes_with_its_convention_and_a_warning_of_few_samples(name):
    few = MEASURES[name].read(Spectrum.from_embeddings(orthonormal(16, 8)))
    assert few.convention.endswith("; n = 16, D = 8")
    assert ("not centred" in few.convention) == (name == "RankMe")
    assert few.warning.endswith("16 samples of 8 dimensions, expected 80 or more")
    assert MEASURES[name].read(Spectrum.from_embeddings(orthonormal(80, 8))).warning is None


def test_of_known_eigenvalues_there_is_all_but_rank_me():
    assert set(MEASURES) - set(readings(Spectrum.from_eigenvalues(torch.ones(3), n=100))) == {"RankMe"}
    assert list(readings(Spectrum.from_embeddings(torch.eye(3)))) == list(MEASURES)


def test_the_condition_number_at_14_needs_samples_for_14():
    found = readings(Spectrum.from_eigenvalues(torch.ones(100), n=150))
    assert found["condition number at 14"].warning is None
    assert found["condition number"].warning.startswith("reads high")
