"""The Python code of the pages, executed as it stands."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMES = ("own-loop", "augmentations", "run-directory", "objectives", "own-objective", "spectrum", "reproduce")
PAGES = ("README.md", *(f"docs/{name}.md" for name in NAMES))


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


@pytest.mark.filterwarnings("ignore")  # of Lightning
@pytest.mark.parametrize(("page", "k"), [(page, k) for page in PAGES for k in range(len(blocks(page)))])
def test_a_block_of_a_page_runs_alone(page, k, tmp_path, monkeypatch, untyped):
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks(page)[k], f"{page}, block {k + 1}", "exec"), {"__name__": "page"})


def test_the_tables_of_the_pages_are_what_their_code_prints():
    tools = runpy.run_path(str(ROOT / "docs/extensions/render.py"))
    for page in set(tools["pages"]()) - {ROOT / "docs/command-line.md"}:  # whose form depends on the version of tyro
        assert tools["render"](page) == page.read_text("utf-8"), page
