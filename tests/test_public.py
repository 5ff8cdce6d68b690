"""What `import fullrank` promises: a handful of names, imported when they are first used."""

import subprocess
import sys
import types

import pytest

import fullrank


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_every_public_name_is_there():
    assert sorted(fullrank.__all__) == dir(fullrank)
    for name in fullrank.__all__:
        assert not isinstance(getattr(fullrank, name), types.ModuleType)


def test_a_name_that_is_not_there_is_named():
    with pytest.raises(AttributeError, match="module 'fullrank' has no attribute 'pretrian'"):
        _ = fullrank.pretrian


def test_importing_the_package_imports_nothing_else():
    done = python("import sys; import fullrank; print(sorted({'torch', 'numpy', 'tyro'} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_objective_costs_no_more_than_torch():
    heavy = "{'torchvision', 'timm', 'lightning', 'datasets', 'tyro', 'sklearn', 'pyarrow', 'PIL'}"
    done = python(f"import sys; from fullrank.objectives import frossl; print(sorted({heavy} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")
