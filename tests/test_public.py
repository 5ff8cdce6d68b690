"""The public names of `fullrank`, which are imported when they are first used."""

import subprocess
import sys
import types

import pytest

import fullrank


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_every_public_name_exists():
    assert sorted(fullrank.__all__) == dir(fullrank)
    for name in fullrank.__all__:
        assert not isinstance(getattr(fullrank, name), types.ModuleType)


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="module 'fullrank' has no attribute 'pretrian'"):
        _ = fullrank.pretrian


def test_importing_the_package_imports_no_heavy_module():
    done = python("import sys; import fullrank; print(sorted({'torch', 'numpy', 'tyro'} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_objective_imports_only_torch():
    heavy = "{'torchvision', 'timm', 'lightning', 'datasets', 'tyro', 'sklearn', 'pyarrow', 'PIL'}"
    done = python(f"import sys; from fullrank.objectives import frossl; print(sorted({heavy} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")
