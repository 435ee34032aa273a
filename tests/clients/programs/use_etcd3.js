// etcd3 of npm (@grpc/grpc-js): HOST PORT [CA CERT KEY].
"use strict";
const assert = require("node:assert/strict");
const fs = require("node:fs");
const { Etcd3, EtcdLeaseInvalidError } = require("etcd3");

async function keys(client) {
  await client.put("js/a").value("1");
  await client.put("js/b").value("2");
  assert.equal(await client.get("js/a").string(), "1");
  assert.deepEqual(await client.getAll().prefix("js/").strings(), { "js/a": "1", "js/b": "2" });
  const one = await client.if("js/a", "Value", "==", "1").then(client.put("js/a").value("3")).commit();
  const two = await client.if("js/a", "Value", "==", "1").then(client.put("js/a").value("4")).commit();
  assert.deepEqual([one.succeeded, two.succeeded], [true, false]);
  assert.equal((await client.delete().prefix("js/")).deleted, "2");
  assert.equal(await client.get("js/a").string(), null);
  const big = "x".repeat(1000000);
  await client.put("js/big").value(big);
  assert.equal(await client.get("js/big").string(), big);
}

async function compaction(client) {
  const revision = (await client.put("js/c").value("1")).header.revision;
  await client.kv.compact({ revision, physical: true });
  await assert.rejects(client.kv.compact({ revision }), /compacted/);
}

async function changes(client) {
  const watcher = await client.watch().prefix("js/w").create();
  const seen = [];
  const done = new Promise((resolve) => {
    watcher.on("put", (kv) => seen.push(`put ${kv.value}`));
    watcher.on("delete", () => { seen.push("delete"); resolve(); });
  });
  await client.put("js/w1").value("1");
  await client.put("js/w1").value("2");
  await client.delete().key("js/w1");
  await done;
  assert.deepEqual(seen, ["put 1", "put 2", "delete"]);
  await watcher.cancel();
}

async function leases(client) {
  const lease = client.lease(60);
  await lease.put("js/leased").value("x");
  await lease.keepaliveOnce();
  await lease.revoke();
  assert.equal(await client.get("js/leased").string(), null);
  await assert.rejects(lease.keepaliveOnce(), EtcdLeaseInvalidError);
}

async function locks(client) {
  const order = [];
  const hold = () => client.lock("js/lock").ttl(10).do(async () => {
    order.push("in");
    await new Promise((resolve) => setTimeout(resolve, 20));
    order.push("out");
  });
  await hold();
  await client.lock("js/lock").ttl(10).acquire().then(async (held) => {
    await assert.rejects(hold());
    await held.release();
  });
  await hold();
  assert.deepEqual(order, ["in", "out", "in", "out"]);
}

async function main(host, port, [ca, cert, key]) {
  const credentials = ca && {
    rootCertificate: fs.readFileSync(ca), certChain: fs.readFileSync(cert), privateKey: fs.readFileSync(key),
  };
  const client = new Etcd3({ hosts: `${ca ? "https" : "http"}://${host}:${port}`, credentials });
  for (const part of [keys, compaction, changes, leases, locks]) await part(client);
  client.close();
}

main(process.argv[2], process.argv[3], process.argv.slice(4)).catch((error) => {
  console.error(error);
  process.exit(1);
});
