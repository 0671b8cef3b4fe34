# SPDX-License-Identifier: Apache-2.0
"""Tables that are shown as they grow and kept as Markdown.

RESULTS.md begins with one table of what matters most, then lists every target that is missed. Each
scenario has a page of its own in the folder results, with its targets and all its figures. Tables
of figures that are wider than WIDTH are split."""

import re
import textwrap

WIDTH = 120

# The figures on the first screen, by scenario: how each begins.
HEADLINES = {
    "stream": [
        "cold, 256 MiB, no limits, client's core: CPU ms/MiB",
        "cold, 256 MiB, no limits, client's core: MB/s / former",
        "cold, 256 MiB, no limits, client's core, 16 connections: CPU ms/MiB",
        "cold, 256 MiB, no limits, client's core, 16 connections: MB/s / former",
        "cold, 1 GiB, 15 ms, 90 MB/s: MB/s / direct",
        "cold, 1 GiB, 15 ms, 90 MB/s, busy disk: MB/s / direct",
        "cold, 64 MiB, no limits, server's core: MB/s / nginx",
        "cold, 64 MiB, no limits, server's core: first byte above direct, ms",
    ],
    "ranges": [
        "cold ranges, 15 ms, 90 MB/s, 1 connections: MB/s / direct",
        "cold ranges, 15 ms, 90 MB/s, 16 connections: MB/s / direct",
        "cold ranges, 15 ms, 90 MB/s, 64 connections: MB/s / direct",
        "cold ranges, 15 ms, 60 MB/s, 1 connections: MB/s / direct",
        "cold ranges, 15 ms, 60 MB/s, 4 connections: MB/s / direct",
        "cold ranges, 15 ms, 60 MB/s, 16 connections: MB/s / direct",
        "cold ranges, 15 ms, 60 MB/s, busy disk, 1 connections: MB/s / direct",
        "cold ranges, 15 ms, 60 MB/s, busy disk, 4 connections: MB/s / direct",
        "cold ranges, 15 ms, 60 MB/s, busy disk, 16 connections: MB/s / direct",
        "cold ranges, 15 ms, 60 MB/s, 16 connections: origin bytes",
    ],
    "miss": [
        "cold 10K: first byte above direct, us",
        "cold 4 KB, origin 30 ms, 256 connections: requests/s / direct",
        "cold 4 KB, origin 30 ms, 256 connections: CPU us for each",
        "cold 4 KB, origin 30 ms, 1000 connections: requests/s / direct",
        "cold 4 KB, origin 30 ms, 1000 connections: CPU us for each",
        "cold 4 KB, origin 30 ms, 4000 connections: requests/s for each worker",
        "cold 4 KB, origin 30 ms, 4000 connections: CPU us for each",
        "cold 4 KB, origin 30 ms, 4000 connections: share of the cores in use",
    ],
    "device": [
        "hits not in memory, 1 MiB objects, 16 connections: CPU ms/MiB",
        "hits not in memory, 1 MiB objects, 16 connections: MB/s / nginx",
        "hits not in memory, 256 KiB ranges, 16 connections: CPU ms/MiB",
        "hits not in memory, 256 KiB ranges, 16 connections: MB/s / nginx",
    ],
    "hit": [
        "CPU per warm hit / nginx, 10 KB, open, logs off",
        "CPU per warm hit / nginx, 112 KB, open, logs off",
        "CPU per warm hit / nginx, 256 KB ranges, open, logs off",
        "CPU per warm hit / nginx, 64 MiB, open, logs off",
        "CPU per warm hit / nginx, 10 KB, signatures verified, logs off",
        "CPU per warm hit / nginx, 112 KB, signatures verified, logs off",
        "CPU per warm hit / nginx, 256 KB ranges, signatures verified, logs off",
        "CPU per warm hit / nginx, 64 MiB, signatures verified, logs off",
    ],
    "weights": [
        "weights, cold: GB/s",
        "weights, cold: CPU s for each 8 GiB",
        "weights, warm: GB/s / local file",
    ],
    "tls": [
        "cold from https, 256 MiB, no limits: CPU / nginx",
        "cold from https, 4 KB, 30 ms, 256 connections: CPU / nginx",
        "warm hits over https, 10 KB, 16 connections: CPU / nginx",
        "warm hits over https, 64 MiB, 4 connections: CPU / nginx",
    ],
    "cores": [
        "warm, 10 KB, all workers: p99 / p50",
        "warm, 10 KB: scale for each worker",
        "warm, 64 MiB: scale for each worker",
    ],
    "loader": [
        "training loop, objects, s3torchconnector: utilisation warm",
        "training loop, objects, boto3: utilisation warm",
    ],
    "herd": ["100 readers of one cold 1GB, any MB/s"],
    "slowdown": ["origin with SlowDown, 100 ms: refused to readers, %"],
    "fairness": [
        "p99 of small hits beside 4 warm streams / alone",
        "p99 of small hits beside 4 cold streams / alone",
    ],
    "disk": ["stored / not stored, 16 connections"],
    "full": [
        "full, 1M, lru: runs not stored for want of a segment, %",
        "full, 1M, lru: p99 of hits while fed / alone, 1,000/s",
    ],
    "memory": ["anonymous MiB, 1,000,000 blocks and 512 connections"],
    "scale": ["scale: first hit, clean, ms", "scale: look-up, p99, clean, us"],
    "policy": ["policy: mean hit ratio at 0.50"],
}


class Report:
    """The output of one run, a section for each scenario, and the part of it that goes into files
    of results."""

    def __init__(self, about):
        self.about, self.sections, self.failures = about, {}, []
        self.section = self.wants = None
        print(about, flush=True)

    def begin(self, name, text):
        self.section, self.wants = [], []
        self.sections[name] = (text.strip(), self.section, self.wants)
        print(f"## {name}", "", text.strip(), "", sep="\n", flush=True)

    def head(self, *columns):
        self._add("", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns))

    def row(self, *cells):
        self._add("| " + " | ".join(c if isinstance(c, str) else number(c) for c in cells) + " |")

    def say(self, text):
        self._add("", text)

    def wanted(self, what, figure, most=None, least=None, text=None, beside="", former=""):
        """FIGURE is to be at most MOST or at least LEAST; TEXT is how it is shown. BESIDE and
        FORMER say what another server and the former binary reach."""
        reached = figure <= most if least is None else figure >= least
        limit = f"<= {number(most)}" if least is None else f">= {number(least)}"
        self.wants.append(
            (what, text or number(figure), beside, former, limit, "yes" if reached else "no")
        )

    def compare(self, what, values, beside=None, most=None, least=None):
        """The same for VALUES, those of all sides by Pairs.values()."""
        figure, text = values["forebay"]
        self.wanted(
            what,
            figure,
            most,
            least,
            text,
            f"{beside} {values[beside][1]}" if beside else "",
            values["former"][1] if "former" in values else "",
        )

    def failed(self, name, why):
        self.failures.append((name, why))
        self._add("", f"**{name} failed**: {why}")

    def summary(self):
        lines = targets_table([row for _, _, wants in self.sections.values() for row in wants])
        if self.failures:
            lines += ["", "Failed: " + ", ".join(name for name, _ in self.failures) + "."]
        return lines

    def write(self, path):
        """Writes a page for each scenario into the folder results, and PATH over all pages that are
        there."""
        folder = path.parent / "results"
        folder.mkdir(exist_ok=True)
        for name, (text, lines, wants) in self.sections.items():
            (folder / f"{name}.md").write_text(page(name, text, self.about, lines, wants))
        path.write_text(
            overview({file.stem: file.read_text() for file in sorted(folder.glob("*.md"))})
        )

    def _add(self, *lines):
        self.section += lines
        print(*lines, sep="\n", flush=True)


def page(name, text, about, lines, wants):
    """One scenario's page: what was measured, where, its targets, all its figures."""
    targets = ["", "## Targets", "", *targets_table(wants)] if wants else []
    out = [
        f"# {name}",
        "",
        text,
        "",
        textwrap.fill(about, WIDTH),
        *targets,
        "",
        "## Figures",
        *narrow(lines),
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip() + "\n"


def overview(pages):
    """Returns the text of RESULTS.md for the pages {name: text}."""
    targets = {name: targets_of(text) for name, text in pages.items()}
    every = [row for rows in targets.values() for row in rows]
    shown = ["| what | Forebay | beside | former | target | reached |", "|" + "---|" * 6]
    for name, figures in HEADLINES.items():
        for begins in figures:
            rows = [row for row in targets.get(name, []) if row[0].startswith(begins)]
            what, *cells = rows[0] if rows else (begins, "", "", "", "", "not measured")
            shown.append(f"| {link(name, what, pages)} | " + " | ".join(cells) + " |")
    missed = ["| scenario | figure | measured | target |", "|---|---|---|---|"]
    scenarios = ["| scenario | targets reached | date |", "|---|---|---|"]
    for name, rows in targets.items():
        missed += [
            f"| {name} | {figure.removeprefix(name + ', ').removeprefix(name + ': ')} | "
            f"{measured} | {limit} |"
            for figure, measured, _, _, limit, reached in rows
            if reached != "yes"
        ]
        got = f"{sum(row[-1] == 'yes' for row in rows)} of {len(rows)}" if rows else "has none"
        date = re.search(r"\d{4}-\d\d-\d\d", pages[name])
        failed = "; **failed**" if f"**{name} failed**" in pages[name] else ""
        scenarios.append(
            f"| [{name}](results/{name}.md) | {got}{failed} | {date.group() if date else ''} |"
        )
    return (
        "\n".join(
            [
                HEAD,
                *shown,
                "",
                f"{sum(row[-1] == 'yes' for row in every)} of {len(every)} targets are reached. "
                "The next section has all that are not.",
                "",
                MISSED,
                *missed,
                "",
                SCENARIOS,
                *scenarios,
            ]
        )
        + "\n"
    )


def link(name, what, pages):
    """Returns WHAT, as a link to the scenario's page if there is one."""
    return f"[{what}](results/{name}.md)" if name in pages else what


HEAD = """# Results

Forebay, nginx and direct access were measured with the same data, in the same run. Compare ratios,
not absolute figures. In brackets after a figure: the least and the most of the rounds. Each
scenario's page has machine and date.
"""

MISSED = "## Targets that are missed\n"

SCENARIOS = """## Scenarios

`bench/bench.py --results bench/RESULTS.md` writes this page and the pages of the scenarios. With
names of scenarios it renews only theirs. [README.md](README.md) says what each scenario does.
`former` is an older Forebay; the pages name its version.
"""


def targets_of(text):
    """The rows of a page's table of targets."""
    part = text.partition("\n## Targets\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line[1:-1].split("|")) for line in lines[2:]]


def targets_table(rows):
    return [
        "| figure | measured | beside | former | target | reached |",
        "| --- | --- | --- | --- | --- | --- |",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def narrow(lines):
    """The lines, with tables that are wider than WIDTH in several: each repeats the first
    column."""
    out, table = [], []
    for line in [*lines, ""]:
        if line.startswith("|"):
            table.append(line)
            continue
        out += split(table)
        table = []
        out.append(line)
    return out


def split(table):
    if not table or max(map(len, table)) <= WIDTH:
        return table
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in table]
    widths = [max(len(row[i]) for row in rows if i < len(row)) + 3 for i in range(len(rows[0]))]
    groups, width = [], WIDTH
    for i in range(1, len(rows[0])):
        if width + widths[i] > WIDTH:
            groups.append([0])
            width = 1 + widths[0]
        groups[-1].append(i)
        width += widths[i]
    out = []
    for group in groups:
        out += [
            *([""] if out else []),
            *("| " + " | ".join(row[i] for i in group) + " |" for row in rows),
        ]
    return out


def number(value):
    """Formats a number with three significant digits."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
