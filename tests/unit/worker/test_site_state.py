"""The private state of a site: which round's state a round starts from, and what a damaged file does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedad_components.worker.site_state import SiteStateError, SiteStateStore


def state(value: float) -> dict[str, torch.Tensor]:
    return {"head.0.bias": torch.full((2,), value)}


def test_a_round_starts_from_the_last_one_before_it(tmp_path: Path) -> None:
    store = SiteStateStore(tmp_path / "experiment", "identity")
    assert store.load_before(0) is None
    store.save(0, state(0.0))
    store.save(4, state(4.0))  # the site was not drawn in between
    loaded = store.load_before(7)
    assert loaded is not None
    assert loaded["head.0.bias"].tolist() == [4.0, 4.0]


def test_a_repeated_round_starts_where_it_started_the_first_time(tmp_path: Path) -> None:
    store = SiteStateStore(tmp_path / "experiment", "identity")
    for number in range(4):
        store.save(number, state(float(number)))
    repeated = store.load_before(3)
    assert repeated is not None
    assert repeated["head.0.bias"].tolist() == [2.0, 2.0]
    store.save(3, state(33.0))
    after = store.load_before(4)
    assert after is not None
    assert after["head.0.bias"].tolist() == [33.0, 33.0]


def test_an_experiment_started_anew_does_not_see_the_old_future(tmp_path: Path) -> None:
    store = SiteStateStore(tmp_path / "experiment", "identity")
    for number in (8, 9):
        store.save(number, state(float(number)))
    assert store.load_before(0) is None
    store.save(0, state(0.5))
    restarted = store.load_before(20)
    assert restarted is not None
    assert restarted["head.0.bias"].tolist() == [0.5, 0.5]


def test_files_are_private_and_few(tmp_path: Path) -> None:
    store = SiteStateStore(tmp_path / "experiment", "identity")
    for number in range(5):
        store.save(number, state(1.0))
    files = sorted(path.name for path in store.folder.iterdir())
    assert files == ["round-000003.safetensors", "round-000004.safetensors"]
    assert {path.stat().st_mode & 0o777 for path in store.folder.iterdir()} == {0o600}
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_a_damaged_head_is_never_replaced_silently(tmp_path: Path) -> None:
    store = SiteStateStore(tmp_path / "experiment", "identity")
    store.save(0, state(0.0))
    path = store.folder / "round-000000.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(SiteStateError, match=r"round-000000\.safetensors.*damaged.*backup"):
        store.load_before(1)


def test_a_head_of_another_configuration_is_refused(tmp_path: Path) -> None:
    SiteStateStore(tmp_path / "experiment", "identity").save(0, state(0.0))
    with pytest.raises(SiteStateError, match=r"another configuration.*federation\.experiment"):
        SiteStateStore(tmp_path / "experiment", "another").load_before(1)
