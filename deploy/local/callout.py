"""The authenticator as a role, and what it is told by its environment.

``GPUBUS_CALLOUT_SEED_FILE`` names the file with the seed of the account that the bus takes for the issuer,
``GPUBUS_AGENT_ACCOUNT`` the service account of agents, and ``GPUBUS_AGENT_AUDIENCE`` what their tokens must be for.
"""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bus.connection import Bus
from deploy.local.exposition import exposed
from deploy.local.monitoring import SettingError
from deploy.local.roles import Role

if TYPE_CHECKING:
    from consumers.authenticator.nkeys import Signer

SEED: Final = "GPUBUS_CALLOUT_SEED_FILE"
ACCOUNT: Final = "GPUBUS_AGENT_ACCOUNT"
AUDIENCE: Final = "GPUBUS_AGENT_AUDIENCE"
DEFAULT_AUDIENCE: Final = "gpubus-bus"
_PARTS: Final = 4


def settings() -> "tuple[Signer, str, str]":
    """Return the key that signs, the account of agents, and the audience of their tokens.

    Raises:
        SettingError: One is missing or wrong, or the package is not installed that signs.
    """
    try:
        from consumers.authenticator.nkeys import Signer, TokenError
    except ImportError as error:
        raise SettingError(f"the authenticator needs {error.name}: install gpubus[issuer]") from None
    file, account = os.environ.get(SEED, ""), os.environ.get(ACCOUNT, "")
    if not file:
        raise SettingError(f"{SEED} is not set: name the file with the seed of the issuer's account")
    parts = account.split(":")
    if len(parts) != _PARTS or parts[:2] != ["system", "serviceaccount"] or not all(parts):
        raise SettingError(f"{ACCOUNT} is {account!r}: write system:serviceaccount:NAMESPACE:NAME")
    try:
        signer = Signer(Path(file).read_text("ascii").strip())
    except OSError as error:
        raise SettingError(f"{SEED} {file} cannot be read: {error.strerror}") from None
    except (TokenError, UnicodeDecodeError) as error:
        raise SettingError(f"{SEED} {file}: {error}") from None
    return signer, account, os.environ.get(AUDIENCE) or DEFAULT_AUDIENCE


async def authenticator(bus: Bus, name: str, stop: asyncio.Event, ready: asyncio.Event) -> None:
    """Tell the bus which node an agent speaks for."""
    from bus.kube.client import Client

    del name  # replicas say the same
    signer, account, audience = settings()
    from consumers.authenticator.service import Authenticator

    async with await Client.connect() as client:
        role = Authenticator(bus, client, signer, account=account, audience=audience)
        with exposed("authenticator", role.statistics):
            await role.run(stop, ready=ready)


GUARD_ROLES: Final[dict[str, Role]] = {"authenticator": authenticator}
"""Roles that a bus with accounts needs."""
