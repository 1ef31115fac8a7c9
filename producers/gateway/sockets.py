"""Where the gateway listens."""

import ipaddress
import socket


class ListenError(ValueError):
    """It cannot be listened at an address; the message says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections.

    Raises:
        ListenError: The address is not ours, or the port is taken or not allowed.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        raise ListenError(f"{host}:{port} cannot be listened on: {error.strerror}") from None


def inside(host: str) -> bool:
    """Return whether nobody reaches an address from other machines."""
    try:
        return ipaddress.ip_address(_literal(host)).is_loopback
    except ValueError:
        return False


def guarded(host: str, port: int, *, asked: bool, encrypted: bool) -> tuple[str, int]:
    """Return where the REST interface may be served.

    Args:
        host: Address to listen on.
        port: Port to listen on.
        asked: Whether everybody is asked who they are.
        encrypted: Whether there is a certificate.

    Raises:
        ListenError: Others would reach it there, and see every namespace unasked, or show their tokens to the network.
    """
    if not inside(host):
        here = f"--rest is {host}:{port}: that can be reached from outside"
        if not asked:
            raise ListenError(
                f"{here}, and nobody is asked who they are there; use 127.0.0.1:{port} and kubectl port-forward, or --rest-auth"
            )
        if not encrypted:
            raise ListenError(f"{here}, and tokens would cross the network in clear; give --certificate and --key too")
    return _literal(host), port


def _literal(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host
