# SPDX-License-Identifier: Apache-2.0
"""Tables that are shown as they grow and kept as Markdown."""


class Report:
    def __init__(self, about):
        self.lines = ["# Results", "", f"Written by bench/bench.py. {about}.", ""]
        print(about, flush=True)

    def begin(self, name, text):
        self._add(f"## {name}", "", text.strip(), "")

    def head(self, *columns):
        self._add("", "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns))

    def row(self, *cells):
        self._add("| " + " | ".join(c if isinstance(c, str) else number(c) for c in cells) + " |")

    def _add(self, *lines):
        self.lines += lines
        print(*lines, sep="\n", flush=True)

    def text(self):
        return "\n".join(self.lines) + "\n"


def number(value):
    """Three digits that matter."""
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
