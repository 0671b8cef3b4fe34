# SPDX-License-Identifier: Apache-2.0
"""The client matrix uses the harness of the scenario tests; the matrix is printed at the end."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scenario"))


def pytest_terminal_summary(terminalreporter):
    matrix = sys.modules.get("test_matrix")
    for line in matrix.table() if matrix else ():
        terminalreporter.write_line(line)
