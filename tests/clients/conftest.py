# SPDX-License-Identifier: Apache-2.0
"""The client matrix uses the harness of the scenario tests."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scenario"))
