"""The digest of a job: the same for the same content, another for every other; and what never gets one."""

from __future__ import annotations

import hashlib
import json
import stat
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from approval_jobs import FILES, META, Authority, archive, member, renewed, signed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedad_components.approval import content as module
from fedad_components.approval.content import JobContent, UnsafeJob


def job(files: Mapping[str, bytes | None] = FILES, meta: Any = META, app: str = "app") -> JobContent:
    return JobContent.from_archive(app, archive(files), meta)


def test_the_digest_is_what_its_docstring_says() -> None:
    """Against an independent canonical JSON, so that another program can compute it."""
    what = {
        "version": 1,
        "app": "app",
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()},
        "folders": ["config"],
        "meta": META,
    }
    assert job(meta=META | renewed(3)).digest == hashlib.sha256(rfc8785.dumps(what)).hexdigest()


def test_the_same_job_submitted_again_has_the_same_digest(tmp_path: Path) -> None:
    """Signed anew, with another id and time, its files in another order and with folders listed or not."""
    lead = Authority(tmp_path).person("lead")
    first, second = signed(lead, tmp_path / "1"), signed(lead, tmp_path / "2")
    assert first != second
    digests = {
        JobContent.from_archive("app", first, META | renewed(1)).digest,
        JobContent.from_archive("app", second, META | renewed(2)).digest,
        job({"config": None, **dict(reversed(FILES.items()))}).digest,
        job().digest,
    }
    assert len(digests) == 1


CHANGES = {
    "a byte": lambda files, meta: files.update({"config/config_fed_client.json": b'{"format_version": 3}'}),
    "a byte behind": lambda files, meta: files.update({"config/config_fed_server.json": b"{}\n"}),
    "an added file": lambda files, meta: files.update({"config/more.json": b""}),
    "an empty folder": lambda files, meta: files.update({"custom": None}),
    "a file less": lambda files, meta: files.pop("config/config_fed_server.json"),
    "a moved file": lambda files, meta: files.update(moved=files.pop("config/config_fed_server.json")),
    "other resources": lambda files, meta: meta.update(resource_spec={"alpha": {"num_of_gpus": 1}}),
    "another launcher": lambda files, meta: meta.update(launcher_spec={"alpha": {"docker": {"image": "x"}}}),
    "another scope": lambda files, meta: meta.update(scope="open"),
    "other sites": lambda files, meta: meta.update(deploy_map={"app": ["server", "alpha"]}),
    "another submitter": lambda files, meta: meta.update(submitter_name="eve@example.org"),
    "a key of one's own": lambda files, meta: meta.update(note=""),
    "a number's type": lambda files, meta: meta.update(min_clients="2"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_changes_the_digest(change: str) -> None:
    files: dict[str, bytes | None] = dict(FILES)
    meta = dict(META)
    CHANGES[change](files, meta)
    assert job(files, meta).digest != job().digest


def test_another_app_of_the_job_is_another_job() -> None:
    assert job(app="other").digest != job().digest


SLOW_MACHINES = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_names = st.text("ab._-", min_size=1, max_size=3).filter(lambda name: name not in (".", ".."))
_paths = st.lists(_names, min_size=1, max_size=3).map("/".join)
_trees = st.dictionaries(_paths, st.binary(max_size=8), max_size=5).filter(
    lambda tree: not any(other.startswith(f"{path}/") for path in tree for other in tree)
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
_metas = st.dictionaries(st.sampled_from(["a", "b", "name", "scope", "resource_spec"]), _values, max_size=3)


def _strict(value: Any) -> str:
    """JSON in which True is not 1."""
    return json.dumps(value, sort_keys=True)


@SLOW_MACHINES
@given(_trees, _metas, _trees, _metas)
def test_two_jobs_have_one_digest_exactly_if_they_are_equal(
    files: dict[str, bytes], meta: dict[str, Any], others: dict[str, bytes], other_meta: dict[str, Any]
) -> None:
    same = files == others and _strict(meta) == _strict(other_meta)
    assert (job(dict(files), meta).digest == job(dict(others), other_meta).digest) == same


@SLOW_MACHINES
@given(_trees.filter(bool), st.data())
def test_any_byte_of_any_file_counts(files: dict[str, bytes], data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(files)))
    changed = {**files, path: data.draw(st.binary(max_size=9).filter(lambda content: content != files[path]))}
    assert job(dict(files)).digest != job(dict(changed)).digest


@SLOW_MACHINES
@given(st.binary(max_size=200))
def test_bytes_that_are_no_archive_are_refused_and_nothing_else_happens(content: bytes) -> None:
    with pytest.raises(UnsafeJob):
        JobContent.from_archive("app", content, META)


UNSAFE = {
    "absolute": (archive({"/etc/x": b""}), "an absolute path"),
    "out of the app": (archive({"config/../../x": b""}), r"leads out of the app"),
    "out of the app, first": (archive({"../x": b""}), r"leads out of the app"),
    "windows": (archive({"..\\x": b""}), "others than letters"),
    "drive": (archive({"c:x": b""}), "others than letters"),
    "newline": (archive({"a\n[E:x": b""}), "others than letters"),
    "a letter that looks like another": (archive({"c\N{CYRILLIC SMALL LETTER O}nfig": b""}), "others than letters"),
    "dot": (archive({"./x": b""}), "others than letters"),
    "empty part": (archive({"a//x": b""}), "others than letters"),
    "long": (archive({"x" * 201: b""}), "more than 200 characters"),
    "link": (member("x", stat.S_IFLNK | 0o777, b"/etc/passwd"), "a link"),
    "device": (member("x", stat.S_IFCHR | 0o600), "neither a file nor a folder"),
    "pipe": (member("x", stat.S_IFIFO | 0o600), "neither a file nor a folder"),
    "file that says it is a folder": (member("x/", stat.S_IFREG | 0o600), "neither a file nor a folder"),
    "folder with content": (member("x/", stat.S_IFDIR | 0o700, b"hidden"), "more than 0 bytes"),
    "file and folder": (archive({"x": b"", "x/y": b""}), "a file and a folder of one name"),
    "case": (archive({"x": b"", "X": b""}), "differ in case alone"),
    "case of folders": (archive({"a/x": b"", "A/y": b""}), "differ in case alone"),
    "cut": (archive(FILES)[:-30], "cannot be read whole"),
}


@pytest.mark.parametrize("case", UNSAFE)
def test_unsafe_archives_are_refused_by_name(case: str) -> None:
    content, problem = UNSAFE[case]
    with pytest.raises(UnsafeJob, match=problem):
        JobContent.from_archive("app", content, META)


def test_a_name_twice_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings(), zipfile.ZipFile(tmp_path / "x.zip", "w") as opened:
        warnings.simplefilter("ignore")
        opened.writestr("x", b"good")
        opened.writestr("x", b"evil")
    with pytest.raises(UnsafeJob, match="there twice"):
        JobContent.from_archive("app", (tmp_path / "x.zip").read_bytes(), META)


def test_a_byte_that_does_not_fit_its_checksum_is_refused() -> None:
    content = archive({"x": b"the content"})
    with pytest.raises(UnsafeJob, match="cannot be read whole"):
        JobContent.from_archive("app", content.replace(b"the content", b"The content"), META)


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsafeJob, match=f"more than {module.LARGEST_FILE} bytes"):
        job({"x": b"0" * (module.LARGEST_FILE + 1)})
    with pytest.raises(UnsafeJob, match=f"more than {module.MOST_ENTRIES} files"):
        job({f"x{number}": b"" for number in range(module.MOST_ENTRIES + 1)})
    monkeypatch.setattr(module, "MOST_BYTES", 10)
    with pytest.raises(UnsafeJob, match="more than 10 bytes"):
        job({"x": b"0" * 6, "y": b"0" * 6})


@pytest.mark.parametrize(
    ("meta", "problem"),
    [
        ({**META, "cloned_from": "4f3c"}, r"cloned from '4f3c': a clone"),
        ({**META, "x": float("nan")}, "not JSON"),
        ({**META, "x": object()}, "not JSON"),
        ({**META, "x": "0" * module.MOST_META_BYTES}, "not one object of at most"),
        (["x"], "not one object"),
    ],
)
def test_meta_that_no_site_runs(meta: Any, problem: str) -> None:
    with pytest.raises(UnsafeJob, match=problem):
        job(meta=meta)


@pytest.mark.parametrize("value", [2**53 + 1, "\ud800"])
def test_a_value_without_a_canonical_form_has_no_digest(value: Any) -> None:
    with pytest.raises(UnsafeJob, match="no canonical form"):
        _ = job(meta={**META, "x": value}).digest


@pytest.mark.parametrize("app", ["", "..", "a/b", "meta.json", "x" * 300, "a b"])
def test_an_apps_name_is_a_folders(app: str) -> None:
    with pytest.raises(UnsafeJob, match="app's name"):
        job(app=app)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (".__nvfl_sig.json", b'{"x": "c2ln", "y": "c2ln"}'),
        (".__nvfl_sig.json", b'{"x": "c2ln", "x": "c2ln"}'),
        (".__nvfl_sig.json", b'{"x": {"code": 1}}'),
        (".__nvfl_sig.json", b'{"x": "some words"}'),
        (".__nvfl_sig.json", b"{}"),
        (".__nvfl_sig.json", b"["),
        (".__nvfl_submitter.crt", b"words\n-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"),
    ],
)
def test_signatures_carry_nothing_else_since_the_digest_leaves_them_out(name: str, content: bytes) -> None:
    job({"x": b"", ".__nvfl_sig.json": b'{"x": "c2ln"}'})
    with pytest.raises(UnsafeJob, match=r"not one signature for each|more than certificates"):
        job({"x": b"", name: content})


def test_a_copy_for_the_reviewer_is_private_and_the_same_job(tmp_path: Path) -> None:
    content = JobContent.from_archive("app", signed(Authority(tmp_path).person("lead"), tmp_path / "app"), META)
    copy = tmp_path / "copy"
    content.write(copy)
    assert JobContent.from_folder("app", copy) == content
    assert {stat.S_IMODE(path.stat().st_mode) for path in [copy, *copy.rglob("*")] if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in copy.rglob("*") if path.is_file()} == {0o600}
    (copy / "app" / "more").symlink_to("/etc/passwd")
    with pytest.raises(UnsafeJob, match="a link"):
        JobContent.from_folder("app", copy)
