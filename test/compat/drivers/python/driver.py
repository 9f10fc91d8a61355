"""Drives the official Python SDK for the compatibility suite.

Reads one JSON request a line from standard input and writes one JSON response or listener event a
line to standard output. The protocol is described in test/compat/README.md.
"""

import asyncio
import importlib.metadata
import json
import logging
import os
import sys
import time

from v2.nacos import (
    BatchRegisterInstanceParam,
    ClientConfigBuilder,
    DeregisterInstanceParam,
    GetServiceParam,
    ListInstanceParam,
    ListServiceParam,
    NacosNamingService,
    RegisterInstanceParam,
    SubscribeServiceParam,
)

# One request may carry a thousand instances.
MAX_LINE = 16 << 20


class Driver:
    def __init__(self, directory, out):
        self.directory = directory  # where the SDK may write its logs and caches
        self.out = out
        self.clients = {}
        # The SDK recognises a listener by the function that was subscribed.
        self.subscriptions = {}

    def send(self, message):
        self.out.write(json.dumps(message) + "\n")
        self.out.flush()

    async def serve(self, lines):
        """Answers requests until the input ends, each in a task of its own, so that a slow call of
        one client does not hold up another."""
        tasks = set()
        while line := await lines.readline():
            task = asyncio.create_task(self.answer(json.loads(line)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def answer(self, request):
        try:
            result = await getattr(self, "op_" + request["op"])(request) or {}
            self.send({"id": request["id"], "ok": True, **result})
        except Exception as e:
            self.send({"id": request["id"], "ok": False, "error": f"{type(e).__name__}: {e}"})

    async def op_connect(self, r):
        config = (
            ClientConfigBuilder()
            .server_address(r["server"])
            .namespace_id(r.get("namespace", ""))
            .log_dir(os.path.join(self.directory, "log"))
            .cache_dir(os.path.join(self.directory, "cache", r["client"]))
            .log_level(logging.WARNING)
            .load_cache_at_start(False)
            .build()
        )
        # By default the SDK keeps the old list when the server reports an empty one.
        config.set_update_cache_when_empty(True)
        try:
            async with asyncio.timeout(r["timeoutMs"] / 1000):
                client = await NacosNamingService.create_naming_service(config)
                while not await client.server_health():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise ConnectionError(f"not connected to {r['server']} in time") from None
        self.clients[r["client"]] = client

    async def op_close(self, r):
        try:
            await self.clients[r["client"]].shutdown()
        except TypeError as e:
            # 2.0.11 ends with awaiting what is no coroutine; by then all is closed.
            if "'await' expression" not in str(e):
                raise

    async def op_register(self, r):
        accept(await self.clients[r["client"]].register_instance(registration(r, r["instance"])))

    async def op_update(self, r):
        accept(await self.clients[r["client"]].update_instance(registration(r, r["instance"])))

    async def op_deregister(self, r):
        i = r["instance"]
        accept(
            await self.clients[r["client"]].deregister_instance(
                DeregisterInstanceParam(
                    ip=i["ip"],
                    port=i["port"],
                    cluster_name=i["cluster"],
                    ephemeral=i["ephemeral"],
                    service_name=r["service"],
                    group_name=group(r),
                )
            )
        )

    async def op_batchRegister(self, r):
        accept(await self.clients[r["client"]].batch_register_instances(batch(r)))

    async def op_batchRemove(self, r):
        accept(await self.clients[r["client"]].batch_deregister_instances(batch(r)))

    async def op_list(self, r):
        return {"hosts": from_sdk(await self.list(r, healthy_only=None))}

    async def op_selectHealthy(self, r):
        # The SDK has no method that picks one; an application takes one of the healthy list.
        return {"hosts": from_sdk(await self.list(r, healthy_only=True))[:1]}

    async def list(self, r, healthy_only):
        return await self.clients[r["client"]].list_instances(
            ListInstanceParam(
                service_name=r["service"],
                group_name=group(r),
                clusters=r.get("clusters", []),
                subscribe=False,
                healthy_only=healthy_only,
            )
        )

    async def op_services(self, r):
        page = await self.clients[r["client"]].list_services(
            ListServiceParam(
                namespace_id=r.get("namespace", ""),
                group_name=group(r),
                page_no=r["page"],
                page_size=r["size"],
            )
        )
        return {"services": page.services, "count": page.count}

    async def op_protected(self, r):
        service = await self.clients[r["client"]].get_service(
            GetServiceParam(service_name=r["service"], group_name=group(r))
        )
        return {"protected": service.reachProtectionThreshold}

    async def op_subscribe(self, r):
        async def listener(hosts):
            self.send(
                {
                    "event": "push",
                    "subscription": r["subscription"],
                    "timeMs": time.time_ns() // 1_000_000,
                    "hosts": from_sdk(hosts),
                }
            )

        param = SubscribeServiceParam(
            service_name=r["service"],
            group_name=group(r),
            clusters=r.get("clusters", []),
            subscribe_callback=listener,
        )
        self.subscriptions[r["subscription"]] = param
        await self.clients[r["client"]].subscribe(param)

    async def op_unsubscribe(self, r):
        await self.clients[r["client"]].unsubscribe(self.subscriptions[r["subscription"]])


def accept(ok):
    if not ok:
        raise RuntimeError("rejected by the server")


def group(r):
    return r.get("group") or "DEFAULT_GROUP"


def registration(r, i):
    return RegisterInstanceParam(
        service_name=r["service"],
        group_name=group(r),
        ip=i["ip"],
        port=i["port"],
        weight=i["weight"],
        healthy=i["healthy"],
        enabled=i["enabled"],
        cluster_name=i["cluster"],
        metadata=i["metadata"],
        ephemeral=i["ephemeral"],
    )


def batch(r):
    return BatchRegisterInstanceParam(
        service_name=r["service"],
        group_name=group(r),
        instances=[registration(r, i) for i in r["instances"]],
    )


def from_sdk(hosts):
    return [
        {
            "ip": h.ip,
            "port": h.port,
            "weight": h.weight,
            "healthy": h.healthy,
            "enabled": h.enabled,
            "cluster": h.clusterName,
            "metadata": h.metadata,
            "ephemeral": h.ephemeral,
        }
        for h in hosts
    ]


async def main(directory):
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever the SDK prints must not get between the protocol's lines
    driver = Driver(directory, out)
    lines = asyncio.StreamReader(limit=MAX_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    # A version of the SDK that has it will have to be driven.
    watch = any("fuzzy" in name for name in dir(NacosNamingService))
    driver.send(
        {
            "event": "hello",
            "version": importlib.metadata.version("nacos-sdk-python"),
            "lacks": [] if watch else ["watchServices"],
        }
    )
    await driver.serve(lines)
    out.flush()
    # The SDK's background tasks never end by themselves.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
