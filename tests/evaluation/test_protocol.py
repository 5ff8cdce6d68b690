import inspect
from dataclasses import asdict, fields
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fullrank.cli.evaluate import ProbeName
from fullrank.errors import UserError
from fullrank.evaluation import (
    PROBES,
    few_shot,
    knn,
    label_fraction,
    linear_probe,
    linear_probe_adam,
    linear_probe_sgd,
    linear_svm,
)
from fullrank.evaluation.protocol import (
    DEFAULT_PROBES,
    PROTOCOLS,
    AdamProtocol,
    FewShotProtocol,
    Protocols,
    SgdProtocol,
    changed_numbers,
    protocol_numbers,
    resolve_protocols,
)


def test_every_probe_has_a_protocol_a_function_and_flags():
    names = list(PROTOCOLS)
    assert list(PROBES) == names
    assert list(get_args(ProbeName)) == names
    assert [field.name.replace("_", "-") for field in fields(Protocols)] == names
    assert set(DEFAULT_PROBES) < set(names)
    assert (
        resolve_protocols(Protocols()) == resolve_protocols(None) == {name: kind() for name, kind in PROTOCOLS.items()}
    )


@pytest.mark.parametrize(
    ("probe", "function"),
    [
        ("linear", linear_probe),
        ("linear-sgd", linear_probe_sgd),
        ("linear-imagenet", linear_probe_adam),
        ("knn", knn),
        ("svm", linear_svm),
        ("few-shot", few_shot),
        ("fractions", label_fraction),
    ],
)
def test_the_defaults_of_a_function_are_those_of_its_protocol(probe, function):
    defaults = asdict(PROTOCOLS[probe]())
    shared = {
        name: p.default
        for name, p in inspect.signature(function).parameters.items()
        if name in defaults and name != "limit_lr"
    }
    expected = {name: defaults[name] for name in shared}
    assert shared == expected | ({"labels": defaults["labels"][0]} if probe == "few-shot" else {})
    assert len(shared) >= 2


def test_the_numbers_of_the_papers():
    """Skean et al. 2024 (FroSSL), Section 5."""
    sgd, adam = SgdProtocol(), AdamProtocol()
    assert (sgd.lr, sgd.weight_decay, sgd.decay, sgd.epochs, sgd.batch_size) == ((0.3,), 0.0, (60, 80), 100, 256)
    assert (adam.lr, adam.weight_decay, adam.epochs) == ((5e-3,), 0.0, 100)
    assert adam.decay == tuple(range(10, 100, 10))


SGD = st.fixed_dictionaries(
    {
        "lr": st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=3, unique=True).map(tuple),
        "decay": st.lists(st.integers(1, 99), max_size=3).map(tuple),
        "standardize": st.booleans(),
        "limit_lr": st.sampled_from([None, True, False]),
    }
)


@given(one=SGD, other=SGD)
@example(one={"lr": (0.1234567,)}, other={"lr": (0.12345671,)})
def test_two_protocols_have_the_same_name_only_if_they_are_equal(one, other):
    one, other = SgdProtocol(**one), SgdProtocol(**other)
    assert (changed_numbers(one) == changed_numbers(other)) == (one == other)


@given(numbers=SGD)
def test_the_stored_numbers_give_the_protocol_back(numbers):
    protocol = SgdProtocol(**numbers)
    assert resolve_protocols({"linear-sgd": protocol_numbers(protocol)})["linear-sgd"] == protocol
    assert (changed_numbers(protocol) == "") == (protocol == SgdProtocol())


def test_the_rate_is_limited_on_standardised_features_unless_a_flag_says_otherwise():
    limits = [
        (s, limit, SgdProtocol(standardize=s, limit_lr=limit).limits_lr)
        for s in (True, False)
        for limit in (None, True, False)
    ]
    assert [limited for *_, limited in limits] == [True, True, False, False, True, False]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kn": {}}, "unknown probe 'kn'"),
        ({"knn": {"kk": 3}}, "did you mean 'k'"),
        ({"knn": {"k": 0}}, r"knn\.k: got 0"),
        ({"knn": {"temperature": float("nan")}}, r"knn\.temperature: got nan"),
        ({"knn": SgdProtocol()}, "expected a KnnProtocol"),
        ({"linear-sgd": {"lr": []}}, r"linear-sgd\.lr: got \[\]"),
        ({"linear-sgd": {"lr": [0.1, 0.1]}}, "each once"),
        ({"linear-sgd": {"views": 101}}, "there are only 100 epochs"),
        ({"few-shot": {"labels": [0]}}, "few-shot.labels"),
        ({"fractions": {"fractions": [1.5]}}, "fractions.fractions"),
    ],
)
def test_wrong_numbers_are_one_line(given, message):
    with pytest.raises(UserError, match=message) as error:
        resolve_protocols(given)
    assert "\n" not in str(error.value)


def test_one_number_of_a_list_takes_its_place():
    assert protocol_numbers(FewShotProtocol(labels=(1, 5)), labels=5)["labels"] == 5
    assert changed_numbers(FewShotProtocol(labels=(1, 5)), except_for="labels") == ""
