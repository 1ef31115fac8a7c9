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


def loopback(host: str, port: int) -> tuple[str, int]:
    """Return the address if nobody reaches it from other machines.

    Raises:
        ListenError: Others may: whoever reaches the REST interface sees every namespace, and is not asked who they are.
    """
    literal = "127.0.0.1" if host == "localhost" else host
    try:
        inside = ipaddress.ip_address(literal).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise ListenError(
            f"--rest is {host}:{port}: that can be reached from outside, and nobody is asked who they are there; "
            f"use 127.0.0.1:{port} and kubectl port-forward"
        )
    return literal, port
