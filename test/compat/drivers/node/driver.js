// Drives the official Node.js SDK for the compatibility suite: reads one JSON request a line from
// standard input and writes one JSON response or listener event a line to standard output. The
// protocol is described in test/compat/README.md.
'use strict';

const { Console } = require('node:console');
const readline = require('node:readline');
const { setTimeout: sleep } = require('node:timers/promises');

// Whatever the SDK prints must not get between the protocol's lines.
globalThis.console = new Console(process.stderr, process.stderr);

const { NacosNamingClient } = require('nacos');

// Operations, with the call that each needs; a version of the SDK that has one will have to be
// driven.
const optional = {
  batchRegister: 'batchRegisterInstance',
  batchRemove: 'batchDeregisterInstance',
  protected: 'getService',
  services: 'getServiceList',
  watchServices: 'fuzzyWatch',
};

const logger = { debug() {}, info() {}, warn: console.warn, error: console.error };

const clients = new Map();
const listeners = new Map(); // the SDK recognises a listener by its identity

function send(message) {
  process.stdout.write(JSON.stringify(message) + '\n');
}

async function answer(request) {
  try {
    const result = await handle(request);
    send({ id: request.id, ok: true, ...result });
  } catch (err) {
    send({ id: request.id, ok: false, error: String(err) });
  }
}

async function handle(r) {
  if (r.op === 'connect') return connect(r);
  const client = clients.get(r.client);
  if (!client) throw new Error(`no client ${r.client}`);
  const clusters = (r.clusters || []).join(',');
  const info = { serviceName: r.service, groupName: r.group, clusters };
  switch (r.op) {
    case 'close':
      await client.close();
      return;
    case 'register':
    case 'update': // registering again is how this SDK changes an instance
      await client.registerInstance(r.service, toSDK(r.instance), r.group);
      return;
    case 'deregister':
      await client.deregisterInstance(r.service, toSDK(r.instance), r.group);
      return;
    case 'list':
      return { hosts: fromSDK(await client.getAllInstances(r.service, r.group, clusters, false)) };
    case 'selectHealthy': // the SDK has no method that picks one
      return { hosts: fromSDK(await client.selectInstances(r.service, r.group, clusters, true, false)).slice(0, 1) };
    case 'subscribe': {
      const listener = (hosts) =>
        send({ event: 'push', subscription: r.subscription, timeMs: Date.now(), hosts: fromSDK(hosts) });
      listeners.set(r.subscription, listener);
      client.subscribe(info, listener);
      return;
    }
    case 'unsubscribe':
      client.unSubscribe(info, listeners.get(r.subscription));
      return;
  }
  throw new Error(`unknown op ${r.op}`);
}

async function connect(r) {
  const client = new NacosNamingClient({ logger, serverList: r.server, namespace: r.namespace || 'public' });
  const deadline = Date.now() + r.timeoutMs;
  await client.ready();
  while ((await client.getServerStatus()) !== 'UP') {
    if (Date.now() > deadline) {
      await client.close();
      throw new Error(`not connected to ${r.server} in time`);
    }
    await sleep(20);
  }
  clients.set(r.client, client);
}

function toSDK({ cluster, ...instance }) {
  return { ...instance, clusterName: cluster };
}

function fromSDK(hosts) {
  return hosts.map(({ ip, port, weight, healthy, enabled, ephemeral, clusterName, metadata }) =>
    ({ ip, port, weight, healthy, enabled, ephemeral, cluster: clusterName, metadata }));
}

send({
  event: 'hello',
  version: require('nacos/package.json').version,
  lacks: Object.keys(optional).filter((op) => !(optional[op] in NacosNamingClient.prototype)),
});
const lines = readline.createInterface({ input: process.stdin });
lines.on('line', (line) => answer(JSON.parse(line)));
lines.on('close', () => process.exit(0)); // the SDK's timers would go on
