import subprocess
import sys

import pytest

from fullrank.cli.main import COMMANDS


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_the_help_imports_neither_torch_nor_tyro():
    heavy = "{'torch', 'tyro', 'numpy', 'rich', 'timm', 'lightning'}"
    done = python(
        f"import sys; from fullrank.cli import main; status = main(['--help']); print(sorted({heavy} & set(sys.modules)), status)"
    )
    assert done.returncode == 0, done.stderr
    *help_text, last = done.stdout.splitlines()
    assert last == "[] 0"
    for command, summary in COMMANDS.items():
        assert any(line.split() == [command, *summary.split()] for line in help_text)


def test_no_arguments_print_the_help(fullrank):
    status, out, err = fullrank()
    assert (status, err) == (0, "")
    assert "fullrank pretrain digits" in out


def test_the_version_is_printed(fullrank):
    status, out, _ = fullrank("--version")
    assert status == 0
    assert out.startswith("fullrank 0.")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, fullrank):
    status, out, err = fullrank(command, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: fullrank {command}")


def test_an_unknown_command_suggests_the_nearest(refused):
    assert "did you mean 'pretrain'?" in refused("pretrian", "digits")


def test_a_closed_pipe_is_no_error():
    code = (
        "import sys, types; from fullrank.cli import main; command = types.ModuleType('command'); "
        "command.run = lambda arguments: [print(k, flush=True) for k in range(100_000)]; "
        "sys.modules['fullrank.cli.recipes'] = command; sys.exit(main(['recipes']))"
    )
    pipe = f'{sys.executable} -c "{code}" | head -n 1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_an_error_of_several_lines_is_printed_as_one(refused, monkeypatch):
    from fullrank.cli import recipes
    from fullrank.errors import UserError

    def broken(arguments):
        raise UserError("first\nsecond")

    monkeypatch.setattr(recipes, "run", broken)
    assert refused("recipes") == "first second"


def test_other_exceptions_keep_their_traceback(fullrank, monkeypatch):
    from fullrank.cli import recipes

    monkeypatch.setattr(recipes, "run", lambda arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fullrank("recipes")
