import signal
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


@pytest.mark.parametrize(("code", "status"), [(None, 0), (0, 0), (1, 1), (7, 7), ("a reason", 1), (True, 1)])
def test_an_exit_of_a_users_function_is_an_exit_status(code, status, fullrank, monkeypatch):
    from fullrank.cli import recipes

    def leave(arguments):
        raise SystemExit(code)

    monkeypatch.setattr(recipes, "run", leave)
    found, _, err = fullrank("recipes")
    assert found == status
    assert err == ("fullrank: a reason\n" if code == "a reason" else "")


def test_ctrl_c_in_a_command_is_one_line(fullrank, monkeypatch):
    from fullrank.cli import recipes

    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(recipes, "run", interrupted)
    assert fullrank("recipes") == (130, "", "fullrank: stopped\n")


def test_ctrl_c_during_the_imports_ends_the_process_without_a_traceback(tmp_path):
    (tmp_path / "torch.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(60)\n")
    code = (
        # a background job inherits that it is ignored
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"sys.path.insert(0, {str(tmp_path)!r}); from fullrank.cli import main; sys.exit(main(['pretrain', 'digits']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "fullrank: stopped\n")


def test_other_exceptions_keep_their_traceback(fullrank, monkeypatch):
    from fullrank.cli import recipes

    monkeypatch.setattr(recipes, "run", lambda arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fullrank("recipes")
