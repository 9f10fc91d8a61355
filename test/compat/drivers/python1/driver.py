"""Drives version 1 of the official Python SDK, which speaks HTTP, for the compatibility suite.

Reads one JSON request a line from standard input and writes one JSON response or listener event a
line to standard output. The protocol is described in test/compat/README.md.
"""

import importlib.metadata
import inspect
import json
import logging
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import nacos
from nacos.listener import Event, SubscribeListener

BEAT_INTERVAL = 5  # seconds; the SDK has no default

# Operations, with the call that each needs; a version of the SDK that has one will have to be
# driven.
OPTIONAL = {
    "batchRegister": "batch_register_instances",
    "batchRemove": "batch_deregister_instances",
    "services": "list_naming_service",
    "watchServices": "fuzzy_watch",
}

# Before 1.0 the application sends the beats.
BEATS = "heartbeat_interval" in inspect.signature(nacos.NacosClient.add_naming_instance).parameters


class Driver:
    def __init__(self, out):
        self.out = out
        self.sending = threading.Lock()
        self.clients = {}
        self.beats = {}  # stop events, by client, group, service, ip and port

    def send(self, message):
        with self.sending:
            self.out.write(json.dumps(message) + "\n")
            self.out.flush()

    def serve(self, lines):
        """Answers requests until the input ends, each on a thread of its own, so that a slow call
        of one client does not hold up another."""
        with ThreadPoolExecutor(64) as requests:
            for line in lines:
                requests.submit(self.answer, json.loads(line))

    def answer(self, request):
        try:
            result = getattr(self, "op_" + request["op"])(request) or {}
            self.send({"id": request["id"], "ok": True, **result})
        except Exception as e:
            self.send({"id": request["id"], "ok": False, "error": f"{type(e).__name__}: {e}"})

    def client(self, r):
        return self.clients[r["client"]]

    def op_connect(self, r):
        deadline = time.monotonic() + r["timeoutMs"] / 1000
        client = nacos.NacosClient(r["server"], namespace=r["namespace"])
        while True:
            try:  # the SDK does not tell whether a server is there; an answer does
                client.list_naming_instance("connected")
                break
            except Exception:
                if time.monotonic() > deadline:
                    raise ConnectionError(f"not connected to {r['server']} in time") from None
            time.sleep(0.02)
        self.clients[r["client"]] = client

    def op_close(self, r):
        # The SDK ends its questions only; the beats are ended one by one.
        client = self.client(r)
        client.stop_subscribe()
        for task in getattr(client, "heartbeats", {}).values():
            task.stop()
        for key, stopped in list(self.beats.items()):
            if key[0] == r["client"]:
                stopped.set()

    def op_register(self, r):
        i = r["instance"]
        more = {"heartbeat_interval": BEAT_INTERVAL} if BEATS else {}
        accept(
            self.client(r).add_naming_instance(
                r["service"],
                i["ip"],
                i["port"],
                cluster_name=i["cluster"],
                weight=i["weight"],
                metadata=i["metadata"],
                enable=i["enabled"],
                healthy=i["healthy"],
                ephemeral=i["ephemeral"],
                group_name=group(r),
                **more,
            )
        )
        if not BEATS and i["ephemeral"]:
            self.beat(r)

    def beat(self, r):
        """Sends beats as the SDK does from 1.0 on."""
        i = r["instance"]
        key = beat_key(r)
        if key in self.beats:
            self.beats[key].set()
        stopped = self.beats[key] = threading.Event()

        def run():
            while not stopped.is_set():
                try:
                    self.client(r).send_heartbeat(
                        r["service"],
                        i["ip"],
                        i["port"],
                        cluster_name=i["cluster"],
                        weight=i["weight"],
                        metadata=i["metadata"],
                        group_name=group(r),
                    )
                except Exception as e:
                    print("driver: beat:", e, file=sys.stderr)
                stopped.wait(BEAT_INTERVAL)

        threading.Thread(target=run, daemon=True).start()

    def op_update(self, r):
        i = r["instance"]
        accept(
            self.client(r).modify_naming_instance(
                r["service"],
                i["ip"],
                i["port"],
                cluster_name=i["cluster"],
                weight=i["weight"],
                metadata=i["metadata"],
                enable=i["enabled"],
                ephemeral=i["ephemeral"],
                group_name=group(r),
            )
        )

    def op_deregister(self, r):
        i = r["instance"]
        if stopped := self.beats.pop(beat_key(r), None):
            stopped.set()
        accept(
            self.client(r).remove_naming_instance(
                r["service"],
                i["ip"],
                i["port"],
                cluster_name=i["cluster"],
                ephemeral=i["ephemeral"],
                group_name=group(r),
            )
        )

    def list(self, r, healthy_only=False):
        return self.client(r).list_naming_instance(
            r["service"],
            clusters=",".join(r.get("clusters", [])),
            group_name=group(r),
            healthy_only=healthy_only,
        )

    def op_list(self, r):
        return {"hosts": from_sdk(self.list(r)["hosts"])}

    def op_selectHealthy(self, r):
        # The SDK has no method that picks one; an application takes one of the healthy list.
        return {"hosts": from_sdk(self.list(r, healthy_only=True)["hosts"])[:1]}

    def op_protected(self, r):
        return {"protected": self.list(r)["reachProtectionThreshold"]}

    def op_subscribe(self, r):
        """The SDK tells of one instance at a time; the driver keeps the list that they make. What
        the SDK finds when it asks first it does not tell at all: it is in its own list."""
        client, hosts, changing = self.client(r), {}, threading.Lock()

        def push():
            self.send(
                {
                    "event": "push",
                    "subscription": r["subscription"],
                    "timeMs": time.time_ns() // 1_000_000,
                    "hosts": from_sdk(hosts.values()),
                }
            )

        def listener(event, changed):
            with changing:
                if event == Event.DELETED:
                    hosts.pop(changed.instance_id, None)
                else:
                    hosts[changed.instance_id] = changed.instance
                push()

        with changing:
            client.subscribe(
                SubscribeListener(listener, r["subscription"]),
                service_name=r["service"],
                clusters=",".join(r.get("clusters", [])),
                group_name=group(r),
            )
            # Else the SDK's timer ends with the first question that fails.
            for timer in list(client.subscribe_timer_manager.all_timers().values()):
                timer.set_ignore_ex(True)
            known = client.subscribed_local_manager.get_local_instances(r["service"])
            if known:
                hosts.update({key: i.instance for key, i in known.items()})
                push()

    def op_unsubscribe(self, r):
        self.client(r).unsubscribe(r["service"], r["subscription"])


def accept(ok):
    if not ok:
        raise RuntimeError("rejected by the server")


def group(r):
    return r.get("group") or "DEFAULT_GROUP"


def beat_key(r):
    return r["client"], group(r), r["service"], r["instance"]["ip"], r["instance"]["port"]


def from_sdk(hosts):
    return [
        {
            "ip": h["ip"],
            "port": h["port"],
            "weight": h["weight"],
            "healthy": h["healthy"],
            "enabled": h["enabled"],
            "cluster": h["clusterName"],
            "metadata": h["metadata"],
            "ephemeral": h["ephemeral"],
        }
        for h in hosts
    ]


def main(directory):
    out = sys.stdout
    sys.stdout = sys.stderr  # whatever the SDK prints must not get between the protocol's lines
    os.chdir(directory)  # where the SDK writes its caches
    os.environ["HOME"] = directory  # and its log
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    driver = Driver(out)
    driver.send(
        {
            "event": "hello",
            "version": importlib.metadata.version("nacos-sdk-python"),
            "lacks": [op for op, call in OPTIONAL.items() if not hasattr(nacos.NacosClient, call)],
        }
    )
    driver.serve(sys.stdin)
    # The SDK's timers never end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
