"""Run commands as a user without privileges and without a home: `python unprivileged.py CASES.json RESULTS.json`.

CASES.json: a list of {"folder", "arguments"}; RESULTS.json: one [exit status, standard error] per case, a traceback as status 1.
"""

import contextlib
import io
import json
import os
import sys
import traceback
from pathlib import Path

NOBODY = 65534

if __name__ == "__main__":
    cases, results = map(Path, sys.argv[1:])
    from fullrank.cli import main  # imported before the privileges are dropped, so that the environment may be the root user's

    for command in ("pretrain", "evaluate", "spectrum", "embed", "export", "report"):
        __import__(f"fullrank.cli.{command}")
    import fullrank.pretraining  # noqa: F401

    os.environ.pop("HOME", None)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    found = []
    for case in json.loads(cases.read_text()):
        output = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(output):
            try:
                os.chdir(case["folder"])
                status = main(case["arguments"])
            except BaseException:
                status = 1
                traceback.print_exc()
        found.append([status, output.getvalue()])
    results.write_text(json.dumps(found))
