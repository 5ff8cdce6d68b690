"""Every stored result names the clean commits that made it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted([*(ROOT / "results").rglob("*.json"), *(ROOT / "benchmarks" / "results").glob("*.json")])


def commits(text: str) -> list[str]:
    """Return the commits of a result, of which several may stand in one string or list."""
    found = re.findall(r'"commit": ("[^"]*"|\[[^\]]*\])', text)
    return [commit for value in found for commit in re.findall(r'[^\s",\[\]]+', value)]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_result_was_made_by_clean_commits(file):
    found = commits(file.read_text())
    assert found
    assert all(re.fullmatch("[0-9a-f]{7,40}", commit) for commit in found), found


def test_changes_and_lists_are_read():
    assert commits('{"commit": "0a1b2c3+changes", "x": {"commit": ["affeda9", "bec44ce, 93aeb1a"]}}') == [
        "0a1b2c3+changes", "affeda9", "bec44ce", "93aeb1a",
    ]  # fmt: skip
