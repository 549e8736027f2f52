"""``python -m fedad_components.imaging.build`` builds one cache; ``ingest.py`` starts it.

Reads a job as one JSON line from standard input, and ends when that is closed; writes its progress as JSON lines. A
process of its own, so that MONAI is imported once for all decoders and never in the caller, and a caller may be any
process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from fedad_components.files import write_atomic
from fedad_components.imaging.account import FileRecord, Reason
from fedad_components.imaging.cache import CacheWriter, Index
from fedad_components.imaging.catalogue import CatalogueError, DataSet
from fedad_components.imaging.decoding import Decoder
from fedad_components.imaging.readers import own_reader

AHEAD = 8
"""Files decoded ahead of the next one in order, for each decoder: bounds the memory while one file takes long."""

Outcome = tuple[FileRecord, "list[np.ndarray] | np.ndarray"]


class Abandoned(Exception):
    """The caller has gone."""


def build(job: dict[str, Any], report: TextIO, caller: int) -> None:
    """Decode what the job lists and write the cache; ``report`` gets one line for each file.

    ``caller`` is a file descriptor that becomes readable when the caller has gone.

    Raises:
        CatalogueError: if a site's own reader cannot be used.
        Abandoned: if the caller has gone.
    """
    data_set = DataSet.model_validate(job["data_set"])
    if ":" in data_set.reader:
        own_reader(data_set.reader)
    folder, root = Path(job["folder"]), Path(job["root"])
    records = [FileRecord.from_json(entry) for entry in job["records"]]
    old = _Reuse(None if job["again"] else Index.read(folder), folder, job["definition"])
    writer = CacheWriter(
        folder, job["definition"], job["side"], records, job["ignored"], keep_duplicates=data_set.keeps_duplicates
    )
    todo = [i for i in range(len(writer.done), len(records)) if records[i].reason is None and records[i] not in old]
    decoders: list[Decoder] = []
    busy: dict[Any, tuple[int, Decoder]] = {}
    ready: dict[int, Outcome] = {}
    todo.reverse()
    try:
        while len(writer.done) < len(records):
            position = len(writer.done)
            while todo and len(busy) < job["workers"] and todo[-1] < position + AHEAD * job["workers"]:
                decoder = _idle(decoders, busy) or _new(decoders, data_set, job["side"], root)
                index = todo.pop()
                decoder.start(records[index])
                busy[decoder.connection] = index, decoder
            outcome = ready.pop(position, None) or old.outcome(records[position])
            if outcome is not None:
                writer.add(*outcome)
                print(json.dumps({"done": len(writer.done), "total": len(records)}), file=report, flush=True)
                continue
            for connection in wait([*busy, caller]):
                if connection == caller:
                    raise Abandoned
                index, decoder = busy.pop(connection)
                ready[index] = decoder.result()
                if ready[index][0].reason in (Reason.TIMEOUT, Reason.DECODER_CRASHED):
                    decoder.stop()
                    decoders.remove(decoder)
    except BaseException:
        writer.flush()
        raise
    finally:
        for decoder in decoders:
            decoder.stop()
    writer.finish()


def _idle(decoders: list[Decoder], busy: dict[Any, tuple[int, Decoder]]) -> Decoder | None:
    return next((decoder for decoder in decoders if decoder.connection not in busy), None)


def _new(decoders: list[Decoder], data_set: DataSet, side: int, root: Path) -> Decoder:
    decoders.append(Decoder(data_set, side, root))
    return decoders[-1]


class _Reuse:
    """Outcomes of an earlier cache with the same definition, for files that have not changed since.

    Not those whose outcome may differ now: duplicates (of a file that may be gone), crashes and timeouts.
    """

    def __init__(self, index: Index | None, folder: Path, definition: str) -> None:
        self._outcomes: dict[tuple[str, int, int], tuple[FileRecord, int]] = {}
        if index is None or index.definition != definition:
            return
        self._images = index.memmap(folder)
        first = 0
        for record in index.records:
            if record.reason not in (Reason.DUPLICATE, Reason.DECODER_CRASHED, Reason.TIMEOUT):
                self._outcomes[record.identity] = record, first
            first += record.frames

    def __contains__(self, planned: FileRecord) -> bool:
        return planned.identity in self._outcomes

    def outcome(self, planned: FileRecord) -> Outcome | None:
        """What is known about a file without decoding it: rejected while listing, or unchanged."""
        if planned.reason is not None:
            return planned, []
        if planned.identity not in self._outcomes:
            return None
        record, first = self._outcomes[planned.identity]
        return record, self._images[first : first + record.frames] if record.frames else []


def main() -> None:
    """Run one job."""
    os.umask(0o077)
    report = os.fdopen(os.dup(1), "w", encoding="ascii")
    # Decoders write to both streams from C, naming files: nothing of it may reach a log.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    job = json.loads(sys.stdin.readline())
    trace = Path(job["folder"]) / "error.txt"
    trace.unlink(missing_ok=True)
    try:
        build(job, report, sys.stdin.fileno())
    except Abandoned:
        sys.exit(1)
    except CatalogueError as error:
        print(json.dumps({"catalogue_error": str(error)}), file=report, flush=True)
    except Exception as error:
        # An exception's text may hold a file name; its class and the system's own words do not.
        with contextlib.suppress(OSError):
            write_atomic(trace, traceback.format_exc().encode("utf-8", "surrogateescape"))
        problem = ": ".join(filter(None, (type(error).__name__, getattr(error, "strerror", None))))
        print(json.dumps({"error": problem}), file=report, flush=True)


if __name__ == "__main__":
    main()
