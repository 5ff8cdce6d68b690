"""The house: each room of `fullrank` imports only the rooms before it, and keeps within its budget of lines of code."""

import ast
import io
import re
import tokenize
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
# fmt: off
ROOMS = ["root", "objectives", "spectrum", "training", "views", "methods", "images", "nn", "recipes", "models",
         "evaluation", "run", "monitor", "report", "sweep", "testing", "cli"]
# fmt: on
"""A room imports only those before it. The first six are the heart; root: the files of no room."""
UPWARDS: set[tuple[str, str]] = set()
"""(file, room that it must not import): what is left to mend. The list only becomes shorter."""
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUDGETS: dict[str, int] = PYPROJECT["tool"]["fullrank"]["budgets"]


def room_of(parts: tuple[str, ...]) -> str:
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else "root"


def imported_modules(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def code_lines(file: Path) -> int:
    """Return the number of lines that are not blank, a comment, or the docstring of a module, class or function."""
    text = file.read_text()
    documented = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                documented.update(range(first.lineno, (first.end_lineno or 0) + 1))
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in blank:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documented)


def test_every_room_imports_only_the_rooms_before_it():
    found = set()
    for file in sorted((SRC / "fullrank").rglob("*.py")):
        path = file.relative_to(SRC)
        own = room_of(path.parts)
        if path.parts[1:] in (("__init__.py",), ("__main__.py",)):  # the public names, and the command
            continue
        for module in imported_modules(file):
            parts = tuple(module.split("."))
            if parts[0] == "fullrank" and ROOMS.index(room_of(parts)) > ROOMS.index(own):
                found.add((str(path), room_of(parts)))
            if parts[0] == "fullrank" and room_of(parts) == "testing" and own not in ("testing", "cli"):
                found.add((str(path), "testing"))
    assert found <= UPWARDS


def test_the_library_never_imports_the_papers():
    files = (SRC / "fullrank").rglob("*.py")
    assert not [file for file in files if any(name.startswith("fullrank_papers") for name in imported_modules(file))]


@pytest.mark.parametrize("folder", BUDGETS)
def test_a_folder_keeps_its_budget(folder):
    files = (SRC / "fullrank").glob("*.py") if folder.endswith("/root") else (ROOT / folder).rglob("*.py")
    lines = sum(map(code_lines, files))
    assert lines <= BUDGETS[folder], f"{folder} has {lines} lines of code; make it smaller, or explain a larger budget"


def test_every_dependency_of_the_tests_is_pinned():
    groups, project = PYPROJECT["dependency-groups"], PYPROJECT["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["onnx"], *groups["test"], *groups["lint"]]
    names = {re.split(r"[\[>]", name)[0].replace("_", "-") for name in [*wanted, *groups["docs"]]}
    assert names <= {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}


def test_a_file_is_a_chapter():
    assert [file for file in SRC.rglob("*.py") if file.read_text().count("\n") > 400] == []
