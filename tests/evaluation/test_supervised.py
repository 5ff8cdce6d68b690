from dataclasses import replace

import torch
from torch import nn

from fullrank.evaluation.supervised import (
    LabelledPixels,
    Supervised,
    learning_rate_factor,
    train_classifier,
    train_supervised,
)


def network():
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
    )
    return nn.Sequential(*layers, nn.Flatten())


def config(**changes):
    return Supervised(**({"network": network(), "epochs": 10, "batch_size": 32, "flip": 0.0} | changes))


def test_the_network_learns_digits_from_the_labels(halves, preprocess):
    start = network().state_dict()
    baseline = config(epochs=15, lr=5e-3)
    result = train_supervised(baseline, preprocess, *halves)
    assert result.accuracy > 0.7
    assert not torch.equal(baseline.network.state_dict()["0.weight"], start["0.weight"])


def test_wrong_labels_teach_nothing(halves, preprocess):
    train, test = halves
    shuffled = replace(train, labels=train.labels[torch.randperm(300, generator=torch.Generator().manual_seed(1))])
    assert train_supervised(config(epochs=4), preprocess, shuffled, test).accuracy < 0.3


def test_training_is_a_function_of_the_seed_and_leaves_the_random_state_alone(few, preprocess):
    def run(seed):
        return train_supervised(config(epochs=2), preprocess, *few, seed=seed).probabilities

    state = torch.get_rng_state()
    first = run(0)
    network()  # building the network seeds the generator
    torch.set_rng_state(state)
    baseline = config(epochs=2)
    torch.set_rng_state(state)
    torch.testing.assert_close(
        train_supervised(baseline, preprocess, *few, seed=0).probabilities, first, rtol=0, atol=0
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(run(1), first)


def test_images_without_labels_are_left_out(few, preprocess):
    train, test = few
    labels = train.labels.clone()
    labels[30:] = -1
    half = replace(
        train, pixels=train.pixels[:30], labels=train.labels[:30], names=train.names[:30], groups=train.groups[:30]
    )
    results = [
        train_supervised(config(epochs=2), preprocess, images, test).probabilities
        for images in (replace(train, labels=labels), half)
    ]
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_the_learning_rate_warms_up_and_decays():
    factors = [learning_rate_factor(step, 200) for step in range(200)]
    assert factors.index(1.0) == 9
    assert max(factors) == 1.0
    assert factors[9:] == sorted(factors[9:], reverse=True)
    assert factors[-1] < 0.001
    assert learning_rate_factor(0, 1) == 1.0


def test_every_image_is_seen_once_in_each_epoch(few, preprocess):
    class Count(nn.Module):
        def __init__(self):
            super().__init__()
            self.sizes, self.scale = [], nn.Parameter(torch.ones(1))

        def forward(self, x):
            if self.training:
                self.sizes.append(len(x))
            return self.scale * x.flatten(1)

    for n, size, expected in ((33, 32, [17, 16]), (3, 2, [3]), (60, 64, [60])):
        train = LabelledPixels(few[0].pixels[:n], few[0].labels[:n], n)
        counter = Count()
        train_classifier(config(network=counter, epochs=1, batch_size=size), preprocess, train, 10, seed=0)
        assert counter.sizes == expected
