"""The reference pages of the documentation show every public name of every package."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import fullrank

PAGES = Path(__file__).parents[1] / "docs" / "reference"
TEXT = "\n".join(page.read_text() for page in PAGES.glob("*.md"))
SHOWN = set(re.findall(r"^::: (\S+)", TEXT, flags=re.MULTILINE))
OF_THE_ROOT = {"cli", "models", "sweep"}  # fullrank itself exports what a user takes of them
PACKAGES = {info.name for info in pkgutil.iter_modules(fullrank.__path__) if info.ispkg} - OF_THE_ROOT


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_reference_shows_every_public_name(package):
    module = importlib.import_module(f"fullrank.{package}")
    assert f"fullrank.{package}" in SHOWN
    # A function that has the name of its module is hidden by the module, so it is listed by its full path.
    modules = {info.name for info in pkgutil.iter_modules(module.__path__)}
    for name in modules.intersection(module.__all__):
        assert f"fullrank.{package}.{name}.{name}" in SHOWN


def test_every_reference_exists():
    for name in SHOWN:
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name


def test_reference_shows_every_module_of_dynamics():
    package = importlib.import_module("fullrank_papers.theory")
    modules = {f"fullrank_papers.theory.{info.name}" for info in pkgutil.iter_modules(package.__path__)}
    assert modules - {"fullrank_papers.theory.checks"} <= SHOWN
