import torch

from fullrank_papers.figures.dynamics.fig4 import (
    FIGURE,
    Size,
    TwoClasses,
    load_classes,
    median_times,
    pair_matrix_with_noise,
    step_times,
)


def test_accuracies_are_equal_and_those_of_pca(rows):
    *_, equal, infeasible, components = FIGURE.claims(rows)  # the first claims are timings, which a test cannot check
    assert equal.holds
    assert equal.kind == "claim"
    assert infeasible.holds
    assert components.holds


def test_each_claim_can_fail(rows):
    slow = {"descent": [1.0 for _ in rows["widths"]], "flow": rows["widths"]}
    worse = [score | {"flow": score["sgd"] - 0.1} for score in rows["scores"]]
    claims = FIGURE.claims(rows | {"microseconds": rows["microseconds"] | slow, "scores": worse, "error": ""})
    assert not any(claim.holds for claim in claims)


def test_every_step_is_called_equally_often():
    called = []
    found = median_times({name: lambda name=name: called.append(name) for name in "ab"}, 3)
    assert set(found) == {"a", "b"}
    assert called.count("a") == called.count("b") == 8
    assert min(found.values()) > 0


def test_step_times_have_one_value_per_width():
    C = -torch.eye(3, dtype=torch.float64)
    found = step_times(C, (3, 6), repeats=1, generator=torch.Generator().manual_seed(0))
    assert {name: len(times) for name, times in found.items()} == {"descent": 2, "gradient": 2, "flow": 2}


def test_noise_and_random_negatives_give_minus_the_covariance():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(50, 3, dtype=torch.float64, generator=generator) * torch.tensor([3.0, 2.0, 1.0]) + 1
    C = pair_matrix_with_noise(X, torch.arange(50).repeat(1000), generator)
    torch.testing.assert_close(C, -torch.cov(X.mT, correction=0), rtol=0, atol=0.2)


def test_svm_finds_a_linear_boundary_at_any_scale():
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    labels = (x[:, 0] > 0).long()
    images = TwoClasses(x, labels, x[::3], labels[::3])
    assert images.accuracy(lambda X: 1e-6 * X) == 1
    assert images.accuracy(lambda X: X.square()) < 0.8


def test_held_out_images_use_the_components_of_training_images():
    images = load_classes(None, Size(train=20, test=10, components=5), (0, 1), 0)
    assert images.X.shape == (40, 5)
    assert images.X_test.shape == (20, 5)
    assert images.X.mean(0).abs().max() < 1e-12
    gram = images.X.mT @ images.X
    assert (gram - torch.diag(gram.diagonal())).abs().max() < 1e-10
