"""The documentation names what exists: files, functions, commands, settings, reasons, and pages."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from fedad_components.cli import app
from fedad_components.config import FedADConfig
from fedad_components.wire import Reason

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}


def defined(path: Path) -> set[str]:
    """Functions, classes and ``Class.method`` of a file."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return names


EQUATIONS = re.findall(
    r"^\| (.+?) \| .+ \| `(fedad_components/\S+)` \| (.+) \|$", TEXTS["docs/method.md"], re.MULTILINE
)


def test_every_equation_is_in_the_table() -> None:
    first_cells = [row[0] for row in EQUATIONS]
    assert {f"Eq. {number}" for number in range(1, 7)} <= set(first_cells)


@pytest.mark.parametrize(("symbol", "file", "functions"), EQUATIONS, ids=[row[0] for row in EQUATIONS])
def test_the_equations_are_where_the_table_says(symbol: str, file: str, functions: str) -> None:
    assert set(re.findall(r"`([\w.]+)`", functions)) <= defined(ROOT / file), symbol


def commands(command: Any, words: str) -> set[str]:
    """``words`` and every command below it."""
    inner = getattr(command, "commands", {})
    return {words}.union(*(commands(child, f"{words} {name}") for name, child in inner.items()))


@pytest.mark.parametrize("page", TEXTS)
def test_commands_exist(page: str) -> None:
    known = commands(typer.main.get_command(app), "fedad")
    groups = {words.split()[1] for words in known if words.count(" ") == 2}
    for first, second in re.findall(r"(?<![-/\w])fedad ([a-z]+)(?: ([a-z]+))?", "\n".join(code_of(TEXTS[page]))):
        words = f"fedad {first} {second}" if first in groups and second else f"fedad {first}"
        assert words in known, f"{page} tells to run `{words}`"


def code_of(text: str) -> list[str]:
    """Code blocks and code spans."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return blocks + re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("page", TEXTS)
def test_settings_exist(page: str) -> None:
    config = FedADConfig().to_json()
    sections = "|".join(key for key, value in config.items() if isinstance(value, dict))
    for section, key in re.findall(rf"`({sections})\.(?!py\b)(\w+)", TEXTS[page]):
        assert key in config[section], f"{page} names the setting {section}.{key}"


@pytest.mark.parametrize("page", TEXTS)
def test_files_exist(page: str) -> None:
    pattern = r"`((?:fedad_components|docs|tests|provisioning|custom|jobs|benchmarks)/[\w./-]*)`"
    for name in re.findall(pattern, TEXTS[page]):
        assert (ROOT / name).exists(), f"{page} names {name}"
    for name in re.findall(r"`((?:fedsd|flare|imaging|worker|demo|evaluation)/[\w./]*)`", TEXTS[page]):
        assert (ROOT / "fedad_components" / name).exists(), f"{page} names {name}"


def test_every_reason_of_a_site_has_its_fix() -> None:
    for page in ("docs/operating.md", "docs/security.md"):
        assert [reason.value for reason in Reason if reason.value not in TEXTS[page]] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [
        page for page in TEXTS if page.startswith("docs/") and f": {page.removeprefix('docs/')}" not in navigation
    ] == []
