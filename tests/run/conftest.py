import pytest


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Each test runs in an empty folder of its own, where `runs/` may appear."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
