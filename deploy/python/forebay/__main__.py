# SPDX-License-Identifier: Apache-2.0
"""`python -m forebay` becomes the program that pip installed with this package, for environments
whose bin folder is not on PATH."""

import os
import sys
from importlib.metadata import files
from pathlib import Path


def program():
    """`pip install --target` moves the program without correcting its record, so the second place
    is the bin folder next to the package."""
    recorded = [Path(file.locate()) for file in files("forebay") or [] if file.name == "forebay"]
    beside = Path(__file__).resolve().parents[1] / "bin/forebay"
    for path in [*recorded, beside]:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    sys.exit("python -m forebay: the program forebay is missing; install the wheel again")


os.execv(program(), ["forebay", *sys.argv[1:]])
