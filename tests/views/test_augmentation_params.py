import torch
from scipy.stats import kstest

from fullrank.views.augmentation_params import WIDTHS, hash_uniforms, make_params


def test_selected_samples_are_those_of_the_whole_batch():
    whole = make_params(3, 10, seed=0, step=0)
    parts = [whole.select_samples(slice(0, 4)), whole.select_samples(slice(4, 10))]
    assert torch.equal(torch.cat([p.uniforms for p in parts], 1), whole.uniforms)
    assert [p.offset for p in parts] == [0, 4]
    assert whole.select_samples(slice(4, 10)).select_samples(slice(2, 3)).offset == 6


def test_a_new_column_changes_no_other_column():
    before = hash_uniforms(WIDTHS, 2, 16, seed=3, step=5)
    after = hash_uniforms({"a_new_column": 3} | WIDTHS, 2, 16, seed=3, step=5)
    assert torch.equal(after[..., 3:], before)


def test_numbers_are_uniform():
    each = [make_params(2, 256, seed=seed, step=step).uniforms for seed in range(3) for step in range(10)]
    uniforms = torch.stack(each)
    assert 0 <= uniforms.min() <= uniforms.max() < 1
    p_values = [kstest(column.flatten().numpy(), "uniform").pvalue for column in uniforms.unbind(-1)]
    assert min(p_values) > 1e-3 / len(p_values)
    assert kstest(p_values, "uniform").pvalue > 1e-3


def test_columns_views_samples_and_seeds_are_uncorrelated():
    uniforms = make_params(2, 4000, seed=0, step=0).uniforms
    other = make_params(2, 4000, seed=1, step=0).uniforms
    rows = torch.cat([uniforms[0].T, uniforms[1].T, other[0].T, uniforms[0, :, :1].roll(1, 0).T])
    for x in (rows, (rows - 0.5).square()):
        off_diagonal = torch.corrcoef(x) - torch.eye(len(x), dtype=torch.float64)
        assert off_diagonal.abs().max() < 5 / x.shape[1] ** 0.5
