"""Run commands as a user without privileges, name and home: `python unprivileged.py`, with JSON on standard input.

Input: {"warm up": [case …], "cases": [case …]}, where a case is {"folder": …, "arguments": […]}. The cases of the
warm-up run before the
privileges are dropped, because they import what the user may not be able to read. Output: one [exit status, standard
error] per case.
"""

import contextlib
import io
import json
import os
import sys
import traceback

UID = 54321  # a user whom the system does not know, as in many containers


def run_case(case):
    from fullrank.cli import main

    output = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(output):
        try:
            os.chdir(case["folder"])
            status = main(case["arguments"])
        except BaseException:
            status = 1
            traceback.print_exc()
    return status, output.getvalue()


if __name__ == "__main__":
    tasks = json.load(sys.stdin)
    for case in tasks["warm up"]:
        status, err = run_case(case)
        assert status == 0, (case, err)
    os.environ.pop("HOME", None)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(UID)
        os.setuid(UID)
    print(json.dumps([run_case(case) for case in tasks["cases"]]))
