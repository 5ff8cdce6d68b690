import pytest


@pytest.fixture
def fullrank(capsys):
    """`fullrank("pretrain", …)` in this process: exit status, standard output, standard error."""
    from fullrank.cli import main

    def command(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return command


@pytest.fixture
def refused(fullrank):
    """`refused("pretrain", …)`: the one line with which a command refuses; status 2, nothing else said."""

    def line(*arguments):
        status, out, err = fullrank(*arguments)
        assert (status, out) == (2, "")
        assert err.startswith("fullrank: ")
        assert err.count("\n") == 1
        assert err.endswith("\n")
        return err.removeprefix("fullrank: ").strip()

    return line
