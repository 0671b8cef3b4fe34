#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of README.md and deploy/guide from the figures in bench/results.

    bench/lib/charts.py           writes deploy/guide/pictures/*.svg
    bench/lib/charts.py --check   writes nothing; exits with 1 if a picture differs from its figures

`bench/bench.py --charts` does the first, the lint `charts` the second. Only the standard library is
needed. Each picture has a light and a dark palette, which the viewer's prefers-color-scheme
selects.
"""

import json
import sys
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 860
FONT = "system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif"
# class: (light, dark)
PALETTE = {
    "back": ("#ffffff", "#0d1117"),
    "ink": ("#1f2328", "#e6edf3"),
    "soft": ("#59636e", "#9198a1"),
    "grid": ("#d8dee4", "#2f353d"),
    "forebay": ("#0b69c7", "#58a6ff"),
    "nginx": ("#57a05a", "#56b25b"),
    "direct": ("#9aa4af", "#768390"),
    "local": ("#c98a1b", "#d29922"),
    "panel": ("#f3f6fa", "#161b22"),
    "accent": ("#dbeafe", "#12294a"),
}
STROKED = ("grid", "forebay")


def style():
    def rules(column):
        fills = "".join(f".{name}{{fill:{both[column]}}}" for name, both in PALETTE.items())
        return fills + "".join(
            f".line-{name}{{stroke:{PALETTE[name][column]};fill:none}}"
            for name in (*STROKED, "soft")
        )

    return (
        f"<style>text{{font-family:{FONT};font-size:14px}}.title{{font-size:17px;font-weight:600}}.small{{font-size:12px}}"
        f".strong{{font-weight:600}}{rules(0)}@media(prefers-color-scheme:dark){{{rules(1)}}}</style>"
    )


class Picture:
    def __init__(self, height, title, told):
        self.height, self.parts = height, []
        self.title, self.told = title, told

    def add(self, text):
        self.parts.append(text)

    def text(self, x, y, words, kind="ink", anchor="start"):
        self.add(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" '
            f'text-anchor="{anchor}">{escape(words)}</text>'
        )

    def box(self, x, y, width, height, kind, radius=3):
        self.add(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" '
            f'height="{height:g}" rx="{radius}"/>'
        )

    def line(self, x1, y1, x2, y2, kind="grid", width=1, more=""):
        self.add(
            f'<line class="line-{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" '
            f'stroke-width="{width}"{more}/>'
        )

    def arrow(self, x1, y1, x2, y2, kind="soft"):
        self.line(x1, y1, x2, y2, kind, 2, ' marker-end="url(#head)"')

    def legend(self, x, y, names):
        for kind, name in names:
            self.box(x, y - 10, 12, 12, kind, 2)
            self.text(x + 18, y, name, "soft small")
            x += 40 + 6.2 * len(name)

    def svg(self):
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" height="{self.height}" role="img" '
            f'aria-labelledby="t d">\n<title id="t">{escape(self.title)}</title>\n<desc '
            f'id="d">{escape(self.told)}</desc>\n{style()}\n'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto">'
            '<path class="soft" d="M0 0L8 4L0 8z"/></marker></defs>\n'
        )
        return (
            head
            + "\n".join(
                [f'<rect class="back" width="{WIDTH}" height="{self.height}"/>', *self.parts]
            )
            + "\n</svg>\n"
        )


def axis(picture, left, right, top, bottom, most, step, unit):
    """Vertical grid lines with their values below."""
    value = 0
    while value <= most:
        x = left + (right - left) * value / most
        picture.line(x, top, x, bottom)
        picture.text(x, bottom + 17, f"{value:,}{unit}", "soft small", "middle")
        value += step


def accelerator(figures):
    part = figures["accelerator"]
    rows = part["rows"]
    kinds = ("direct", "forebay", "forebay", "local")
    told = "; ".join(
        f"{row['name']}: {row['busy']} % busy, {row['images']:,} images/s" for row in rows
    )
    picture = Picture(328, "How busy the accelerator is", told)
    picture.text(24, 34, "How busy one H100 is while it trains ResNet-50", "ink title")
    picture.text(
        24,
        55,
        "12,288 objects of 147 KiB, shuffled; PyTorch with 12 loaders; the store answers "
        "after 30 ms",
        "soft small",
    )
    left, right, top, bottom = 176, 640, 76, 252
    axis(picture, left, right, top, bottom, 100, 25, " %")
    for n, (row, kind) in enumerate(zip(rows, kinds)):
        y = top + 8 + 42 * n
        picture.text(left - 12, y + 20, row["name"], "ink", "end")
        picture.box(left, y, (right - left) * row["busy"] / 100, 28, kind)
        picture.text(
            left + (right - left) * row["busy"] / 100 + 8,
            y + 19,
            f"{row['busy']:.1f} %",
            "ink strong",
        )
        picture.text(WIDTH - 24, y + 19, f"{row['images']:,} images/s", "soft", "end")
    picture.text(
        (left + right) / 2,
        290,
        "share of the time in which the GPU computes",
        "soft small",
        "middle",
    )
    picture.text(
        24,
        316,
        f"Forebay {figures['forebay'].split()[0]}, {figures['date']}; one H100, 16 cores. "
        f"Figures: bench/results/h100.json",
        "soft small",
    )
    return picture


def beside_nginx(figures):
    hits, cold = figures["hits"]["rows"], figures["cold"]["rows"]
    told = "Warm hits, GB/s: " + "; ".join(
        f"{r['name']}: Forebay {r['forebay']}, nginx {r['nginx']}" for r in hits
    )
    told += ". Cold ranges of 8 MiB, MB/s: " + "; ".join(
        f"{r['connections']} connections: direct {r['direct']}, nginx {r['nginx']}, Forebay "
        f"{r['forebay']}"
        for r in cold
    )
    picture = Picture(508, "Hits and cold reads beside nginx and direct access", told)
    picture.text(24, 34, "Warm hits: GB/s with 4 workers", "ink title")
    picture.legend(600, 34, [("forebay", "Forebay"), ("nginx", "nginx, slice cache")])
    left, right, top, bottom = 140, 800, 52, 236
    most = 45
    axis(picture, left, right, top, bottom, most, 15, "")
    for n, row in enumerate(hits):
        y = top + 8 + 45 * n
        picture.text(left - 12, y + 21, row["name"], "ink", "end")
        for m, kind in enumerate(("forebay", "nginx")):
            long = (right - left) * row[kind] / most
            picture.box(left, y + 17 * m, long, 15, kind, 2)
            picture.text(left + long + 7, y + 12 + 17 * m, f"{row[kind]:.1f}", "ink small")
    picture.text(24, 296, "Cold reads: ranges of 8 MiB in order, MB/s", "ink title")
    picture.text(
        24,
        316,
        "The store answers after 15 ms and gives each connection 90 MB/s. Each panel has a "
        "scale of its own.",
        "soft small",
    )
    picture.legend(
        526, 296, [("direct", "direct"), ("nginx", "nginx, slice cache"), ("forebay", "Forebay")]
    )
    for n, row in enumerate(cold):
        x, width = 24 + 276 * n, 260
        picture.box(x, 330, width, 142, "panel", 6)
        picture.text(
            x + 14,
            352,
            f"{row['connections']} connection{'s' if row['connections'] > 1 else ''}",
            "ink strong",
        )
        most = max(row[kind] for kind in ("direct", "nginx", "forebay"))
        for m, kind in enumerate(("direct", "nginx", "forebay")):
            y, long = 364 + 34 * m, 180 * row[kind] / most
            picture.box(x + 14, y, long, 24, kind, 2)
            picture.text(x + 14 + long + 7, y + 17, f"{row[kind]:,}", "ink")
    picture.text(
        24,
        496,
        f"Forebay {figures['forebay'].split()[0]}, {figures['date']}; 16 cores (Intel Xeon, "
        f"virtual). Figures: bench/results/h100.json",
        "soft small",
    )
    return picture


def architecture(_):
    picture = Picture(
        412,
        "How Forebay is built",
        "Clients speak S3 to Forebay on localhost. A hit leaves the cache on the NVMe disk "
        "by a zero-copy send. A miss is fetched from the "
        "origin once for all readers, is streamed to them and stored. Writes pass through "
        "and invalidate. The admin port serves metrics.",
    )
    picture.text(24, 34, "One process between your programs and the object store", "ink title")
    picture.box(24, 62, 166, 220, "panel", 8)
    picture.text(107, 90, "your programs", "ink strong", "middle")
    for n, words in enumerate(
        (
            "PyTorch, datasets,",
            "any S3 SDK or CLI,",
            "a FUSE mount:",
            "unchanged, with",
            "another endpoint",
        )
    ):
        picture.text(107, 126 + 26 * n, words, "soft", "middle")
    picture.box(272, 62, 340, 334, "accent", 8)
    picture.text(442, 90, "forebay", "ink strong", "middle")
    rows = (
        ("allowed?", "signature and allow list, hit or miss"),
        ("cached?", "index, rule and freshness"),
        ("hit", "verified blocks, sent without a copy"),
        ("miss", "fetched once for all readers, stored"),
        ("write", "invalidates, and passes through"),
    )
    for n, (name, words) in enumerate(rows):
        y = 106 + 38 * n
        picture.box(286, y, 312, 32, "back", 5)
        picture.text(298, y + 21, name, "forebay strong")
        picture.text(376, y + 21, words, "ink small")
    picture.box(286, 310, 312, 70, "back", 5)
    picture.text(298, 333, "NVMe cache", "forebay strong")
    picture.text(298, 352, "segments with checksums; an index that", "soft small")
    picture.text(298, 369, "can be rebuilt; a policy for what stays", "soft small")
    picture.box(700, 62, 136, 220, "panel", 8)
    picture.text(768, 90, "origin", "ink strong", "middle")
    for n, words in enumerate(("S3, or anything", "that speaks it,", "or a directory")):
        picture.text(768, 140 + 26 * n, words, "soft", "middle")
    picture.arrow(190, 140, 270, 140)
    picture.text(230, 130, "S3 request", "soft small", "middle")
    picture.arrow(272, 196, 192, 196)
    picture.text(231, 216, "bytes as", "soft small", "middle")
    picture.text(231, 232, "they arrive", "soft small", "middle")
    picture.arrow(612, 140, 698, 140)
    picture.text(655, 130, "misses", "soft small", "middle")
    picture.arrow(700, 196, 614, 196)
    picture.text(656, 216, "each byte", "soft small", "middle")
    picture.text(656, 232, "once", "soft small", "middle")
    picture.box(24, 310, 166, 70, "panel", 8)
    picture.text(107, 340, "you, Prometheus", "ink strong", "middle")
    picture.text(107, 362, "status, metrics, warm", "soft small", "middle")
    picture.arrow(190, 345, 270, 345)
    picture.text(230, 335, "admin port", "soft small", "middle")
    return picture


PICTURES = {
    "accelerator.svg": accelerator,
    "beside-nginx.svg": beside_nginx,
    "architecture.svg": architecture,
}


def draw(root):
    """name -> SVG."""
    figures = json.loads((root / "bench/results/h100.json").read_text())
    return {name: make(figures).svg() for name, make in PICTURES.items()}


def write(root=ROOT):
    folder = root / "deploy/guide/pictures"
    folder.mkdir(parents=True, exist_ok=True)
    for name, svg in draw(root).items():
        (folder / name).write_text(svg)


def differing(root=ROOT):
    """Returns pictures that differ from their figures, and files that no figures make."""
    folder, drawn = root / "deploy/guide/pictures", draw(root)
    there = {path.name: path.read_text() for path in folder.glob("*.svg")}
    return sorted(
        name for name in drawn.keys() | there.keys() if drawn.get(name) != there.get(name)
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        bad = differing()
        print(
            "".join(
                f"deploy/guide/pictures/{name} is out of date: bench/bench.py --charts\n"
                for name in bad
            ),
            end="",
        )
        sys.exit(1 if bad else 0)
    write()
