"""The README's table of all objectives is that of the committed result."""

import runpy
from pathlib import Path

from fullrank_papers.figures import load_committed

ROOT = Path(__file__).parents[2]


def test_the_readme_has_the_table_of_the_result():
    script = runpy.run_path(str(ROOT / "benchmarks" / "comparison.py"), run_name="comparison")
    result = load_committed("frossl/table2")
    assert result is not None
    lines = script["table"](result).splitlines()
    assert len(lines) == 2 + 20  # nineteen objectives, and FroSSL without logarithms
    assert "\n".join(lines) in (ROOT / "README.md").read_text(encoding="utf-8")
