# SPDX-License-Identifier: Apache-2.0
"""Finds the tics of our English that a program can find, and lines that are too long.

`faults_of(path, root)` yields (line, fault) for one file. The lint `english` fails on them;
`figures` counts them. It reads comments and strings of C and of the tables, comments and docstrings
of Python, comments of other files, paragraphs of Markdown outside code, and the names of tests."""

import ast
import io
import re
import tokenize

import source

TOPS = (
    "src",
    "tests",
    "bench",
    "conf",
    "deploy",
    ".ci",
    "CMakeLists.txt",
    "README.md",
    "Dockerfile",
)
C_KINDS = {".c", ".h", ".def"}
HASH_KINDS = {
    ".sh",
    ".yaml",
    ".yml",
    ".cmake",
    ".txt",
    ".toml",
    ".cfg",
    ".conf",
    ".ini",
    ".service",
    ".socket",
    ".supp",
    ".tpl",
}
OTHER_KINDS = {".py", ".md", ".html", ".js", ".mjs", ".css", ".go", ".java", ".xml"}
# Made by a program or by other people: inputs of fuzzers, rendered manifests, results.
NOT_OURS = {"corpus", "golden", "results", "pictures", "__pycache__", "node_modules"}
GENERATED = {"conf/forebay.yaml"}
RENDERED = "deploy/kustomize/*/*/forebay.yaml"  # by tests/deploy/render from the Helm chart
# A directive of HAProxy and an expression of Helm are one line each.
UNBREAKABLE = ("deploy/helm/forebay/files/haproxy.cfg", "deploy/helm/forebay/templates/*")
COLUMNS, COLUMNS_MARKDOWN = 100, 120

# A noun clause at the beginning of a sentence hides who acts. A question may begin like this.
HEADLESS = re.compile(
    r"(Who|What|Which|That which|Those who|Of these|One of which|Of which)(?:ever)?\b", re.I
)
TICS = {
    r"anew": "anew: say again, or from the start",
    r"so many": "so many: name the number or the limit",
    r"goes by|go by": "goes by: uses, depends on, follows",
    r"(?:is|are|was|were|be|been|being) told": "is told: name who sends what to whom",
    r"(?:tells?|told) of": "tell of: reports, sends, announces",
    r"(?:lies|lie|lay) in": "lies in: is in, is at",
    r"(?:stands|stand|stood) in(?! for| front)": "stands in: is in",
    r"(?:is|are|was|were) known to": "is known to: knows",
    r"of before": "of before: previous, earlier",
    r"(?:gives?|gave|given|giving) up": "give up: cancels, stops, drops",
    r"(?:lets?|letting) go": "let go: releases, drops",
}
TIC = re.compile(r"\b(?:" + "|".join(f"({words})" for words in TICS) + r")\b", re.I)
REMEDIES = list(TICS.values())
SENTENCE = re.compile(r"[^.!?]*(?:[.!?](?![\s)\"'`]|$)[^.!?]*)*(?:[.!?]|$)", re.S)
STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')


def kind_of(path):
    """The suffix that says how to read a file; None for a file that is not ours to judge.

    "#" for a script or a Dockerfile without a suffix."""
    if NOT_OURS & set(path.parts):
        return None
    if path.suffix in C_KINDS | HASH_KINDS | OTHER_KINDS:
        return path.suffix
    if path.name in {"Dockerfile", "CMakeLists.txt"}:
        return "#"
    if path.suffix:
        return None
    with path.open("rb") as file:
        first = file.readline(80)
    return (".py" if b"python" in first else "#") if first.startswith(b"#!") else None


def files_of(root):
    """Paths below root of all text files that people write."""
    for top in TOPS:
        start = root / top
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            name = path.relative_to(root)
            is_made = str(name) in GENERATED or name.match(RENDERED)
            is_ours = not path.is_symlink() and not is_made
            if path.is_file() and is_ours and kind_of(path):
                yield name


def joined(lines):
    """Joins (line, column, text) that follow each other at one column: yields [(line, text)].

    Each such block is a paragraph of a comment."""
    block = None
    for line, column, text in lines:
        if (
            block
            and line == block[1] + 1
            and column == block[2]
            and text
            and not block[3][-1][1].startswith("SPDX-")
            and not text.startswith(("- ", "* ", "|"))
        ):
            block[1] = line
            block[3].append((line, text))
        else:
            if block:
                yield block[3]
            block = [line, line, column, [(line, text)]] if text else None
    if block:
        yield block[3]


def c_comments(text):
    lines = text.splitlines()
    for line, part in source.comments_of(text):
        column = lines[line - 1].find(part)
        yield line, column, re.sub(r"^(?://+|/\*+|\*+/?)\s?|\s*\*/$", "", part.strip()).strip()


def python_comments(text):
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.start[1], token.string.lstrip("#!").strip()


def docstrings(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            for offset, line in enumerate(first.value.value.splitlines()):
                yield first.lineno + offset, 0, line.strip()


def hash_comments(text):
    for number, line in enumerate(text.splitlines(), 1):
        found = re.search(r"(?:^|\s)#+ (.*)", line)
        if found:
            yield number, found.start(), found.group(1).strip()


def markdown(text):
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            yield from ((number, -1 - at, cell) for at, cell in enumerate(cells))
        elif (
            code
            or line.startswith(("    ", "```", "#", "<!--"))
            and not re.match(r"\s*(?:[-*]|\d+\.) ", line)
        ):
            yield number, 0, ""
        else:
            item = re.match(r"\s*(?:[-*]|\d+\.) (?:\*\*|`)*", line)
            if item:
                yield number, 0, ""
            yield number, 0, line[item.end() :] if item else line.strip()


def strings(text):
    """Strings of C that hold words: help texts and messages. Adjacent literals are one string."""
    code = (
        re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: source.blank(m.group(0)), text, flags=re.S)
        if "/*" in text or "//" in text
        else text
    )
    for found in re.finditer(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*', code):
        words = "".join(STRING.findall(found.group(0)))
        if " " in words:
            yield [(code.count("\n", 0, found.start()) + 1, words)]


def test_names(text):
    for found in re.finditer(
        r"^\s*(?:def test_(\w+)|(?:Parameterized)?Test\(\w+, (\w+))", text, re.M
    ):
        yield [
            (
                text.count("\n", 0, found.start(found.lastindex)) + 1,
                (found.group(1) or found.group(2)).replace("_", " "),
            )
        ]


def blocks_of(path, kind, text):
    """(whether its first word begins a sentence in any case, lines) for each block of English"""
    if kind in C_KINDS:
        yield from ((True, block) for block in joined(c_comments(text)))
        yield from ((False, block) for block in strings(text))
    elif kind == ".py":
        yield from ((True, block) for block in joined(python_comments(text)))
        yield from ((True, block) for block in joined(docstrings(text)))
    elif kind == ".md":
        yield from ((False, block) for block in joined(markdown(text)))
    elif kind in HASH_KINDS or kind == "#":
        yield from ((True, block) for block in joined(hash_comments(text)))
    if kind in {".c", ".py"} and "tests" in path.parts:
        yield from ((True, block) for block in test_names(text))


def tics_of(lines, any_case):
    """(line, fault) of the tics in one block."""
    text, starts = "", []
    for line, part in lines:
        starts.append((len(text), line))
        text += part + " "

    def line_at(offset):
        return max(pair for pair in starts if pair[0] <= offset)[1]

    plain = re.sub(r"`[^`]*`", lambda m: "x" * len(m.group(0)), text)
    for found in SENTENCE.finditer(plain):
        sentence = found.group(0)
        begin = re.match(r"[\s\"'(*_]*", sentence).end()
        head = HEADLESS.match(sentence, begin)
        first = found.start() == 0
        if (
            head
            and (head.group(1)[0].isupper() or first and any_case)
            and not sentence.rstrip().endswith("?")
        ):
            yield (
                line_at(found.start() + begin),
                f'begins with "{head.group(0)}": name the actor or the thing',
            )
    for found in TIC.finditer(plain):
        yield (
            line_at(found.start()),
            f'"{found.group(0)}": {REMEDIES[found.lastindex - 1].partition(": ")[2]}',
        )


def is_too_long(line, kind):
    if kind == ".md":
        if line.startswith("|"):
            return False
        words = re.sub(r"\[[^\]]*\]\([^)]*\)", lambda m: re.sub(r"\s", "_", m.group(0)), line)
        words = re.sub(r"^\s*(?:[-*]|\d+\.) ", "", words)
        return len(line) > COLUMNS_MARKDOWN and " " in words.strip()
    return len(line) > COLUMNS and " " in re.sub(r"^\s*(?://|#|\*)?\s*", "", line).strip()


def too_long_of(path, root):
    """(line, fault) of the lines above the column limit that could be broken."""
    kind = kind_of(root / path)
    if any(path.match(pattern) for pattern in UNBREAKABLE):
        return
    is_output = False
    for number, line in enumerate((root / path).read_text(errors="replace").splitlines(), 1):
        is_output ^= kind == ".md" and line.lstrip().startswith("```")
        if not is_output and is_too_long(line, kind):
            yield (
                number,
                f"{len(line)} columns, at most {COLUMNS_MARKDOWN if kind == '.md' else COLUMNS}",
            )


def wording_of(path, root):
    """(line, fault) of the tics in one file."""
    text = (root / path).read_text(errors="replace")
    for any_case, block in blocks_of(path, kind_of(root / path), text):
        yield from tics_of(block, any_case)


def faults_of(path, root):
    yield from sorted([*too_long_of(path, root), *wording_of(path, root)])
