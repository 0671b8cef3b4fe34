# SPDX-License-Identifier: Apache-2.0
"""Tables that are shown as they grow and kept as Markdown; what is wanted and what failed stand first."""


class Report:
    """What one run prints, a section for each scenario, and what of it goes into a file of results."""

    def __init__(self, about):
        self.about, self.sections, self.failures = about, {}, []
        self.section = self.wants = None
        print(about, flush=True)

    def begin(self, name, text):
        self.section, self.wants = [], []
        self.sections[name] = (self.section, self.wants)
        self._add(f"## {name}", "", text.strip(), "")

    def head(self, *columns):
        self._add("", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns))

    def row(self, *cells):
        self._add("| " + " | ".join(c if isinstance(c, str) else number(c) for c in cells) + " |")

    def say(self, text):
        self._add("", text)

    def wanted(self, what, figure, most=None, least=None, text=None):
        """FIGURE is to be at most MOST or at least LEAST; TEXT is how it is shown."""
        reached = figure <= most if least is None else figure >= least
        limit = f"<= {number(most)}" if least is None else f">= {number(least)}"
        self.wants.append((what, text or number(figure), limit, "yes" if reached else "no"))

    def failed(self, name, why):
        self.failures.append((name, why))
        self._add("", f"**{name} failed**: {why}")

    def summary(self):
        lines = wanted_table([row for _, wants in self.sections.values() for row in wants])
        if self.failures:
            lines += ["", "Failed: " + ", ".join(name for name, _ in self.failures) + "."]
        return lines

    def write(self, path):
        """What the file has of other scenarios stays, in the order in which it came."""
        kept = sections_of(path.read_text()) if path.exists() else {}
        for name, (lines, wants) in self.sections.items():
            table = ["", *wanted_table(wants)] if wants else []
            kept[name] = "\n".join([lines[0], "", self.about, *lines[1:], *table]).strip()
        path.write_text("\n\n".join([HEAD, *kept.values()]) + "\n")

    def _add(self, *lines):
        self.section += lines
        print(*lines, sep="\n", flush=True)


HEAD = """# Results

Written by `bench/bench.py --results bench/RESULTS.md`; with names of scenarios it renews their sections."""


def sections_of(text):
    """{name: text} of a file of results."""
    pieces = ("\n" + text).split("\n## ")[1:]
    return {piece.partition("\n")[0]: "## " + piece.strip() for piece in pieces}


def wanted_table(rows):
    return ["| figure | measured | wanted | reached |", "| --- | --- | --- | --- |",
            *("| " + " | ".join(row) + " |" for row in rows)]


def number(value):
    """Three digits that matter."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
