"""Every command explains itself, and says what went wrong in its own words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from fedad_components.cli import app
from fedad_components.cli.messages import complain


def leaves(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with the words that run it."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield words, command
    else:
        for name, child in inner.items():
            yield from leaves(child, f"{words} {name}")


COMMANDS = dict(leaves(typer.main.get_command(app), "fedad"))


@pytest.mark.parametrize("words", COMMANDS)
def test_help_has_a_sentence_an_example_and_explains_each_option(words: str) -> None:
    command = COMMANDS[words]
    assert command.help.split("\n")[0].endswith(".")
    assert words in command.epilog, "no example that can be copied"
    assert [parameter.name for parameter in command.params if not parameter.help] == []
    assert CliRunner().invoke(app, [*words.split()[1:], "--help"]).exit_code == 0


def test_messages_are_text_and_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    complain("kits/[red]a[/tmp]: no kit")
    assert capsys.readouterr().err == "error: kits/[red]a[/tmp]: no kit\n"


def test_export_replaces_a_job_and_nothing_else(tmp_path: Path) -> None:
    export = ["job", "export", "--out", str(tmp_path), "--name", "diary"]
    assert CliRunner().invoke(app, export).exit_code == 0
    assert CliRunner().invoke(app, export).exit_code == 1
    assert CliRunner().invoke(app, [*export, "--force"]).exit_code == 0
    (tmp_path / "diary" / "meta.json").rename(tmp_path / "diary" / "today.txt")
    refused = CliRunner().invoke(app, [*export, "--force"])
    assert refused.exit_code == 1
    assert "something else than a job" in refused.output
    assert (tmp_path / "diary" / "today.txt").exists()


@pytest.mark.parametrize(("out", "name"), [("file", "job"), (".", "..")])
def test_export_says_why_it_cannot_write(tmp_path: Path, out: str, name: str) -> None:
    (tmp_path / "file").touch()
    refused = CliRunner().invoke(app, ["job", "export", "--out", str(tmp_path / out), "--name", name, "--force"])
    assert refused.exit_code == 1
    assert "error: " in refused.output
