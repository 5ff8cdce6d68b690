"""`fullrank reproduce`: compute and draw figures of the papers, and check the papers' claims."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fullrank.cli.flags import call
from fullrank.config import from_json
from fullrank.errors import Interrupted, ProcessFailed, UserError
from fullrank.files import atomic_write, write_text
from fullrank.run.terminal import stderr
from fullrank.sweep import Jobs, Row, list_cells, require_success, run_sweep
from fullrank_papers.figures import FIGURES, CampaignRuns, Claim, Result, load_committed, load_figure, summarize_claims
from fullrank_papers.figures import reproduce as compute
from fullrank_papers.figures.figure import LABELS, MARKS, is_campaign
from fullrank_papers.figures.result import checked_size, result_path

COLORS = {True: "green", False: "red", None: "yellow"}
LEGEND = (
    "claims are statements of the paper (recalled claims: its text was not at hand); checks of the corrections are "
    "about our own statements, from derivations or control experiments (docs/derivations); our comparisons are about "
    "our runs, whatever the size of the paper's\nto compute one figure: fullrank reproduce frossl/fig2 --size smoke"
)


@dataclass(frozen=True)
class CampaignFlags:
    """The flags of campaigns: of tables and figures that are drawn from a list of runs.

    Attributes:
        seeds: Number of seeds.
        only: Methods.
        transfer: Sources of other labelled images, on which the same probes are scored: path/to/mnist.
        parallel: Runs at the same time; 0: one for each GPU, or one on a CPU, where several share the cores.
        runs: Folder of the runs; by default runs/PAPER.
        cell: Run one cell: its number, counted from 0, or its name; for a cluster.
        list: Print the cells, each with the command that runs it.
    """

    seeds: int | None = None
    only: tuple[str, ...] = ()
    transfer: tuple[str, ...] = ()
    parallel: int = 0
    runs: Path | None = None
    cell: str | None = None
    list: bool = False

    def of(self, name: str, size: str, data: str | None) -> CampaignRuns:
        """Return the runs of a campaign that the flags choose."""
        return CampaignRuns(name, size, data, self.seeds, self.only, self.transfer, self.runs)


def reproduce(
    name: tyro.conf.Positional[str | None] = None,
    /,
    *,
    size: str = "small",
    data: str | None = None,
    seed: int = 0,
    out: Path = Path("reproduced"),
    overwrite: bool = False,
    redraw: bool = False,
    campaign: Annotated[CampaignFlags, tyro.conf.arg(name="")] = CampaignFlags(),
) -> None:
    """Compute and draw one figure, or all figures of a paper, and check the paper's claims.

    Without a name, the command lists all figures with their claims and with the results that come with the library.
    With the name of a paper, figures that lack the size are left out, and existing ones are only drawn again, so an
    interrupted command can be repeated.

    Some tables and figures are campaigns: lists of runs, each a run directory in RUNS/SIZE. The same command takes what
    is done and goes on where it was stopped; the result is drawn from the runs that are done, also if some are missing.

    Args:
        name: PAPER/FIGURE, or PAPER for all of its figures.
        size: smoke takes seconds (a campaign: minutes), small takes minutes (a campaign: hours), gpu is for one GPU
            (campaigns), paper uses the settings of the paper as far as the paper states them.
        data: source URI of the images, for figures that use images; by default the source of the size's recipe, or the
            embedded digits.
        seed: seed of all random numbers of a figure that is not a campaign.
        out: folder; a figure is written to OUT/PAPER/FIGURE-SIZE.json, .svg and .png.
        overwrite: replace existing files. Without it, a campaign replaces its result by one of the same images with at
            least as many runs.
        redraw: draw from the existing .json file, or from the runs of a campaign that are done, without computing.
        campaign: the flags of campaigns.
    """
    if name is None:
        list_figures(Console())
        return
    names = [figure for figure in FIGURES if figure.startswith(f"{name}/")] or [name]
    campaigns = [figure for figure in names if is_campaign(figure)]
    if not campaigns and campaign != CampaignFlags():
        raise UserError(f"{name} is computed without run directories; remove the flags of campaigns")
    if (campaign.cell is not None or campaign.list) and campaigns != [name]:
        raise UserError(f"--cell and --list need one campaign, such as frossl/benchmark, got {name}")
    if campaigns == [name] and seed:
        raise UserError(f"{name} is a campaign of several seeds, but --seed is {seed}; give --seeds, their number")
    if without := [figure for figure in names if figure != name and size not in load_figure(figure).SIZES]:
        names = [figure for figure in names if figure not in without] or names
        stderr().print(f"without size {size}: {', '.join(without)}")
    images = {figure: text for figure in names if (text := FIGURES.get(figure, {}).get("images"))}
    for figure in names:
        checked_size(figure, size, data if figure in images or not images else None)
    failed = []  # the failure of some runs does not end the other campaigns
    for figure in names:
        source = data if figure in images else None
        if is_campaign(figure):
            try:
                reproduce_campaign(campaign.of(figure, size, source), campaign, out, overwrite=overwrite, redraw=redraw)
            except ProcessFailed as error:
                failed.append(error)
            continue
        path = result_path(out, figure, size)
        if figure == name and path.exists() and not (overwrite or redraw):
            raise UserError(f"{path} exists already; choose another --out, or give --redraw or --overwrite")
        if redraw or (path.exists() and not overwrite):
            result = Result.read(path)
            stderr().print(f"{figure}: drawn from {path}, computed with seed {result.seed}")
            show(result, result.save_drawing(out))
            continue
        # The draft raises before the computation if OUT cannot be written.
        with atomic_write(path, overwrite=overwrite) as draft, stderr().status(f"computing {figure}"):
            result = compute(figure, size=size, data=source, seed=seed)
            result.write(draft)
        if figure in images and data is None:
            stderr().print(f"{figure}: of the default images of this size; --data can be {images[figure]}")
        show(result, [path, *result.save_drawing(out)])
    for error in failed[1:]:
        failed[0].add_note("\n".join((str(error), *getattr(error, "__notes__", ()))))
    if failed:
        raise failed[0]


def reproduce_campaign(runs: CampaignRuns, flags: CampaignFlags, out: Path, *, overwrite: bool, redraw: bool) -> None:
    """List or run cells, or run what is missing of a campaign and draw what is done, also after an interruption.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP; the runs have written checkpoints.
        ProcessFailed: some runs have failed; the others are drawn.
    """
    given = {"--size": (runs.size,), "--data": (runs.data,), "--seeds": (runs.seeds,), "--runs": (runs.runs,)}
    given |= {"--only": flags.only, "--transfer": flags.transfer}
    given |= {"--out": (out if out != Path("reproduced") else None,)}
    words = [str(word) for flag, values in given.items() if any(values) for word in (flag, *values)]
    command, rows = shlex.join(["fullrank", "reproduce", runs.name, *words]), []
    if not overwrite and (path := result_path(out, runs.name, runs.size)).exists():
        runs = replace(runs, stored=[from_json(Row, row, f"{path}") for row in Result.read(path).rows["rows"]])
        stderr().print(f"runs of {path} with the same recipes and images are not trained again; --overwrite trains all")
    if flags.cell is not None:
        debug = Jobs(cluster="debug")
        run_sweep(runs.plan(), runs.folder, debug, only=flags.cell, stored=runs.stored, console=stderr())
    elif flags.list:
        list_cells(runs.plan(), runs.folder, command, runs.stored)
    else:
        try:
            if redraw:
                result = runs.collect()
                result = result if result.rows["rows"] else Result.read(result.path(out))
            else:
                result, rows = runs.run(parallel=flags.parallel, console=stderr())
        except Interrupted:
            try:
                save_campaign(runs.collect(), out, overwrite=overwrite)
            except UserError as error:  # the command ends with the interruption, which says how to go on
                stderr().print(f"{runs.name}: the runs that are done were not drawn: {error}")
            raise
        save_campaign(result, out, overwrite=overwrite)
        require_success(rows, command)


def save_campaign(result: Result, out: Path, *, overwrite: bool) -> None:
    """Print table and claims of a campaign, and write rows, table and drawing; a stored result with more runs is kept.

    Raises:
        UserError: the stored result is of other images, or the files cannot be written.
    """
    rows, path, module = result.rows["rows"], result.path(out), load_figure(result.name)
    if not rows:
        return
    stored = [] if overwrite or not path.exists() else Result.read(path).rows.get("rows", [])
    new, old = ({row["images"]: row["data"] for row in each if row.get("images")} for each in (rows, stored))
    if not set(old) <= set(new):
        raise UserError(f"{path} has other images ({old}) than these ({new}); give --overwrite or another --out")
    table = module.markdown(result.rows) if hasattr(module, "markdown") else None
    if table is not None:
        print(table)
    stderr().print(f"{result.name}: {result.runs}")
    if len(stored) > len(rows):
        print_claims(result.claims, result.name, Console())
        fewer = f"{path} has {len(stored)} runs, more than these {len(rows)}, and was kept"
        stderr().print(f"{fewer}: give --seeds, --only as when it was made, or --overwrite")
        return
    with atomic_write(path, overwrite=True) as draft:
        result.write(draft)
    files = [path, *result.save_drawing(out)]
    if table is not None:
        files.append(path.with_suffix(".md"))
        write_text(files[-1], f"{FIGURES[result.name]['title']}: {result.runs}\n\n{table}\n")
    show(result, files)


def show(result: Result, files: Sequence[Path]) -> None:
    """Print the claims of a result and the files that were written."""
    print_claims(result.claims, result.name, Console())
    what = " of training" if is_campaign(result.name) else ""
    stderr().print(f"{result.seconds:g} s{what}; written: {', '.join(map(str, files))}")


def print_claims(claims: Sequence[Claim], name: str, console: Console) -> None:
    """Print the claims of one figure with verdict, expected and measured values."""
    console.print(Text(f"{name}: {summarize_claims(claims)}", "bold"), soft_wrap=True)
    table = Table("", "verdict", "claim", "expected", "measured", box=None, padding=(0, 2, 0, 0))
    for claim in claims:
        label = "" if claim.kind == "claim" else f"{LABELS[claim.kind][0]}: "
        verdict = Text(f"{label}{claim.verdict}", style="dim")
        mark = Text(MARKS[claim.holds], COLORS[claim.holds])
        table.add_row(mark, verdict, Text(claim.statement), Text(claim.expected), Text(claim.measured))
    console.print(table)


def list_figures(console: Console) -> None:
    """Print every figure with its claim and the verdicts of the committed result."""
    table = Table("figure", "claim or question", "verdicts at size small", "time", box=None, padding=(0, 2, 0, 0))
    table.columns[0].no_wrap = table.columns[3].no_wrap = True
    for name, texts in FIGURES.items():
        result = load_committed(name)
        missing = "not computed yet" if "small" in load_figure(name).SIZES else "no size small"
        summary = summarize_claims(result.claims) if result else missing
        seconds = f"{result.seconds:.0f} s" if result else ""
        table.add_row(Text(name), Text(texts["claim"]), Text(summary), seconds)
    console.print(table)
    console.print(LEGEND)


run = partial(call, reproduce, command="reproduce")
