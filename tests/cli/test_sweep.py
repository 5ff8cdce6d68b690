"""`fullrank sweep`: wrong flags, the list of cells, one cell as a job, and the collected result."""

import json

import pytest

from fullrank.sweep import sweeping

TINY = ("--epochs", 1, "--backbone.name", "test_resnet", "--projector.widths", "32,16")
TINY += ("--data.subset", 256, "--batch_size", 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--objective", "frossl", "vicregg"], "did you mean 'vicreg'"),
        (["digits", "--optimizer.rate", 0.1, 0.2], "did you mean"),
        (["digits", "--epochs", 1, "two"], "epochs"),
        (["digits", "--choose", "optimizer.lr"], "needs at least two values of --optimizer.lr"),
        (["digits", "--epochs", 1, 2, "--choose", "epochs", "--probes", "fractions"], "put another probe first"),
        (["digits", "--cell", 7], "--cell 7 is neither a number from 0 to 0"),
        (["digitz", "--seeds", 2], "did you mean 'digits'"),
        (["digits", "--seeds"], "expected their number"),
    ],
)
def test_a_wrong_command_is_one_line_and_writes_nothing(refused, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused("sweep", *arguments)
    assert not list(tmp_path.iterdir())


def test_cells_run_as_jobs_and_a_later_call_compares_what_validation_chose(fullrank, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["sweep", "digits", "--optimizer.lr", 1e-3, 1e-2, "--choose", "optimizer.lr", *TINY, "--probes", "knn"]
    command += ["--cluster", "debug", "--out", "out"]
    seeds = fullrank("sweep", "digits", *TINY, "--seeds", 2, "--no-trust", "--list")[1]
    assert [line.rpartition(" ")[2] for line in seeds.splitlines()] == ["seed0", "seed1"]
    status, out, _ = fullrank(*command, "--list")
    assert status == 0
    lines = [line.split("\t") for line in out.splitlines()]
    assert [(number, state) for number, state, _ in lines] == [("0", "to run"), ("1", "to run")]
    assert lines[1][2].endswith("--cell choice-lr0.01")
    assert not (tmp_path / "out").exists()
    for cell in (0, "choice-lr0.01"):
        status, _, err = fullrank(*command, "--cell", cell)
        assert status == 0
        assert "done" in err
    other = fullrank(*[5e-3 if word == 1e-2 else 128 if word == 256 else word for word in command], "--list")[1]
    assert [line.split("\t")[1] for line in other.splitlines()] == ["occupied", "to run"]
    monkeypatch.setattr(sweeping, "MOST_REPORTED", 0)
    status, out, err = fullrank(*command)
    assert status == 0
    assert "1 of 3 runs to train" in err
    assert "report.html compares the first 0 of 1 runs" in err
    assert "| optimizer.lr " in out
    rows = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert [(row["settings"].get("stage"), row["seed"]) for row in rows] == [("choice", 1), ("choice", 1), (None, 0)]
    best = max(rows[:2], key=lambda row: row["scores"]["digits"]["knn"])
    assert rows[2]["settings"] == {"optimizer.lr": best["settings"]["optimizer.lr"]}
    assert [(row["train_images"], row["test_images"]) for row in rows] == [(256, 144), (256, 144), (256, 359)]
    assert [score["epoch"] for score in rows[2]["online"]] == [1.0]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names >= {"table.md", "table.csv", "report.html", "accuracy.svg", "choice-lr0.001", best["cell"]}
    assert "on held-out training images" in (tmp_path / "out" / "table.md").read_text()


def test_runs_of_two_versions_of_a_function_are_never_in_one_table(fullrank, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "edited_loss.py"
    source.write_text("def pull(Z):\n    return {'invariance': (Z - Z.mean(0)).square().mean()}\n")
    command = ["sweep", "digits", "--objective", "edited_loss:pull", *TINY, "--out", "out", "--cluster", "debug"]
    command += ["--probes", "none"]
    assert fullrank(*command)[0] == 0
    assert fullrank(*command)[0] == 0  # nothing to do
    row = (tmp_path / "out" / "seed0" / "row.json").read_text()
    source.write_text(source.read_text().replace("return", "return  # changed"))
    status, _, err = fullrank(*command, "--seeds", 2)
    assert status == 2
    assert "was trained with another version of edited_loss:pull" in err
    assert "give another folder" in err
    assert (tmp_path / "out" / "seed0" / "row.json").read_text() == row
