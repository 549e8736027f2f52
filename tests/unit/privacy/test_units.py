from __future__ import annotations

import hashlib
import hmac
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedad_components.privacy.units import KEY_BYTES, UnitsError, assign_units, key_fingerprint, unit_key

KEY = bytes(range(KEY_BYTES))
Records = list[tuple[str | None, str]]
records = st.lists(
    st.tuples(st.one_of(st.none(), st.sampled_from("abcdefgh")), st.text(min_size=1, max_size=4)), max_size=30
)


def assign(found: Records, unit: str = "bundle", units: int = 7, key: bytes = KEY) -> dict[int, np.ndarray]:
    return assign_units([patient for patient, _ in found], [file for _, file in found], unit, units, key)  # type: ignore[arg-type]


def unit_of_each(found: Records, **arguments: object) -> list[int]:
    numbers = {index: number for number, indices in assign(found, **arguments).items() for index in indices}  # type: ignore[arg-type]
    return [numbers[index] for index in range(len(found))]


@settings(max_examples=50, deadline=None)
@given(records=records)
def test_units_are_a_partition(records: Records) -> None:
    units = assign(records)
    assert sorted(index for indices in units.values() for index in indices) == list(range(len(records)))
    assert all(0 <= number < 7 and len(indices) for number, indices in units.items())


@settings(max_examples=50, deadline=None)
@given(records=records, data=st.data())
def test_a_patient_who_leaves_moves_no_other_record(records: Records, data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from([None, *"abcdefgh"]))
    before = unit_of_each(records)
    staying = [index for index, (patient, _) in enumerate(records) if patient != gone]
    assert unit_of_each([records[index] for index in staying]) == [before[index] for index in staying]


@settings(max_examples=50, deadline=None)
@given(records=records.filter(lambda found: all(patient for patient, _ in found)))
def test_a_patients_records_stay_together(records: Records) -> None:
    for unit in ("bundle", "patient"):
        numbers = unit_of_each(records, unit=unit)
        by_patient = dict(zip((patient for patient, _ in records), numbers, strict=True))
        assert numbers == [by_patient[patient] for patient, _ in records]
    assert len(assign(records, "patient")) == len({patient for patient, _ in records})


def test_bundles_are_the_keyed_hash() -> None:
    digest = hmac.new(KEY, b"patient\x00Jane", hashlib.sha256).digest()
    assert list(assign([("Jane", "1.png")], units=1000)) == [int.from_bytes(digest, "big") % 1000]


def test_another_key_gives_other_bundles() -> None:
    found: Records = [(str(number), "f") for number in range(50)]
    assert unit_of_each(found) != unit_of_each(found, key=bytes(KEY_BYTES))


def test_bundles_fill_evenly() -> None:
    units = assign([(None, f"{number}.png") for number in range(4000)], units=10)
    assert all(300 < len(indices) < 500 for indices in units.values())


def test_a_file_is_not_a_patient_of_that_name() -> None:
    assert len(assign([("x", "1"), (None, "x")], units=2**40)) == 2


def test_no_patient_no_patient_units() -> None:
    with pytest.raises(UnitsError, match="2 of 3 images have no known patient") as error:
        assign([("Jane", "a"), (None, "secret"), (None, "b")], "patient")
    assert "secret" not in str(error.value)
    with pytest.raises(UnitsError, match="at least 1"):
        assign([("Jane", "a")], units=0)


def test_the_key_is_made_once_and_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "unit.key"
    key = unit_key(path)
    assert len(key) == KEY_BYTES
    assert unit_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["unit.key"]
    assert unit_key(tmp_path / "other.key") != key


def test_processes_that_start_together_agree_on_one_key(tmp_path: Path) -> None:
    keys: list[bytes] = []
    threads = [threading.Thread(target=lambda: keys.append(unit_key(tmp_path / "key"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(keys)) == 1
    assert len(keys) == 8


def test_an_unusable_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    unit_key(path)
    path.write_bytes(b"short")
    with pytest.raises(UnitsError, match="expected 32 bytes, found 5"):
        unit_key(path)
    os.chmod(path, 0o644)
    with pytest.raises(UnitsError, match="chmod 600"):
        unit_key(path)


def test_what_is_no_file_is_no_key(tmp_path: Path) -> None:
    with pytest.raises(UnitsError, match="a folder where a file is expected: move it away"):
        unit_key(tmp_path)
    link = tmp_path / "key"
    link.symlink_to(tmp_path / "absent")
    with pytest.raises(UnitsError, match="a link to a file that is missing"):
        unit_key(link)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnitsError, match=r"unit key: .*Not a directory"):
        unit_key(tmp_path / "file" / "key")


def test_the_fingerprint_tells_keys_apart_without_being_one() -> None:
    assert key_fingerprint(KEY) == key_fingerprint(bytes(KEY)) != key_fingerprint(bytes(KEY_BYTES))
    assert key_fingerprint(KEY) != hashlib.sha256(KEY).hexdigest()
    assert KEY.hex() not in key_fingerprint(KEY)
