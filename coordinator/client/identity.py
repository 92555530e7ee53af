"""Who holds something: the client's own name, and a name of its own for every hold of a lock.

The cluster lets whoever has a lock enter it again, by its name. Two tasks of one client would then be inside together,
so every acquisition has another name: the client's, a slash, and what no other process and no other acquisition has. A
token that is bound to a name covers all names below it (docs/SECURITY.md), and so these.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import uuid

from coordinator.client.errors import Invalid

MAX_NAME = 255
"""Characters, as the cluster counts them."""
_HOLD = re.compile(r"/hold-[0-9a-f]{8}-[0-9]+$")


def default_client_id() -> str:
    """Says which process of which host it is, and is never the same twice: a restarted process holds nothing."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def client_of(holder: str) -> str:
    """The client whose hold it is, if it is named as one; else the name as it is."""
    return _HOLD.sub("", holder)


class HoldNames:
    """Names for the holds of one client: others after a restart, also if the client is called the same."""

    def __init__(self, client_id: str) -> None:
        self._client_id, self._run = client_id, uuid.uuid4().hex[:8]
        self._numbers = itertools.count(1)

    def new(self) -> str:
        name = f"{self._client_id}/hold-{self._run}-{next(self._numbers)}"
        if len(name) > MAX_NAME:
            most = MAX_NAME - (len(name) - len(self._client_id))
            raise Invalid(
                f"the client_id has {len(self._client_id)} characters, which leaves no room for the name of a hold: "
                f"use one of at most {most}, or reentrant=True, by which the client itself is the holder",
                details={"field": "client_id", "limit": most},
            )
        return name
