"""A job's folder, read as what it is: a stranger's files. Nothing is executed, no link followed, nothing large read.

What FedAD exports is little, and exactly that is accepted: ``meta.json``, and for each app the two configurations, the
site's with one executor and nothing beside it. Everything else is a refusal.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedad_components.algorithms import parse_config
from fedad_components.config import INVALID, ConfigError, ExperimentConfig
from fedad_components.wire import shown

META, CLIENT_CONFIG, SERVER_CONFIG = "meta.json", "config_fed_client.json", "config_fed_server.json"
SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")
"""What FLARE writes into each folder of a job when it signs it."""
LARGEST_FILE = 1 << 20
_MOST_FILES = 20
_MOST_PROBLEMS, _LONGEST = 5, 300


@dataclass(frozen=True)
class Refusal:
    """Why the site would not run the job, by the name of what refuses it."""

    by: str
    why: str


@dataclass(frozen=True)
class Job:
    """``config`` is None where the job has no configuration, or several; ``deployed`` is app -> the sites it names."""

    refusals: tuple[Refusal, ...]
    config: ExperimentConfig | None
    deployed: Mapping[str, tuple[str, ...]]


def printable(text: object) -> str:
    """On one line, and without anything that a terminal would obey: every other character than ASCII's is escaped."""
    return "".join(c if c.isascii() and c.isprintable() else ascii(c)[1:-1] for c in str(text))


def read_job(job: str | Path, allow_list: Collection[str], *, executor: str, scope: str) -> Job:
    """Read a job's folder.

    Args:
        job: the folder with ``meta.json``.
        allow_list: the classes that a site builds for a job.
        executor: the class whose tasks let something out, FedAD's.
        scope: the privacy scope that a job may name, FedAD's.

    Raises:
        FileNotFoundError: if the folder is a link, or holds no job.
        OSError: if a folder in it cannot be listed.
    """
    job = Path(job)
    if job.is_symlink() or not os.path.lexists(job / META):
        raise FileNotFoundError(
            f"{printable(job)}: no job: expected a folder, no link, with meta.json and a folder for each app"
        )
    refusals: list[Refusal] = []
    files: list[Path] = []
    for place, problem in _walk(job):
        refusals += [problem] if problem else []
        files += [] if problem else [place]
        if len(refusals) == _MOST_FILES:
            break
    deployed: dict[str, tuple[str, ...]] = {}
    configs: list[ExperimentConfig] = []
    for place in files:
        if place.name not in (META, CLIENT_CONFIG):
            continue
        problems: list[Refusal] = []
        try:
            content = _read(job / place)
            if place.name == META:
                problems += _meta(content, scope, files)
                deployed = {} if problems else {app: tuple(sites) for app, sites in content["deploy_map"].items()}
            else:
                problems += _beside(content, allow_list)
                config, more = _executor(content, allow_list, executor)
                problems += more
                configs += [config] if config else []
        except Exception as error:  # whatever else the file may do to this code: it is no job of FedAD's
            problems.append(Refusal("job", f"not what FedAD exports: {shown(_words(error))}"))
        refusals += [Refusal(item.by, f"{shown(place)}: {item.why}") for item in problems]
    if any(config != configs[0] for config in configs):
        refusals.append(Refusal("job", "several configurations"))
        configs = []
    elif not configs and not refusals:
        refusals.append(Refusal("job", f"no configuration in */config/{CLIENT_CONFIG}"))
    return Job(tuple(refusals), configs[0] if configs else None, deployed)


def _words(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else f"{type(error).__name__}: {error}"


# -- files ------------------------------------------------------------------------------------------------------------


def _walk(job: Path) -> Iterator[tuple[Path, Refusal | None]]:
    """Everything in the job's folder, and why it does not belong there; folders that do not are not entered."""

    def give_up(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(job, onerror=give_up):  # enters no link
        for name in sorted([*folders, *files]):
            path = Path(folder) / name
            place, found = path.relative_to(job), path.lstat()
            problem = _problem(place, found)
            if problem and name in folders:
                folders.remove(name)
            if problem or not stat.S_ISDIR(found.st_mode):
                yield place, problem


def _problem(place: Path, found: os.stat_result) -> Refusal | None:
    if stat.S_ISLNK(found.st_mode):
        return Refusal("job", f"{shown(place)}: a link, which this page does not follow")
    if "custom" in place.parts:
        return Refusal("byoc", f"{shown(place)}: custom code, which this site's authorization forbids to every role")
    if stat.S_ISDIR(found.st_mode):
        expected = (len(place.parts) == 1 and place.name != META) or place.parts[1:] == ("config",)
    elif stat.S_ISREG(found.st_mode):
        expected = place.parts == (META,) or place.name in SIGNATURES
        expected |= place.parts[1:] in (("config", CLIENT_CONFIG), ("config", SERVER_CONFIG))
    else:
        return Refusal("job", f"{shown(place)}: neither a file nor a folder")
    if not expected:
        return Refusal("job", f"{shown(place)}: not part of a FedAD job; this page cannot say what it does")
    if stat.S_ISREG(found.st_mode) and found.st_size > LARGEST_FILE:
        return Refusal("job", f"{shown(place)}: {found.st_size} bytes, too large for a job's file: not read")
    return None


def _read(path: Path) -> Any:
    """A file's JSON, in which no key stands twice: FLARE and this page might each take another of the two."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise ValueError("too large")
    return json.loads(content.decode("utf-8"), object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return content


# -- their content ----------------------------------------------------------------------------------------------------


def _meta(content: Any, scope: str, files: Collection[Path]) -> Iterator[Refusal]:
    """Whom the job is for, and under which of a site's privacy scopes."""
    if not isinstance(content, dict):
        yield Refusal("job", f"expected an object, got {type(content).__name__}")
        return
    if content.get("scope") not in (None, "", scope):
        yield Refusal("privacy scope", f"scope {shown(content['scope'])}: expected none, or {scope!r}")
    deploy_map = content.get("deploy_map")
    if not isinstance(deploy_map, dict) or not deploy_map:
        yield Refusal("job", "deploy_map: expected an object, app -> list of sites")
        return
    for app, sites in deploy_map.items():
        if not isinstance(sites, list) or not sites or not all(isinstance(site, str) for site in sites):
            yield Refusal("job", f"deploy_map: app {shown(app)}: expected a list of sites' names")
            continue
        needed = SERVER_CONFIG if sites == ["server"] else CLIENT_CONFIG
        if Path(app, "config", needed) not in files:
            yield Refusal("job", f"deploy_map: app {shown(app)} has no config/{needed} in this job")


def _beside(content: Any, allow_list: Collection[str]) -> Iterator[Refusal]:
    """What a site's part of a job brings beside its executor: a FedAD job, nothing."""
    added = ("components", "task_data_filters", "task_result_filters")
    if unknown := sorted(content.keys() - {"format_version", "executors", *added}):
        yield Refusal("job", f"unexpected {shown(unknown[0])}")
    for part in added:
        found = content.get(part, [])
        components = found if part == "components" else [item for chain in found for item in chain["filters"]]
        for component in components:
            yield from _class(component, allow_list)
        if found != []:
            names = ", ".join(str(component.get("id") or _path(component)) for component in components)
            yield Refusal("job", f"{part}: a FedAD job brings none to a site, and this one {shown(names)}")


def _executor(
    content: Any, allow_list: Collection[str], executor: str
) -> tuple[ExperimentConfig | None, tuple[Refusal, ...]]:
    """The configuration, and what is wrong with the executor that has it."""
    entries = content.get("executors", [])
    if not isinstance(entries, list) or len(entries) != 1:
        return None, (Refusal("job", "executors: expected a list of exactly one, FedAD's"),)
    (entry,) = entries
    component = entry["executor"]
    refusals = list(_class(component, allow_list))
    if component.get("path") != executor:
        why = f"executor {shown(_path(component))}: not FedAD's, StrictEgress passes none of it"
        return None, (*refusals, Refusal("job", why))
    args = component["args"]
    beside = [*entry.keys() - {"tasks", "executor"}, *component.keys() - {"path", "args"}, *args.keys() - {"config"}]
    if beside:
        refusals.append(Refusal("job", f"executor: unexpected {shown(min(beside))}"))
    try:
        return parse_config(args["config"]), tuple(refusals)
    except ConfigError as error:
        problems = str(error).removeprefix(INVALID).splitlines()
        lines = [printable(line.strip())[:_LONGEST] for line in problems[:_MOST_PROBLEMS]]
        return None, (*refusals, Refusal("job", f"invalid configuration: {'; '.join(lines)}"))


def _path(component: Mapping[str, Any]) -> Any:
    return component.get("path") or component.get("class_path") or component.get("name")


def _class(component: Mapping[str, Any], allow_list: Collection[str]) -> Iterator[Refusal]:
    path = _path(component)
    if path not in allow_list:
        yield Refusal("class_allow_list", f"{shown(path)} is not in this site's allow list")
