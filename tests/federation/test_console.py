"""The operator at FLARE's own admin console, driven as a person would: login, submit, watch, download."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest
from support import give_images, job_of, small_config

from fedad_components.demo.federation import Federation

pytestmark = pytest.mark.federation

PROMPT = "\n> "


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("console")
    with Federation(folder / "federation", ["alpha", "beta"]) as running:
        give_images(running, folder / "images")
        running.start()
        yield running
        running.stop()
        assert running.processes() == []


class Console:
    """``fl_admin.sh`` of a person's kit, logged in."""

    def __init__(self, federation: Federation, user: str) -> None:
        kit = federation.kit(user)
        python = Path(sys.executable).parent  # an operator has activated the environment
        environment = {**os.environ, "PATH": f"{python}{os.pathsep}{os.environ['PATH']}"}
        self.process = pexpect.spawn(
            "bash",
            [str(kit / "startup" / "fl_admin.sh")],
            cwd=str(kit),
            env=environment,
            encoding="utf-8",
            timeout=60,
            dimensions=(50, 250),
        )
        self.process.expect("User Name:")
        self.process.sendline(federation.people[user])
        self.process.expect_exact(PROMPT)

    def say(self, command: str) -> str:
        """Type a command; what the console answers."""
        self.process.sendline(command)
        self.process.expect(r"Done \[")
        answer = self.process.before or ""
        self.process.expect_exact(PROMPT)
        return answer

    def close(self) -> None:
        self.process.sendline("bye")
        self.process.close(force=True)


def test_submit_watch_and_download(federation: Federation, tmp_path: Path) -> None:
    job = job_of(small_config("console", 2), tmp_path)
    console = Console(federation, "lead")
    try:
        assert "alpha" in console.say("check_status server")
        match = re.search(r"Submitted job: ([0-9a-f-]{36})", console.say(f"submit_job {job}"))
        assert match
        job_id = match[1]
        assert federation.wait(job_id, timeout=240) == "FINISHED:COMPLETED"
        listed = console.say("list_jobs")
        assert job_id in listed
        assert "FINISHED:COMPLETED" in listed
        console.say(f"download_job {job_id}")
        downloaded = list(federation.kit("lead").rglob(f"{job_id}/**/fedad/extractor.safetensors"))
        assert len(downloaded) == 1
    finally:
        console.close()


def test_a_member_may_not_submit(federation: Federation, tmp_path: Path) -> None:
    job = job_of(small_config("member", 1), tmp_path)
    console = Console(federation, "member")
    try:
        answer = console.say(f"submit_job {job}")
        assert "not authorized" in answer.lower()
    finally:
        console.close()
