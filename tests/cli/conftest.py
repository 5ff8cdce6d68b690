import pytest


@pytest.fixture
def fullrank(capsys):
    """`fullrank("pretrain", …)` runs a command in this process and returns exit status, standard output and standard
    error."""
    from fullrank.cli import main

    def command(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return command


@pytest.fixture
def refused(fullrank):
    """`refused("pretrain", …)` runs a command that must fail with status 2, and returns its one line on standard
    error."""

    def line(*arguments):
        status, out, err = fullrank(*arguments)
        assert (status, out) == (2, "")
        assert err.startswith("fullrank: ")
        assert err.count("\n") == 1
        assert err.endswith("\n")
        return err.removeprefix("fullrank: ").strip()

    return line
