"""What stands where a site's private file is expected: a folder or a dangling link there is no absent file."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def is_there(path: Path) -> bool:
    """Whether a regular file, or a link to one, stands there.

    Raises:
        OSError: if something else does, or nobody may look; its ``strerror`` has the cause, and the fix where one is
            known.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise _refused(
                path, "a link to a file that is missing: bring its target back, or remove the link"
            ) from None
        return False
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise _refused(path, f"{kind} where a file is expected: move it away")
    return True


def cause(path: Path, error: OSError) -> str:
    """An error in words: the path that it is about, its cause, and what the account may lack."""
    named = error.filename if isinstance(error.filename, str) else path
    missing = " to the account that runs this: run as the owner, or let chmod and chown give it access"
    return f"{named}: {error.strerror or error}{missing if isinstance(error, PermissionError) else ''}"


def _refused(path: Path, message: str) -> OSError:
    return OSError(errno.EINVAL, message, str(path))
