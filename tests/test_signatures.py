"""The declarations that are read from source equal the functions of the library."""

import inspect
import typing

import pytest

from fullrank.methods import METHODS
from fullrank.objectives import OBJECTIVES
from fullrank.signatures import GENERATOR, declared_builder, declared_objective, objective_names, tensor_names


def test_the_names_of_the_objectives_are_those_of_the_table():
    assert objective_names() == tuple(OBJECTIVES)


def keyword_only(function):
    types = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: (types[p.name], p.default) for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != GENERATOR}


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("declared", "table"), [(declared_objective, OBJECTIVES), (declared_builder, METHODS)])
def test_a_declaration_has_the_tensors_hyperparameters_types_defaults_and_help_of_its_function(declared, table, name):
    declaration, function = declared(name), table[name]
    assert declaration.__name__ == function.__name__
    assert tensor_names(declaration) == tensor_names(function)
    assert list(keyword_only(declaration)) == list(keyword_only(function))
    for (kind, default), (expected, value) in zip(keyword_only(declaration).values(), keyword_only(function).values(), strict=True):
        assert str(kind) == str(expected) or typing.get_args(kind)[0] == typing.get_args(expected)[0]
        assert (type(default), default) == (type(value), value)
    assert inspect.getdoc(declaration) == inspect.getdoc(function)
