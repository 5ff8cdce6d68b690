import signal
import subprocess
import sys

import pytest

from fullrank.cli import commands
from fullrank.cli.main import COMMANDS
from fullrank.errors import Interrupted, ProcessFailed, UserError


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("words", "status"), [(["--help"], 0), ([], 0), (["--version"], 0), (["pretrian"], 2)])
def test_the_help_is_instant(words, status):
    heavy = "{'torch', 'tyro', 'numpy', 'rich', 'pydantic'}"
    code = f"import sys; from fullrank.cli import main; print(main({words!r}), {heavy} & set(sys.modules))"
    done = python(code)
    assert done.stdout.splitlines()[-1] == f"{status} set()"
    if words == ["--help"]:
        assert all(f"  {command} " in done.stdout for command in COMMANDS)
    assert ("did you mean 'pretrain'?" in done.stderr) == bool(status)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, fullrank):
    status, out, err = fullrank(command, "--help")
    assert (status, err) == (0, "")
    assert out.startswith(f"usage: fullrank {command}")


@pytest.mark.parametrize("words", [["run", "--out", ""], ["", "--out", "file"], ["run", "--out", "a\0b"], ["--out="]])
def test_empty_words_are_refused(words, refused):
    assert "is empty or has a zero byte" in refused("report", *words)


def test_a_closed_pipe_is_no_error():
    code = (
        "import sys, types; from fullrank.cli import main; command = types.ModuleType('command'); "
        "command.run = lambda arguments: [print(k, flush=True) for k in range(100_000)]; "
        "sys.modules['fullrank.cli.check'] = command; sys.exit(main(['check']))"
    )
    pipe = f'{sys.executable} -c "{code}" | head -n 1; exit ${{PIPESTATUS[0]}}'
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("first\nsecond"), 2, "fullrank: first second\n"),
        (ProcessFailed("process 1 failed"), 1, "\nfullrank: process 1 failed\n"),
        (Interrupted(15, "continue with --resume"), 143, "fullrank: continue with --resume\n"),
        (KeyboardInterrupt(), 130, "fullrank: stopped\n"),
        (SystemExit("a reason"), 1, "fullrank: a reason\n"),
        (SystemExit(7), 7, ""),
        (SystemExit(None), 0, ""),
    ],
)
def test_an_exception_is_an_exit_status_and_a_line(error, status, line, fullrank, monkeypatch):
    def fail():
        raise error

    monkeypatch.setattr(commands, "recipes", fail)
    assert fullrank("recipes") == (status, "", line)


def test_other_exceptions_keep_their_traceback(fullrank, monkeypatch):
    monkeypatch.setattr(commands, "recipes", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fullrank("recipes")


def test_ctrl_c_during_the_imports_is_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(60)\n")
    code = (  # a background job inherits that SIGINT is ignored
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"sys.path.insert(0, {str(tmp_path)!r}); from fullrank.cli import main; sys.exit(main(['pretrain', 'digits']))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "fullrank: stopped\n")
