"""Images of a site: catalogue, ingest, cache, and the account of every file. Importing it does not import MONAI."""

from __future__ import annotations

from fedad_components.imaging.account import Account, DataRefused, FileRecord, Reason
from fedad_components.imaging.cache import CachedImages, CacheMissing, cache_side
from fedad_components.imaging.catalogue import Catalogue, CatalogueError, DataSet
from fedad_components.imaging.ingest import IngestError, ingest, open_cache

__all__ = [
    "Account",
    "CacheMissing",
    "CachedImages",
    "Catalogue",
    "CatalogueError",
    "DataRefused",
    "DataSet",
    "FileRecord",
    "IngestError",
    "Reason",
    "cache_side",
    "ingest",
    "open_cache",
]
