"""Which metrics store to use, from a URL or from the ``greptime`` values of the TensorFusion chart."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from consumers.metrics.duckdb import MEMORY, DuckDBStore
from consumers.metrics.greptime import GreptimeSettings, GreptimeStore
from consumers.metrics.store import MetricsStore

EXAMPLES: Final = (
    "duckdb:/var/lib/gpubus/metrics.duckdb, greptime://greptimedb:4000/public or greptimes://USER:PASSWORD@HOST/DB"
)


def store(url: str) -> MetricsStore:
    """Return the store that ``url`` names, not opened yet.

    Raises:
        ValueError: It names none.
    """
    if url == "duckdb::memory:":
        return DuckDBStore(MEMORY, clock=time.time)
    if url.startswith("duckdb:") and (path := url.removeprefix("duckdb:").removeprefix("//")):
        return DuckDBStore(Path(path), clock=time.time)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("greptime", "greptimes") or parts.path.count("/") > 1:
        shown = url.rpartition("@")[2]  # whatever else it is, it may hold a password
        raise ValueError(f"metrics store {shown!r} is not understood: write {EXAMPLES}")
    secure = parts.scheme == "greptimes"
    return GreptimeStore(
        GreptimeSettings(
            url=f"{'https' if secure else 'http'}://{_bracketed(host)}:{port or (443 if secure else 4000)}",
            database=unquote(parts.path.lstrip("/")) or "public",
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
        )
    )


def with_login(url: str, user: str, password: str) -> str:
    """Return the URL of a store with who to log in as, which a Secret tells apart from where the store is.

    Raises:
        ValueError: The URL names somebody already, or only one of the two is given.
    """
    if not user and not password:
        return url
    scheme, _, place = url.partition("://")
    if not user or not password:
        raise ValueError("user and password go together: set both or neither")
    if not place or "@" in place:
        raise ValueError("user and password are for a store whose URL has neither: leave them out in one of the two")
    return f"{scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{place}"


def url_from_values(greptime: Mapping[str, Any]) -> str:
    """Return the URL for the chart's ``greptime`` values.

    ``port`` there is that of the MySQL protocol, which we do not speak: HTTP is at ``httpPort``, by default 4000, and 443
    in the cloud.

    Raises:
        ValueError: ``host`` is missing, or the cloud is to be used without user or password.
    """
    host, cloud = str(greptime.get("host") or ""), bool(greptime.get("isCloud"))
    if not host:
        raise ValueError("greptime.host is missing: write the name of the GreptimeDB service")
    user, password = str(greptime.get("user") or ""), str(greptime.get("password") or "")
    if cloud and not (user and password):
        raise ValueError("greptime.isCloud needs greptime.user and greptime.password")
    port = greptime.get("httpPort") or (443 if cloud else 4000)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
    return f"{'greptimes' if cloud else 'greptime'}://{login}{host}:{port}/{quote(str(greptime.get('db') or 'public'), safe='')}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
