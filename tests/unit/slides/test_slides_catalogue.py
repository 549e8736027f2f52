"""The catalogue of slides: what it means, and that its errors name lines and no patient."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedad_components.slides.catalogue import load_catalogue, pseudonym
from fedad_components.slides.reader import SlidesError

HEAD = "slide,slide_id,patient_id,label,time,event,mpp\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "slides.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_lines_become_entries_with_pseudonyms(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + 'sub/a slide.svs,S-1,Smith,tumour,12.5,1,\n"/x,y.svs",S-2,Smith,,12.5,1,0.25\n')
    first, second = load_catalogue(path)
    assert first.path == tmp_path / "sub" / "a slide.svs"
    assert second.path == Path("/x,y.svs")
    assert (first.line, first.label, first.time, first.event, first.mpp) == (2, "tumour", 12.5, True, None)
    assert (second.line, second.label, second.mpp) == (3, None, 0.25)
    assert first.patient == second.patient
    assert first.slide != second.slide
    assert [entry.slide for entry in load_catalogue(path)] == [first.slide, second.slide]
    assert (tmp_path / "slide_ids.key").stat().st_mode & 0o777 == 0o600
    key = (tmp_path / "slide_ids.key").read_bytes()
    assert first.slide == pseudonym(key, "slide", "S-1")
    assert load_catalogue(path, tmp_path / "other.key")[0].slide != first.slide
    assert "Smith" not in repr(first)
    assert "slide.svs" not in repr(first)


def test_a_byte_order_mark_and_few_columns_are_fine(tmp_path: Path) -> None:
    (entry,) = load_catalogue(write(tmp_path, "\ufeffslide_id,patient_id,slide\nS,P,a.svs\n"))
    assert (entry.label, entry.time, entry.event, entry.mpp) == (None, None, None, None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slide,patient_id\n", "no column 'slide_id'"),
        ("slide;slide_id;patient_id\n", "no column 'slide'"),
        ("slide,slide_id,patient_id,mmp\n", "column 4 is unknown"),
        (HEAD, "no slides"),
        (HEAD + "a.svs,,Smith,,,,\n", "line 2: slide_id is empty"),
        (HEAD + "a.svs,S,Smith,,,\n", "line 2: expected 7 cells"),
        (HEAD + "~nosuchuser/a.svs,S,Smith,,,,\n", "line 2: slide: expected the path of a file"),
        (
            HEAD + "a\0.svs,S,Smith,,,,\n",
            "line 2: slide: expected the path of a file|cannot be read",
        ),  # the csv of 3.10
        (HEAD + "a.svs,S,Smith,,5,,\n", "line 2: expected both time and event"),
        (HEAD + "a.svs,S,Smith,,5,yes,\n", "line 2: event: expected 1"),
        (HEAD + "a.svs,S,Smith,,-5,1,\n", "line 2: time: expected 0 or more"),
        (HEAD + 'a.svs,S,Smith,,"5,5",1,\n', "line 2: time: expected a number"),
        (HEAD + "a.svs,S,Smith,,nan,1,\n", "line 2: time: expected a number"),
        (HEAD + "a.svs,S,Smith,,,,250\n", "line 2: mpp = 250: expected µm/px"),
        (HEAD + "a.svs,S,Smith,,,,\nb.svs,S,Smith,,,,\n", "line 3: the slide_id of line 2"),
        (HEAD + "a.svs,S,Smith,,,,\n./a.svs,T,Smith,,,,\n", "line 3: the file of line 2"),
        (HEAD + "a.svs,S,Smith,,5,1,\nb.svs,T,Smith,,6,1,\n", "line 3: the patient of line 2"),
    ],
)
def test_errors_name_line_and_fix_and_no_patient(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SlidesError, match=said) as caught:
        load_catalogue(write(tmp_path, text))
    assert "Smith" not in str(caught.value)
    assert ".svs" not in str(caught.value)


def test_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SlidesError, match="No such file"):
        load_catalogue(tmp_path / "slides.csv")
