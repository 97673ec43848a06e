// The scenario on npm's node-zookeeper-client: the same claims as the other programs make, told the
// same way (telling.py). That client knows no containers and no znodes with a time to live.
'use strict';

const assert = require('node:assert');
const readline = require('node:readline');
const { promisify } = require('node:util');
const zookeeper = require('node-zookeeper-client');

const { ACL, CreateMode, Event, Exception, Id, Permission } = zookeeper;
const PATIENCE_MS = 40000;
const [hosts, root] = process.argv.slice(2);
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

function done(step) {
  process.stdout.write(`step ${step}\n`);
}

async function within(promise, what) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`waited in vain for ${what}`)), PATIENCE_MS);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

// The methods of a client, each as a promise. getData gives its data only.
function promised(client) {
  const bound = {};
  for (const name of ['create', 'remove', 'exists', 'getData', 'getChildren', 'getACL', 'setACL']) {
    bound[name] = promisify(client[name].bind(client));
  }
  bound.setData = promisify(client.setData.bind(client));
  bound.commit = (transaction) => promisify(transaction.commit.bind(transaction))();
  return bound;
}

function connect(options) {
  const client = zookeeper.createClient(hosts, { sessionTimeout: 10000, retries: 0, ...options });
  const connected = new Promise((resolve) => client.once('connected', resolve));
  client.connect();
  return within(connected, 'the connection').then(() => client);
}

function close(client) {
  const closed = new Promise((resolve) => client.once('disconnected', resolve));
  client.close();
  return within(closed, 'the end of the session');
}

function refused(code, promise) {
  return assert.rejects(promise, (error) => error.getCode && error.getCode() === code);
}

// Set a watch with `arm`, cause the event with `cause`; the event.
async function seen(arm, cause, what) {
  let watcher;
  const event = new Promise((resolve) => {
    watcher = resolve;
  });
  await arm(watcher);
  await cause();
  return within(event, what);
}

function owner(stat) {
  return stat.ephemeralOwner.toString('hex');
}

async function kinds(client, keeper) {
  assert.strictEqual(await keeper.create(root), root);
  await refused(Exception.NODE_EXISTS, keeper.create(root));
  const ephemeral = `${root}/ephemeral`;
  const session = client.getSessionId().toString('hex');
  await keeper.create(ephemeral, CreateMode.EPHEMERAL);
  assert.strictEqual(owner(await keeper.exists(ephemeral)), session);
  await refused(Exception.NO_CHILDREN_FOR_EPHEMERALS, keeper.create(`${ephemeral}/child`));
  const first = await keeper.create(`${root}/s-`, CreateMode.PERSISTENT_SEQUENTIAL);
  const second = await keeper.create(`${root}/s-`, CreateMode.EPHEMERAL_SEQUENTIAL);
  assert.strictEqual(Number(second.slice(-10)) - Number(first.slice(-10)), 1);
  assert.strictEqual(owner(await keeper.exists(first)), '0'.repeat(16));
  assert.strictEqual(owner(await keeper.exists(second)), session);
}

async function versions(keeper) {
  const path = `${root}/versions`;
  await keeper.create(path, Buffer.from('zero'));
  assert.strictEqual((await keeper.setData(path, Buffer.from('one'), 0)).version, 1);
  await refused(Exception.BAD_VERSION, keeper.setData(path, Buffer.from('two'), 5));
  assert.strictEqual((await keeper.getData(path)).toString(), 'one');
  await refused(Exception.BAD_VERSION, keeper.remove(path, 5));
  await refused(Exception.NOT_EMPTY, keeper.remove(root));
  await keeper.remove(path, 1);
  await refused(Exception.NO_NODE, keeper.getData(path));
}

async function watches(client, keeper) {
  const path = `${root}/w`;
  const armExists = (watcher) =>
    new Promise((resolve) => client.exists(path, watcher, () => resolve()));
  const armData = (watcher) =>
    new Promise((resolve) => client.getData(path, watcher, () => resolve()));
  const armChildren = (watcher) =>
    new Promise((resolve) => client.getChildren(path, watcher, () => resolve()));

  let event = await seen(armExists, () => keeper.create(path), 'a creation');
  assert.deepStrictEqual([event.type, event.path], [Event.NODE_CREATED, path]);
  event = await seen(armData, () => keeper.setData(path, Buffer.from('x')), 'a change');
  assert.deepStrictEqual([event.type, event.path], [Event.NODE_DATA_CHANGED, path]);
  event = await seen(armChildren, () => keeper.create(`${path}/child`), 'a child');
  assert.deepStrictEqual([event.type, event.path], [Event.NODE_CHILDREN_CHANGED, path]);
  await keeper.remove(`${path}/child`);
  event = await seen(armExists, () => keeper.remove(path), 'a deletion');
  assert.deepStrictEqual([event.type, event.path], [Event.NODE_DELETED, path]);
}

async function multi(client, keeper) {
  const path = `${root}/multi`;
  await keeper.commit(
    client.transaction().create(path, Buffer.from('')).check(path).setData(path, Buffer.from('set')),
  );
  assert.strictEqual((await keeper.getData(path)).toString(), 'set');
  await refused(
    Exception.NO_NODE,
    keeper.commit(client.transaction().remove(path).check(`${root}/absent`)),
  );
  assert.strictEqual((await keeper.getData(path)).toString(), 'set');
}

async function acl(client, keeper) {
  const path = `${root}/acl`;
  await refused(Exception.INVALID_ACL, keeper.create(path, ACL.CREATOR_ALL_ACL));
  client.addAuthInfo('digest', Buffer.from('user:password'));
  await keeper.create(path, Buffer.from('secret'), ACL.CREATOR_ALL_ACL, CreateMode.PERSISTENT);
  const [given] = await keeper.getACL(path);
  assert.deepStrictEqual([given.permission, given.id.scheme], [Permission.ALL, 'digest']);
  const stranger = await connect({});
  await refused(Exception.NO_AUTH, promised(stranger).getData(path));
  await close(stranger);
  const anyone = new ACL(Permission.READ, new Id('world', 'anyone'));
  await keeper.setACL(path, [anyone], 0);
  assert.strictEqual((await keeper.getData(path)).toString(), 'secret');
}

async function reconnect(client, keeper) {
  const path = `${root}/watched`;
  const session = client.getSessionId().toString('hex');
  await keeper.create(path);
  const lose = async () => {
    process.stdout.write(`session 0x${session.replace(/^0+/, '')}\n`);
    assert.strictEqual((await lines.next()).value, 'killed');
  };
  const back = new Promise((resolve) => client.once('connected', resolve));
  const event = await seen(
    (watcher) => new Promise((resolve) => client.getData(path, watcher, () => resolve())),
    lose,
    'what changed meanwhile',
  );
  assert.deepStrictEqual([event.type, event.path], [Event.NODE_DATA_CHANGED, path]);
  await within(back, 'the connection to another member');
  assert.strictEqual((await keeper.getData(path)).toString(), 'changed meanwhile');
  assert.strictEqual(client.getSessionId().toString('hex'), session);
  assert.strictEqual(owner(await keeper.exists(`${root}/ephemeral`)), session);
}

async function main() {
  const client = await connect({});
  const keeper = promised(client);
  done('connect');
  await kinds(client, keeper);
  done('kinds');
  await versions(keeper);
  done('versions');
  await watches(client, keeper);
  done('watches');
  await multi(client, keeper);
  done('multi');
  await acl(client, keeper);
  done('acl');
  await reconnect(client, keeper);
  done('reconnect');
  await close(client);
  done('close');
}

main().then(
  () => process.exit(0),
  (error) => {
    process.stderr.write(`${error.stack}\n`);
    process.exit(1);
  },
);
