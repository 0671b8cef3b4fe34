# SPDX-License-Identifier: Apache-2.0
"""Reads pages: their blocks, their links, and what they name of ours.

A comment in front of each block says what it is, and so what test_pages.py does with it:
    run: NAME      sh: run as it stands; blocks of one NAME are one script
    config: FILE   yaml: judged by `forebay check -c`
    keys: FILE     yaml: judged by `forebay check --auth.keys_file`
    values: FILE   yaml: values of the chart, rendered
    manifest       yaml: objects, judged by their schema
    cluster        sh: helm renders, kubectl makes what it can make by itself, and the rest has to
    name what was rendered
    host           sh: for root on a host; what it names of ours has to be there
    output         console: the command's output is what follows it
    shown          console: commands with remarks; what they name is there
    said           text: what a test says of it
    python: NAME   python: a test runs it beside a server
    theirs         yaml: a file of another program, not judged
"""

import functools
import re
import shlex

import policy
from conftest import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "deploy").rglob("*.md")),
]
BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)
GUIDE = ROOT / "deploy/guide"
THEIRS = GUIDE / "migrate.md"  # the page whose tables begin with what is not ours


class Block:
    def __init__(self, mark, language, text):
        self.kind, _, self.name = (part.strip() for part in (mark or "").partition(":"))
        self.language, self.text = language, text

    def commands(self):
        """The lines of a script, without comments and what a here-document holds; continued ones
        are one."""
        text = re.sub(r"<<'?(\w+)'?(.*)\n(?:.*\n)*?\1\n", r"\2\n", self.text).replace("\\\n", " ")
        return [
            line
            for line in (re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines())
            if line
        ]


def blocks(page):
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


def prose(page):
    """The page without its blocks; of what others have, without their column."""
    lines = BLOCK.sub("", page.read_text()).splitlines()
    return "\n".join(
        "|".join(line.split("|")[2:]) if page == THEIRS and line.startswith("|") else line
        for line in lines
    )


def spans(page):
    """Returns the texts between backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


def anchors(page):
    """Returns the anchors that GitHub makes from the page's headings."""
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower()).replace(
            " ", "-"
        )
        for title in re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.M)
    }


def dead_links(page):
    out = []
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        if re.match(r"https?:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            out.append(target)
        elif anchor and anchor not in anchors(file):
            out.append(target)
    return out


def words_of(line):
    try:
        return shlex.split(line, comments=True)
    except ValueError:
        return line.split()


@functools.cache
def commands_known():
    found = set(
        re.findall(r"^COMMAND\((\w+),", (ROOT / "src/commands/commands.def").read_text(), re.M)
    )
    assert len(found) > 20
    return found


# Where a command begins: in front, behind what runs another one, in a variable that is run.
COMMAND = re.compile(
    r'(?:^|[;&|(]|="|--\s|\b(?:srun|until|exec|sudo)\s)\s*(?:[\w./]*/)?forebay\s+(?=[a-z])([^;&|)>"]*)'
)


def unknown_in_command(line):
    """Returns the subcommands and options of `forebay` that a line of a script names and that do
    not exist."""
    return [word for rest in COMMAND.findall(line) for word in unknown_words(words_of(rest))]


def unknown_words(words):
    known = policy.flags(words[0])
    if known is None:
        return [f"command {words[0]}"]
    out = []
    for word in words[1:]:
        if word in ("--", "|", "&", "&&"):
            break
        if re.match(r"--?[a-zA-Z]", word) and word.split("=")[0].rstrip(",;:") not in known:
            out.append(f"flag {word} of {words[0]}")
    return out
