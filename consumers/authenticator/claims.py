"""What the callout says to the server: claims of a user that speaks for one node, or why there is none. Pure.

Source: NATS auth callout (ADR-26): the server sends an authorization request, and takes an authorization response that holds a
user's token. In a server that is configured by file the user's audience names its account.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from bus.permissions import ACCOUNT, agent_user, of_agent

NODE_NAME: Final = "authentication.kubernetes.io/node-name"
"""What the API server knows of the pod that a token is bound to. Source: KEP-4193, on by default since Kubernetes 1.30."""

USER_LIFE_S: Final = 3600
"""After this the server closes the connection, and the agent comes again with the token of that time."""


class Server(msgspec.Struct, frozen=True):
    """The server that asks."""

    id: str


class Options(msgspec.Struct, frozen=True):
    """What a client has shown; its name is not believed."""

    user: str = ""
    password: str = msgspec.field(default="", name="pass")


class Asked(msgspec.Struct, frozen=True):
    """The part of a request that we read: who asks, for which connection, and what it has shown."""

    server_id: Server
    user_nkey: str
    connect_opts: Options = Options()


class Account(msgspec.Struct, frozen=True):
    """Who a token belongs to, as the API server says."""

    username: str = ""
    extra: dict[str, tuple[str, ...]] = {}


class Review(msgspec.Struct, frozen=True):
    """``TokenReview.status``."""

    authenticated: bool = False
    user: Account = Account()
    audiences: tuple[str, ...] = ()
    error: str = ""


class RefusedError(Exception):
    """Why somebody is not let in, for the logs: the client is told no more than that it is not."""


def node_of(review: Review, account: str, audience: str) -> str:
    """Return the node that a token speaks for.

    Args:
        review: What the API server says of the token.
        account: The service account of agents, ``system:serviceaccount:<namespace>:<name>``.
        audience: What the token must be for.

    Raises:
        RefusedError: It is not that of an agent's pod.
    """
    if not review.authenticated:
        raise RefusedError(review.error or "the API server does not know the token")
    if audience not in review.audiences:
        raise RefusedError(f"the token is for {', '.join(review.audiences) or 'nobody'}, not for {audience}")
    if review.user.username != account:
        raise RefusedError(f"the token is that of {review.user.username}, agents are {account}")
    (node, *more) = review.user.extra.get(NODE_NAME, ()) or ("",)
    if not node or more:
        raise RefusedError("the token does not say which node its pod runs on: agents need Kubernetes 1.30 or newer")
    return node


def user_claims(asked: Asked, node: str, now_s: int) -> dict[str, Any]:
    """Return the claims of the user that the agent of ``node`` becomes."""
    grants = of_agent(node)
    return {
        "jti": f"{asked.user_nkey}:{now_s}",
        "iat": now_s,
        "exp": now_s + USER_LIFE_S,
        "sub": asked.user_nkey,
        "aud": ACCOUNT,
        "name": agent_user(node),
        "nats": {
            "pub": {"allow": list(grants.publish)},
            "sub": {"allow": list(grants.subscribe)},
            "subs": -1,
            "data": -1,
            "payload": -1,
            "type": "user",
            "version": 2,
        },
    }


def response_claims(asked: Asked, now_s: int, *, user: str = "", refusal: str = "") -> dict[str, Any]:
    """Return the claims of the answer: a user's token, or a refusal."""
    said: Mapping[str, Any] = {"error": refusal} if refusal else {"jwt": user}
    return {
        "jti": f"{asked.user_nkey}:{now_s}",
        "iat": now_s,
        "sub": asked.user_nkey,
        "aud": asked.server_id.id,
        "nats": {**said, "type": "authorization_response", "version": 2},
    }
