"""Read a download's tables, lists and folders: a row of texts for each image, with only the columns that are needed."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from fedad_components.datasets.patches import read_labels
from fedad_components.datasets.spec import PATH, ROW, SPLIT, DataSetSpec, PrepareError

Row = dict[str, str]


def find_tables(spec: DataSetSpec, source: Path, partial: bool = False) -> dict[str, Path]:
    """Split → the table's file. ``partial`` accepts that some, but not all, are missing.

    Raises:
        PrepareError: naming the missing files and the folder where they were expected.
    """
    found = {
        split: next((source / name for name in names if (source / name).is_file()), None)
        for split, names in spec.tables.items()
    }
    tables = {split: path for split, path in found.items() if path is not None}
    missing = [" or ".join(spec.tables[split]) for split in found if split not in tables]
    if missing and not (partial and tables):
        raise PrepareError(
            f"{source}: {'; '.join(missing)} not found: expected the folder of {spec.title} as downloaded and unpacked"
        )
    return tables


def read_rows(spec: DataSetSpec, source: Path, partial: bool = False) -> Iterator[Row]:
    """Yield a row for each image that the tables, or else the folders, tell of.

    Raises:
        PrepareError: if a table, a list or a column is missing or unreadable, or a text has not the published form.
    """
    lists = _read_lists(spec, source)
    tables = find_tables(spec, source, partial)
    unlisted = malformed = 0
    for row in _table_rows(spec, source, tables) if spec.tables else _tree_rows(spec, source):
        if spec.parse:
            column, pattern = spec.parse
            if not (match := re.fullmatch(pattern, row[column])):
                malformed += 1
                continue
            row |= match.groupdict()
        if lists:
            split = lists.get(spec.path.format_map(row))
            if split is None:
                unlisted += 1
                continue
            row[SPLIT] = split
        yield row
    if malformed and spec.parse:
        raise PrepareError(f"{source}: {malformed:,} values of {spec.parse[0]!r} are not of the form {spec.parse[1]}")
    if unlisted:
        raise PrepareError(f"{source}: {unlisted:,} images are in none of {', '.join(spec.lists.values())}")


def _tree_rows(spec: DataSetSpec, source: Path) -> Iterator[Row]:
    found = (path for path in source.glob(spec.tree) if not path.name.startswith("."))
    paths = sorted(path.relative_to(source).as_posix() for path in found)
    if not paths:
        raise PrepareError(f"{source}: no file matches {spec.tree}: expected the folder of {spec.title} as unpacked")
    yield from ({PATH: path} for path in paths)


def _table_rows(spec: DataSetSpec, source: Path, tables: dict[str, Path]) -> Iterator[Row]:
    for split, table in tables.items():
        rows = _read_table(table, spec.columns)
        if spec.patches is None:
            yield from (row | {SPLIT: split} for row in rows)
            continue
        of_split, labels = list(rows), read_labels(spec.patches, source, split)
        if len(of_split) != len(labels):
            raise PrepareError(
                f"{table}: expected a line for each of the {len(labels):,} patches, found {len(of_split):,}"
            )
        for number, (row, label) in enumerate(zip(of_split, labels, strict=True)):
            yield row | {SPLIT: split, ROW: f"{number:06d}", "y": label}


def _read_table(path: Path, columns: tuple[str, ...]) -> Iterator[Row]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            delimiter = "\t" if "\t" in stream.readline() else ","
            stream.seek(0)
            reader = csv.DictReader(stream, delimiter=delimiter)
            if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
                raise PrepareError(
                    f"{path}: expected the columns {', '.join(columns)}; not found: {', '.join(missing)}: is it the "
                    f"file that the publishers hand out?"
                )
            for row in reader:
                yield {column: (row[column] or "").strip() for column in columns}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        problem = getattr(error, "strerror", None) or type(error).__name__
        raise PrepareError(f"{path}: cannot be read ({problem}): expected a table in UTF-8") from None


def _read_lists(spec: DataSetSpec, source: Path) -> dict[str, str]:
    """Image's name → its split."""
    splits: dict[str, str] = {}
    for split, name in spec.lists.items():
        try:
            names = (source / name).read_text(encoding="utf-8").split()
        except (OSError, UnicodeDecodeError) as error:
            problem = getattr(error, "strerror", None) or type(error).__name__
            raise PrepareError(f"{source / name}: cannot be read ({problem}): expected a list of images") from None
        if twice := sum(name in splits for name in names):
            raise PrepareError(f"{source / name}: {twice:,} of its images are also in another list or listed twice")
        splits |= dict.fromkeys(names, split)
    return splits
