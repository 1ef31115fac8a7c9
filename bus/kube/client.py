"""Calls to an API server over one session: raw bodies out and in, refusals as errors.

The official client's models cost several times more to decode than the answer to fetch, and it reads the answer to a
binding as something else than the server sends, so hot paths come here.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from typing import Any, Final, Self
from urllib.parse import quote

import aiohttp
import msgspec
from kubernetes.aio.client import Configuration

from bus.kube import config
from bus.kube.errors import NOT_FOUND, KubeRefusedError, KubeUnreachableError, Status

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"

CALL_TIMEOUT_S: Final = 30.0
CONNECTIONS: Final = 64
_USER_AGENT: Final = "gpubus"

_status = msgspec.json.Decoder(Status)


class Client:
    """A session with one API server.

    Example::

        async with await Client.connect() as client:
            body = await client.call("GET", "/version")
    """

    def __init__(
        self,
        configuration: Configuration,
        session: aiohttp.ClientSession,
        renewal: Coroutine[Any, Any, None] | None = None,
    ) -> None:
        self._configuration = configuration
        self._session = session
        self._host = str(configuration.host).rstrip("/")
        self._renewal = None if renewal is None else asyncio.create_task(renewal, name="kube-token")
        self.calls = 0
        """Requests answered so far."""

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> Self:
        """Prepare a session; nothing is sent yet.

        Raises:
            KubeConfigError: There is no usable configuration.
        """
        configuration, renewal = await config.load(kubeconfig)
        connector = aiohttp.TCPConnector(ssl=_tls(configuration), limit=CONNECTIONS)
        session = aiohttp.ClientSession(
            connector=connector,
            headers={"User-Agent": _USER_AGENT, "Accept": JSON},
            proxy=configuration.proxy,
            read_bufsize=2**21,  # a watch sends objects of more than a megabyte in one line
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
        )
        return cls(configuration, session, renewal)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session."""
        if self._renewal is not None:
            self._renewal.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewal
        await self._session.close()

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        timeout: float = CALL_TIMEOUT_S,
    ) -> bytes:
        """Make one request and return the body of its answer.

        Raises:
            KubeRefusedError: The server refused it.
            KubeUnreachableError: No answer came within ``timeout`` seconds; a write may have been carried out.
        """
        request = f"{method} {path}"
        try:
            async with asyncio.timeout(timeout), self._open(method, path, query, body, content_type) as response:
                answer = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise KubeUnreachableError(request, str(error) or type(error).__name__) from None
        self.calls += 1
        if response.status >= 400:  # noqa: PLR2004  HTTP's own line
            raise _refusal(request, response.status, response.headers.get("Retry-After", ""), answer)
        return answer

    async def find(self, path: str) -> bytes | None:
        """Return an object as it is now, or None if there is none at ``path``.

        Raises:
            KubeRefusedError, KubeUnreachableError: As for :meth:`call`.
        """
        try:
            return await self.call("GET", path)
        except KubeRefusedError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    async def lines(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[list[bytes]]:
        """Yield the lines of an endless answer, as many as have come together.

        Raises:
            KubeRefusedError: The server refused it.
            KubeUnreachableError: The connection broke, or nothing came for ``silence_s`` seconds.
        """
        request = f"GET {path}"
        try:
            async with self._open("GET", path, query, None, JSON) as response:
                if response.status >= 400:  # noqa: PLR2004  HTTP's own line
                    answer = await response.read()
                    raise _refusal(request, response.status, response.headers.get("Retry-After", ""), answer)
                rest = b""
                chunks = response.content.iter_any()
                while True:
                    try:
                        async with asyncio.timeout(silence_s):
                            chunk = await anext(chunks)
                    except StopAsyncIteration:
                        return
                    *whole, rest = (rest + chunk).split(b"\n")
                    if whole:
                        yield whole
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise KubeUnreachableError(request, str(error) or type(error).__name__) from None

    @contextlib.asynccontextmanager
    async def _open(
        self, method: str, path: str, query: Mapping[str, str] | None, body: bytes | None, content_type: str
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"Content-Type": content_type} if body is not None else {}
        token = await self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if token:
            headers["Authorization"] = token
        async with self._session.request(
            method,
            self._host + path,
            params=query,
            data=body,
            headers=headers,
            server_hostname=self._configuration.tls_server_name,
        ) as response:
            yield response


def resource_path(api: str, plural: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    """Return the path of an object or, without ``name``, of a list: ``/api/v1/namespaces/a/pods/b/binding``."""
    root = f"/api/{api}" if "/" not in api else f"/apis/{api}"
    parts = [root]
    if namespace:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(plural)
    if name:
        parts.append(quote(name, safe=""))
    if subresource:
        parts.append(subresource)
    return "/".join(parts)


def _tls(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _refusal(request: str, code: int, retry_after: str, body: bytes) -> KubeRefusedError:
    try:
        status = _status.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = Status(message=body[:200].decode(errors="replace"))
    wait = int(retry_after) if retry_after.isdigit() else 0
    details = msgspec.structs.replace(status.details, retry_after_seconds=status.details.retry_after_seconds or wait)
    return KubeRefusedError(request, msgspec.structs.replace(status, code=code, details=details))
