"""Files that commands write."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.endpoint import EndpointError


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Any]:
    """A file, its owner's alone, that is `target` once it is whole and durable; before that, and after an error,
    `target` is as it was."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        # Never one that somebody else has put there, to read it or to lead it elsewhere.
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise EndpointError(f"{target} cannot be written: {error.strerror or error}", status=0) from None
    finally:
        temporary.unlink(missing_ok=True)
