# SPDX-License-Identifier: Apache-2.0
"""Tables that are shown as they grow and kept as Markdown; what is wanted and what failed stand first."""


class Report:
    def __init__(self, about):
        self.about, self.lines, self.wants, self.failures = about, [], [], []
        print(about, flush=True)

    def begin(self, name, text):
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
        lines = ["| figure | measured | wanted | reached |", "| --- | --- | --- | --- |"]
        lines += ["| " + " | ".join(row) + " |" for row in self.wants]
        if self.failures:
            lines += ["", "Failed: " + ", ".join(name for name, _ in self.failures) + "."]
        return lines

    def text(self):
        return "\n".join(["# Results", "", f"Written by bench/bench.py. {self.about}", "", *self.summary(), "",
                          *self.lines]) + "\n"

    def _add(self, *lines):
        self.lines += lines
        print(*lines, sep="\n", flush=True)


def number(value):
    """Three digits that matter."""
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
