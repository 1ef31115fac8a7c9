"""How it is said: events on NATS JetStream.

One module per idea: :mod:`bus.subjects` names, :mod:`bus.streams` declares, :mod:`bus.connection` connects,
:mod:`bus.publisher` speaks, :mod:`bus.follower` listens to everything, :mod:`bus.consumer` shares work,
:mod:`bus.ledger` commits, :mod:`bus.rpc` answers, :mod:`bus.timers` waits, :mod:`bus.deadletter` keeps what failed.
"""

from bus.websocket import load_client_without

load_client_without()
