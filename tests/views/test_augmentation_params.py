import torch

from fullrank.views.augmentation_params import make_params, mix


def test_params_are_a_function_of_seed_and_step():
    one = make_params(2, 16, seed=3, step=5).uniforms
    assert torch.equal(one, make_params(2, 16, seed=3, step=5).uniforms)
    assert not torch.equal(one, make_params(2, 16, seed=3, step=6).uniforms)
    assert not torch.equal(one, make_params(2, 16, seed=4, step=5).uniforms)


def test_the_global_generator_is_not_changed():
    before = torch.get_rng_state()
    make_params(2, 16, seed=0, step=0)
    assert torch.equal(before, torch.get_rng_state())


def test_selected_samples_are_those_of_the_whole_batch():
    whole = make_params(3, 10, seed=0, step=0)
    parts = [whole.select_samples(slice(0, 4)), whole.select_samples(slice(4, 10))]
    assert torch.equal(torch.cat([p.uniforms for p in parts], 1), whole.uniforms)
    assert [p.offset for p in parts] == [0, 4]
    assert whole.select_samples(slice(4, 10)).select_samples(slice(2, 3)).offset == 6


def test_a_shorter_batch_keeps_its_numbers():
    assert torch.equal(make_params(2, 5, seed=0, step=9).uniforms, make_params(2, 8, seed=0, step=9).uniforms[:, :5])


def test_no_two_steps_share_a_seed():
    assert len({mix(0, step) for step in range(100_000)}) == 100_000


def test_neighbouring_steps_are_uncorrelated():
    rows = torch.stack([make_params(1, 100, seed=0, step=step).uniforms.flatten() for step in range(20)])
    off_diagonal = torch.corrcoef(rows) - torch.eye(20, dtype=torch.float64)
    assert off_diagonal.abs().max() < 5 / rows.shape[1] ** 0.5
