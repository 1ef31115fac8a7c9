"""Where a demo keeps its bus: a directory of its own that can be looked at afterwards and is replaced by the next run."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from deploy.local.server import LocalBusError, refuse_if_locked, writable_directory

MARK: Final = ".gpubus-demo"


class DirectoryError(LocalBusError):
    """The directory is not one that a demo may use; the message says why."""


def default_directory() -> Path:
    """Return the directory that demos use unless told otherwise."""
    # By number, because in a container the user need not have a name.
    return Path(tempfile.gettempdir()) / f"gpubus-demo-{os.getuid()}"


def fresh_directory(path: Path) -> Path:
    """Empty a demo's directory, or make it.

    Raises:
        DirectoryError: It is a file, or holds something that no demo has put there.
        LocalBusError: It is in use, or cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise DirectoryError(f"{path} is a file: name a directory to keep the demo's bus in")
    mark = path / MARK
    if path.is_dir() and any(path.iterdir()) and not mark.exists():
        raise DirectoryError(f"directory {path} is not empty and not a demo's: choose another, it would be emptied")
    writable_directory(path)
    for lock in (path / "lock", *path.glob("n[123]/lock")):
        refuse_if_locked(lock)
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    mark.touch()
    return path.resolve()
