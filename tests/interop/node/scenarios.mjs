// What does amqplib, the client of Node.js, see of a broker?
//
// node scenarios.mjs URL SCENARIO: plays one scenario and prints what came out of it as one line of JSON. Whether that
// is right is for test_amqplib.py to say. Every wait ends with what was waited for or after PATIENCE milliseconds.

import { once } from "node:events";
import amqplib from "amqplib";

const PATIENCE = 10_000;
const [url, name] = process.argv.slice(2);

const within = (promise, what) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what} did not come`)), PATIENCE);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

const open = async (connection) => {
  const channel = await connection.createChannel();
  channel.on("error", () => {}); // a refusal also rejects the call that caused it
  return channel;
};

const queue = async (channel, args = {}) =>
  (await channel.assertQueue("", { exclusive: true, arguments: args })).queue;

const next = (channel, from) =>
  within(
    new Promise((resolve) => {
      const consumer = channel.consume(from, async (message) => {
        await channel.cancel((await consumer).consumerTag);
        resolve(message);
      });
    }),
    `a message in ${from}`,
  );

const refusal = async (call) => {
  try {
    await call;
    return "allowed";
  } catch (error) {
    return { code: error.code, text: error.message };
  }
};

const deadLettering = (dead) => ({ "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead });

const scenarios = {
  async publishAndGet(connection) {
    const channel = await open(connection);
    const work = await queue(channel);
    channel.sendToQueue(work, Buffer.from("body"), { contentType: "text/plain", headers: { n: 1, s: "text" } });
    const message = await channel.get(work, { noAck: true });
    const { contentType, headers } = message.properties;
    return { body: message.content.toString(), contentType, headers, then: await channel.get(work) };
  },

  async consume(connection) {
    const channel = await open(connection);
    const work = await queue(channel);
    const bodies = [];
    await within(
      new Promise((resolve) => {
        channel.consume(work, (message) => {
          bodies.push(message.content.toString());
          channel.ack(message);
          if (bodies.length === 3) resolve();
        });
        for (const body of ["1", "2", "3"]) channel.sendToQueue(work, Buffer.from(body));
      }),
      "three messages",
    );
    return bodies;
  },

  async confirm(connection) {
    const channel = await connection.createConfirmChannel();
    const work = await queue(channel);
    for (let number = 0; number < 50; number += 1) channel.sendToQueue(work, Buffer.from("body"));
    await within(channel.waitForConfirms(), "confirms");
    return (await channel.checkQueue(work)).messageCount;
  },

  async nack(connection) {
    const channel = await connection.createConfirmChannel();
    const full = await queue(channel, { "x-max-length": 1, "x-overflow": "reject-publish" });
    const send = (body) =>
      new Promise((resolve) => {
        channel.sendToQueue(full, Buffer.from(body), {}, (error) => resolve(error ? "nack" : "ack"));
      });
    return [await within(send("1"), "a confirm"), await within(send("2"), "a confirm")];
  },

  async mandatory(connection) {
    const channel = await open(connection);
    const returned = once(channel, "return");
    channel.publish("", "nowhere", Buffer.from("body"), { mandatory: true });
    const [message] = await within(returned, "the return");
    const { replyCode, replyText, routingKey } = message.fields;
    return { replyCode, replyText, routingKey, body: message.content.toString() };
  },

  async reject(connection) {
    const channel = await open(connection);
    const dead = await queue(channel);
    const work = await queue(channel, deadLettering(dead));
    channel.sendToQueue(work, Buffer.from("body"), { messageId: "id", persistent: true });
    channel.reject(await next(channel, work), false);
    const message = await next(channel, dead);
    const { messageId, deliveryMode, headers } = message.properties;
    const [{ queue: source, reason, count, exchange, "routing-keys": keys }] = headers["x-death"];
    return {
      body: message.content.toString(),
      messageId,
      deliveryMode,
      deaths: headers["x-death"].length,
      death: { source: source === work, reason, count, exchange, keys: keys[0] === work && keys.length },
      first: headers["x-first-death-reason"],
    };
  },

  async expire(connection) {
    const channel = await open(connection);
    const dead = await queue(channel);
    const work = await queue(channel, deadLettering(dead));
    channel.sendToQueue(work, Buffer.from("body"), { expiration: 50 });
    const { headers, expiration } = (await next(channel, dead)).properties;
    const [{ reason, "original-expiration": original }] = headers["x-death"];
    return { reason, original, expiration: expiration ?? null };
  },

  async priority(connection) {
    const channel = await open(connection);
    const work = await queue(channel, { "x-max-priority": 5 });
    for (const priority of [1, 5, 3]) channel.sendToQueue(work, Buffer.from(`${priority}`), { priority });
    const bodies = [];
    for (let turn = 0; turn < 3; turn += 1) bodies.push((await channel.get(work, { noAck: true })).content.toString());
    return bodies;
  },

  async refusals(connection) {
    const other = await amqplib.connect(url);
    other.on("error", () => {});
    const mine = await queue(await open(connection));
    const plain = `amqplib-${process.pid}-${Date.now()}`;
    await (await open(connection)).assertQueue(plain, { durable: false, autoDelete: true });
    const found = {
      missing: await refusal((await open(connection)).checkQueue(`${plain}-missing`)),
      different: await refusal((await open(connection)).assertQueue(plain, { durable: true, autoDelete: true })),
      locked: await refusal((await open(other)).checkQueue(mine)),
      reserved: await refusal((await open(connection)).assertQueue("amq.mine")),
      alive: Boolean(await queue(await open(connection))),
    };
    await (await open(connection)).deleteQueue(plain);
    await other.close();
    return found;
  },

  async prefetch(connection) {
    const channel = await open(connection);
    const work = await queue(channel);
    for (const body of ["1", "2", "3"]) channel.sendToQueue(work, Buffer.from(body));
    const found = [];
    let arrived = () => {};
    await channel.prefetch(2);
    await channel.consume(work, (message) => {
      found.push(message);
      arrived();
    });
    const count = (wanted) =>
      within(
        new Promise((resolve) => {
          arrived = () => found.length >= wanted && resolve();
          arrived();
        }),
        `${wanted} messages`,
      );
    await count(2);
    const ready = (await channel.checkQueue(work)).messageCount;
    const before = found.length;
    channel.ack(found[0]);
    await count(3);
    return { ready, before, after: found.length };
  },

  async cancelNotify(connection) {
    const channel = await open(connection);
    const work = await queue(channel);
    let told;
    const cancelled = new Promise((resolve) => {
      told = resolve;
    });
    await channel.consume(work, (message) => message === null && told("told"));
    // Its answer may come after the cancel, and has to come before the connection is closed.
    await (await open(connection)).deleteQueue(work);
    return within(cancelled, "the cancel");
  },
};

const connection = await amqplib.connect(url);
connection.on("error", () => {});
try {
  process.stdout.write(`${JSON.stringify(await scenarios[name](connection))}\n`);
} finally {
  await connection.close();
}
