"""Untrusted files, damaged runs, and kills. No attack may cause a traceback or run foreign code."""

import pytest


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
