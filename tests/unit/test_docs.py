"""The documentation names what exists: files, functions, commands, settings, reasons, and pages."""

from __future__ import annotations

import ast
import math
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import typer

from fedad_components.algorithms import ALGORITHMS, wire_spec
from fedad_components.cli import app
from fedad_components.flare.site import SitePolicy
from fedad_components.imaging.catalogue import Catalogue
from fedad_components.mil.config import HistoFLConfig
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
    known: dict[str, set[str]] = {}
    for kind, _ in ALGORITHMS.values():
        for section, value in kind().to_json().items():
            if isinstance(value, dict):
                known.setdefault(section, set()).update(value)
    for section, key in re.findall(rf"`({'|'.join(known)})\.(?!(?:py|safetensors)\b)(\w+)", TEXTS[page]):
        assert key in known[section], f"{page} names the setting {section}.{key}"


@pytest.mark.parametrize("page", TEXTS)
def test_files_exist(page: str) -> None:
    pattern = r"`((?:fedad_components|docs|tests|provisioning|custom|jobs|benchmarks)/[\w./-]*)`"
    for name in re.findall(pattern, TEXTS[page]):
        assert (ROOT / name).exists(), f"{page} names {name}"
    for name in re.findall(r"`((?:fedsd|flare|imaging|worker|demo|evaluation)/[\w./]*)`", TEXTS[page]):
        assert (ROOT / "fedad_components" / name).exists(), f"{page} names {name}"


YAML = [
    (page, textwrap.dedent(block))
    for page, text in TEXTS.items()
    for block in re.findall(r"^ *```yaml\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
]


@pytest.mark.parametrize(("page", "block"), YAML, ids=[page for page, _ in YAML])
def test_catalogues_and_policies_are_such(page: str, block: str, tmp_path: Path) -> None:
    """As the site itself reads them: a rule in the wrong place would be refused there, not here."""
    path = tmp_path / "site.yaml"
    path.write_text(block, encoding="utf-8")
    if re.search("^version:", block, re.MULTILINE):
        assert Catalogue.load(path).data_sets
    else:
        assert SitePolicy.load(path).model_fields_set


def messages_of_the_package() -> str:
    """Every string of the package, a line each, with ``…`` where a value is filled in."""
    lines = []
    for path in (ROOT / "fedad_components").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                lines.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.append(node.value)
    return "\n".join(lines)


def test_messages_are_those_of_the_code() -> None:
    """Of each message of the operator's tables, its longest stretch without a placeholder."""
    text = TEXTS["docs/operating.md"].partition("## Messages and what to do")[2]
    ours = "".join(part for part in text.split("### ") if not part.startswith("FLARE's own words"))
    first_cells = re.findall(r"^\| (`.+?`.*?) \|", ours, re.MULTILINE)
    assert len(first_cells) > 20
    known = messages_of_the_package()
    for message in (span for cell in first_cells for span in re.findall(r"`([^`]+)`", cell)):
        stretch = max(re.split(r"…|\b[A-Z]\b", message), key=len).strip(" ()")
        assert stretch in known or stretch in {reason.value for reason in Reason}, f"no message has {stretch!r}"


def test_the_picture_of_the_layers_is_complete() -> None:
    picture = code_of(TEXTS["docs/architecture.md"])[0]
    for path in (ROOT / "fedad_components").iterdir():
        name = path.name if path.suffix == ".py" else f"{path.name}/"
        if not name.startswith("_"):
            assert f" {name} " in picture, f"docs/architecture.md does not show fedad_components/{name}"
    adapter = picture.partition(" flare/ ")[2].partition(" demo/ ")[0]
    modules = {path.stem for path in (ROOT / "fedad_components/flare").glob("*.py")} - {"__init__"}
    assert modules - set(re.findall(r"\w+", adapter)) == set(), "docs/architecture.md shows flare/ without these"


def test_every_reason_of_a_site_has_its_fix() -> None:
    for page in ("docs/operating.md", "docs/security.md"):
        assert [reason.value for reason in Reason if reason.value not in TEXTS[page]] == []


def test_the_guide_to_histofl_tells_the_models_sizes() -> None:
    """Numbers of parameters at 1,024 features: the table's two, and the four of the method."""
    targets: list[dict[str, Any]] = [{"classes": ["a", "b"]}, {"classes": ["a", "b", "c"]}]
    targets += [{"kind": "survival", "bins": bins} for bins in (4, 8)]
    shapes = [wire_spec(HistoFLConfig.parse({"target": target})).values() for target in targets]
    sizes = [f"{sum(map(math.prod, shape)):,}" for shape in shapes]
    told = re.findall(r"\b\d*,?7\d{2},\d{3}\b", TEXTS["docs/histofl.md"])
    assert told == [sizes[0], sizes[2], *sizes]


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [
        page for page in TEXTS if page.startswith("docs/") and f": {page.removeprefix('docs/')}" not in navigation
    ] == []
