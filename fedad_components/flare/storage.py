"""Where the server keeps jobs and snapshots: inside its kit, not in a folder under the system's temporary directory."""

from __future__ import annotations

import os

from nvflare.app_common.storages.filesystem_storage import FilesystemStorage


class KitStorage(FilesystemStorage):
    """FLARE's file storage, rooted in the kit.

    FilesystemStorage wants an absolute path, which nobody knows when a kit is made. FLARE's server changes into the kit
    before it builds its components, so that folder is the root.
    """

    def __init__(self, folder: str = "."):
        super().__init__(root_dir=os.path.abspath(folder))
