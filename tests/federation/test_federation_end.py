"""How a federation ends, whatever interrupts it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.federation

DRIVER = """
import sys
from pathlib import Path
from fedad_components.demo.federation import Federation

class Interrupted(Federation):
    def __init__(self, log):
        self.log, self.stops = log, 0
    def stop(self):
        self.stops += 1
        if self.stops == 1:
            raise KeyboardInterrupt  # a second Ctrl-C, while the first one's processes are being ended
        self.log.write_text("stopped")

with Interrupted(Path(sys.argv[1])):
    raise KeyboardInterrupt
"""


def test_a_second_ctrl_c_does_not_leave_processes_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    subprocess.run([sys.executable, "-c", DRIVER, str(log)], check=False, capture_output=True)
    assert log.read_text() == "stopped"
