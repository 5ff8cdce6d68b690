import pytest


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Each test runs in a new empty folder, where `runs/` may be created."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
