"""An extender that does nothing: arguments PORT CERTIFICATE KEY KUBECONFIG.

It offers every node, prefers none, and binds where it is asked to.
"""

import asyncio
import json
import ssl
import sys

import uvloop
from aiohttp import web

from bus.kube.client import Client, resource_path


async def offer(request: web.Request) -> web.Response:
    asked = await request.json()
    return web.json_response({"NodeNames": asked["NodeNames"], "FailedNodes": {}, "Error": ""})


async def prefer(request: web.Request) -> web.Response:
    await request.read()
    return web.json_response([])


def binder(client: Client):
    async def bind(request: web.Request) -> web.Response:
        asked = await request.json()
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": asked["PodName"], "namespace": asked["PodNamespace"], "uid": asked["PodUID"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": asked["Node"]},
        }
        path = resource_path("v1", "pods", asked["PodNamespace"], asked["PodName"], "binding")
        await client.call("POST", path, body=json.dumps(binding).encode())
        return web.json_response({"Error": ""})

    return bind


async def main() -> None:
    port, certificate, key, kubeconfig = sys.argv[1:]
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with await Client.connect(kubeconfig) as client:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/extender/filter", offer)
        app.router.add_post("/extender/prioritize", prefer)
        app.router.add_post("/extender/bind", binder(client))
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", int(port), ssl_context=tls).start()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
