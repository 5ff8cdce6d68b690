"""Run `fullrank` in forks of a process that has imported torch, so that a run starts in milliseconds: `python
forks.py`.

Each line of standard input is a JSON list: ["start", arguments, file for stderr, names of ignored signals] or ["wait",
pid]. An answer is a line with the pid, or with the exit status (negative: the number of the signal that ended the
process).
"""

import json
import os
import signal
import sys
import traceback

import fullrank.cli.pretrain
import fullrank.run.pretrain  # noqa: F401
from fullrank.cli import main


def start(arguments, output, ignored):
    if pid := os.fork():
        return pid
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_NOCTTY, 0o600), 2)
    os.dup2(2, 1)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    for name in ignored:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    sys.argv = ["fullrank", *arguments]
    status = 1
    try:
        status = main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        name, *values = json.loads(line)
        print({"start": start, "wait": wait}[name](*values), file=answers, flush=True)
