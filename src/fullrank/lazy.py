"""Public names of a package that are imported when they are first used, so that the import of the package is fast (PEP
562).
"""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_attributes(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package. The package imports the same names under `TYPE_CHECKING`, for type
    checkers.

    Args:
        package: the package, `__name__`.
        homes: public name → the module of the package that defines it. No module may have the name of one of its
            functions.

    >>> lazy_attributes("fullrank", {"UserError": "errors"})("UserError").__name__
    'UserError'
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)  # the next use finds it there
        return value

    return find
