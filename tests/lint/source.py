# SPDX-License-Identifier: Apache-2.0
"""Reads C for the lints: comments, code without comments and strings, function definitions."""

import pathlib
import re

TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
HEAD = re.compile(r"^([A-Za-z_][\w \t*\n]*?[\s*])(\w+)\(", re.M)


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def code_of(text):
    """The text with comments and strings blanked, so that lines and columns stay."""
    return TOKENS.sub(lambda m: blank(m.group(0)), text)


def comments_of(text):
    """(line, text) of every line of comment."""
    for found in TOKENS.finditer(text):
        if found.group(0).startswith("/"):
            line = text.count("\n", 0, found.start()) + 1
            for offset, part in enumerate(found.group(0).splitlines()):
                yield line + offset, part


def functions_of(code):
    """(line, name, is_static, end) of every function that this code_of() text defines.

    `end` is the offset after its head."""
    for found in HEAD.finditer(code):
        depth, at = 1, found.end()
        while depth and at < len(code):
            depth += {"(": 1, ")": -1}.get(code[at], 0)
            at += 1
        rest = re.match(r"\s*\{", code[at:])
        if rest and not re.match(r"(else|return|do)\b", found.group(1)):
            yield (
                code.count("\n", 0, found.start(2)) + 1,
                found.group(2),
                "static" in found.group(1).split(),
                at,
            )


def sources(root, *suffixes):
    return [
        path for path in sorted((pathlib.Path(root) / "src").rglob("*")) if path.suffix in suffixes
    ]


def rooms(root):
    """(room -> rooms that it USES, room -> inner room -> names that it USES).

    As CMakeLists.txt declares them, in its order."""
    outer, inner = {}, {}
    text = (pathlib.Path(root) / "CMakeLists.txt").read_text()
    for kind, names, rest in re.findall(
        r"^(room|inner)\(([a-z0-9_]+(?: [a-z0-9_]+)?)((?:\s+[A-Z][^)]*)?)\)", text, re.M
    ):
        found = re.search(r"USES((?:\s+[a-z0-9_]+)*)", rest)
        uses = set(found.group(1).split()) if found else set()
        if kind == "room":
            outer[names], inner[names] = uses, {}
        else:
            room, _, name = names.partition(" ")
            inner.setdefault(room, {})[name] = uses
    return outer, inner


def doors(root):
    """The headers by which other rooms use a room.

    ROOM/ROOM.h, and ROOM/NAME/NAME.h of inner rooms that CMakeLists.txt calls a DOOR."""
    text = (pathlib.Path(root) / "CMakeLists.txt").read_text()
    named = re.findall(r"^inner\(([a-z0-9_]+) ([a-z0-9_]+) DOOR\b", text, re.M)
    return {f"{room}/{room}.h" for room in rooms(root)[0]} | {
        f"{room}/{name}/{name}.h" for room, name in named
    }
