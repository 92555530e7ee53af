"""Every request that the page makes without being told to change something, by its path in the interface.

tests/ui/test_appearance.py sees to it that the page asks nothing else, tests/http/test_page_work.py that none of them
costs more the more there is. `{…}` stands for the name of something there is a lot of, or a lot around of.
"""

from __future__ import annotations

ASKED = {
    "/healthz": ("",),
    "/openapi.json": ("",),
    "/api/v1/cluster": ("",),
    "/api/v1/cluster/members/{member}": ("",),
    "/api/v1/telemetry": ("",),
    "/api/v1/namespaces": ("",),
    "/api/v1/locks": ("?limit=50", "?limit=50&prefix=lock/", "?limit=50&after=lock/000500"),
    "/api/v1/locks/{lock}": ("?waiters=100&holders=100",),
    "/api/v1/leases": ("?limit=50", "?limit=50&prefix=nowhere/", "?limit=10&resource=hub"),
    "/api/v1/leases/{lease}": ("",),
    "/api/v1/sessions": ("?limit=50", "?limit=50&prefix=nobody-"),
    "/api/v1/sessions/{session}": ("",),
    "/api/v1/resources": ("?limit=50", "?limit=50&prefix=nowhere/", "?limit=50&state=suspect", "?limit=50&state=dead"),
    "/api/v1/resources/{resource}": ("",),
    "/api/v1/resources/{resource}/explain": ("",),
    "/api/v1/edges/around": ("?resource={resource}&depth=2&limit=40", "?resource={resource}&depth=6&limit=200"),
    "/api/v1/reclaims": ("?limit=1", "?limit=25", "?limit=25&state=dead", "?limit=25&provider=files"),
    "/api/v1/queues": ("?limit=100",),
    "/api/v1/queues/{queue}": ("",),
    "/api/v1/queues/{queue}/workers": ("?limit=100",),
    "/api/v1/queues/{queue}/shards": ("?limit=240",),
    "/api/v1/queues/{queue}/tasks": ("?limit=25", "?limit=25&state=dead"),
    "/api/v1/tombstones": ("?limit=25",),
    "/api/v1/holders": ("?limit=25",),
}
WHEN_TOLD_TO = "what_if"
"""Goes through all that hangs on something, a piece at a time and up to a limit, when somebody presses the button."""
FOLLOWED = ("/api/v1/watch",)
"""Streams: what they cost goes by what happens, not by what there is."""
