"""Attacks on the command line and the library: strangers' files, damaged runs, signals, misuse. `make attack` runs them
and counts them.

One file holds one kind of attack, as a table of cases. No attack may cause a traceback, run foreign code, or change a
file that is not the command's own.
"""

from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """Mark every test of this folder as an attack."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.attack)


def pytest_terminal_summary(terminalreporter):
    """Print for each kind of attack how many cases the product withstood."""
    withstood, tried = Counter(), Counter()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            name = Path(report.nodeid.split("::")[0])
            if name.parent.name == HERE.name and (outcome != "passed" or report.when == "call"):
                kind = name.stem.removeprefix("test_").replace("_", " ")
                tried[kind] += 1
                withstood[kind] += outcome == "passed"
    if tried:
        terminalreporter.section("attacks withstood")
        for kind in sorted(tried):
            terminalreporter.line(f"{kind:20} {withstood[kind]} of {tried[kind]}")


@pytest.fixture
def attack(capsys):
    """`attack("pretrain", …)` runs a command in this process and returns exit status, standard output and standard
    error.

    The command must succeed, or fail with status 2 and exactly one line on standard error.
    """
    from fullrank.cli import main

    def run_command(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert status in (0, 2), (status, err)
        assert "Traceback" not in out + err
        if status == 2:
            assert err.splitlines()[-1].startswith("fullrank: "), err
        return status, out, err

    return run_command
