"""Shows the matrix: in the terminal, and by templates as a page, as Markdown and as a log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import model
from .compare import SECTIONS
from .model import Finding, Matrix, Row, TargetResult, TierResult

if TYPE_CHECKING:
    import jinja2

# State → (CSS class, sign, word, terminal style). A word stands beside each sign and colour.
LOOKS = {
    model.PASSED: ("good", "✓", "ok", "green"),
    model.FAILED: ("bad", "✗", "failed", "bold red"),
    model.NOT_REACHED: ("idle", "–", "not reached", "dim"),
    model.NOT_ASKED: ("idle", "–", "not asked", "dim"),
    model.IMPOSSIBLE: ("idle", "–", "not possible", "dim"),
    model.NOT_NEEDED: ("idle", "·", "not needed", "dim"),
}
_WITH_BASE = 120  # columns of a terminal that has room for the wheels' names


def page(matrix: Matrix) -> str:
    """One self-contained HTML page. Everything in it is escaped; it loads nothing."""
    return _render("page.html.j2", matrix)


def markdown(matrix: Matrix) -> str:
    """The report for a pull request or a job summary."""
    return _render("report.md.j2", matrix)


def chain(matrix: Matrix) -> str:
    """A short log, release by release, that is worth keeping: no paths, nothing of the machine."""
    return _render("chain.md.j2", matrix)


def _render(name: str, matrix: Matrix) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=name.endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    _add_filters(environment)
    return environment.get_template(name).render(
        matrix=matrix,
        span=span(matrix),
        headline=headline(matrix),
        unchanged=sum(target.cached for target in matrix.targets),
        titles=model.TIERS,
        long_titles=model.TITLES,
        sections=SECTIONS,
        patches=by_name([_patch_rows(target) for target in matrix.targets]),
        operators=by_name([target.operators for target in matrix.targets]),
    )


def _add_filters(environment: jinja2.Environment) -> None:
    environment.filters.update(
        css=lambda state: LOOKS[state][0],
        sign=lambda state: LOOKS[state][1],
        word=lambda state: LOOKS[state][2],
        ident=lambda name: re.sub(r"\W", "-", name),
        brief=lambda text: text.partition("\n")[0].partition(":")[0][:24],
        cell=lambda text: str(text).replace("|", "\\|"),
        fenced=_fenced,
        labelled=lambda finding: "\n".join(f"{k + ':':<7}{v}" for k, v in _parts(finding) if v),
        counted=_counted,
    )


def _fenced(text: str) -> str:
    """A Markdown block of text that cannot end before its end."""
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _counted(target: TargetResult) -> str:
    """How the parts of tier (b) stand: '7 as they are, 1 not needed'."""
    states: dict[str, int] = {}
    for row in _patch_rows(target):
        word = "as they are" if row.state == model.PASSED else row.state
        states[word] = states.get(word, 0) + 1
    return ", ".join(f"{count} {word}" for word, count in states.items())


def _patch_rows(target: TargetResult) -> tuple[Row, ...]:
    tier = target.tier("b")
    return tier.rows if tier else ()


def by_name(rows: list[tuple[Row, ...]]) -> dict[str, list[Row | None]]:
    """Rows by name, each with its cell on every target; None where a target has none."""
    cells = [{row.name: row for row in of_target} for of_target in rows]
    names = dict.fromkeys(name for of_target in cells for name in of_target)
    return {name: [of_target.get(name) for of_target in cells] for name in names}


def span(matrix: Matrix) -> str:
    """'2.6.0 to 2.15.0'."""
    names = [target.name for target in matrix.targets]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def headline(matrix: Matrix) -> str:
    """One sentence on how it went."""
    total, failed = len(matrix.targets), [target.name for target in matrix.failed]
    if failed:
        return f"{total - len(failed)} of {total} releases pass; failed: {', '.join(failed)}."
    return f"All {total} releases pass." if total > 1 else f"torch {span(matrix)} passes."


def show(matrix: Matrix, console: Console) -> None:
    """Print the table and every finding."""
    table = Table(
        title=f"{len(matrix.operators)} added operators ({matrix.additions})", title_style=""
    )
    table.add_column("torch", no_wrap=True)
    for letter in matrix.tiers:
        table.add_column(f"({letter})\n{model.TIERS[letter]}", no_wrap=True)
    wide = console.width >= _WITH_BASE
    if wide:
        table.add_column("base", overflow="fold", style="dim")
    for target in matrix.targets:
        cells = [_tier_cell(tier) for tier in target.tiers if tier.tier in matrix.tiers]
        unchanged = " (unchanged)" if target.cached else ""
        base = f"{target.base or target.commit[:12]}{unchanged}"
        table.add_row(target.name, *cells, *([base] if wide else []))
    console.print(table)
    for target in matrix.failed:
        tier = target.first_failure
        for finding in tier.findings if tier else ():
            console.print(_finding(target, tier, finding))
    unchanged_count = sum(target.cached for target in matrix.targets)
    console.print(
        f"\n{headline(matrix)} ({matrix.seconds:.1f} s, {unchanged_count} unchanged since an "
        "earlier run)", markup=False, soft_wrap=True,
    )  # fmt: skip


def _tier_cell(tier: TierResult) -> Text:
    _, _, word, style = LOOKS[tier.state]
    if tier.state in (model.PASSED, model.FAILED):
        word += f" {tier.seconds:.{1 if tier.seconds < 10 else 0}f} s"
    return Text(word.replace("failed", "FAILED"), style=style)


def _parts(finding: Finding) -> list[tuple[str, str]]:
    return [
        ("error", finding.what), ("where", finding.where), ("why", finding.why),
        ("do", finding.advice), ("next", finding.next),
    ]  # fmt: skip


def _finding(target: TargetResult, tier: TierResult | None, finding: Finding) -> Text:
    letter = tier.tier if tier else ""
    text = Text(f"\ntorch {target.name}, tier ({letter}): ", style="bold")
    text.append(finding.kind, style="bold red")
    for label, part in _parts(finding):
        if part:
            indented = part.strip().replace("\n", "\n" + " " * 7)
            text.append(f"\n{label + ':':<7}{indented}", style="not bold default")
    return text
