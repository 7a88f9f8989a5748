// A Redis Streams consumer as a published article on building one in TypeScript describes it, written anew from that
// description; nothing of its text is copied.
//
// Taken from the description: bounded concurrency by a set of what is in flight (100); XREADGROUP with a COUNT from 10
// to 50 and a BLOCK; weighted queues in round robin; an XACK on its own after each message; a heartbeat that XCLAIMs
// what is in flight on an interval; a loop that recovers by XAUTOCLAIM; a sleep of 50 ms whenever the bound is reached;
// a shutdown that waits for what is in flight until a deadline; jitter on what is periodic. It does not XDEL: the
// stream grows.
//
// Not told there and chosen here: ioredis, with a connection of its own for the blocking reads; one queue, so that no
// BLOCK waits at an empty one while another has messages; the intervals below.
//
// `node article.js worker`, or `send FIRST COUNT SECONDS MODE`.

import { Redis } from "ioredis";
import { Effects, sleep } from "./effects";
import { chunks, send } from "./sending";

const GROUP = "workers";
const QUEUES: Record<string, number> = { bench: 1 }; // name -> weight
const CONSUMER = `worker-${process.pid}`;
const CONCURRENCY = Number(process.env.BENCH_CONCURRENCY);
const COUNT_MIN = 10;
const COUNT_MAX = 50;
const BLOCK_MS = 1_000;
const FULL_SLEEP_SECONDS = 0.05;
const LEASE_MS = 60_000; // as most others have
const HEARTBEAT_SECONDS = 20;
const RECOVERY_SECONDS = 30;
const SHUTDOWN_SECONDS = 25;
const SEND_AT_ONCE = 1_000;

type Entry = [id: string, fields: string[]];
type Read = [queue: string, entries: Entry[]][] | null;

class Consumer {
  private readonly redis = new Redis(process.env.BENCH_REDIS!);
  private readonly reader = new Redis(process.env.BENCH_REDIS!);
  private readonly effects = new Effects();
  private readonly inFlight = new Map<string, { queue: string; done: Promise<void> }>();
  private readonly rotation = Object.entries(QUEUES).flatMap(([queue, weight]) => Array<string>(weight).fill(queue));
  private turn = 0;
  private running = true;

  async run(): Promise<void> {
    for (const queue of Object.keys(QUEUES)) await makeGroup(this.redis, queue);
    void this.every(HEARTBEAT_SECONDS, () => this.heartbeat());
    void this.every(RECOVERY_SECONDS, () => this.recover());
    while (this.running) {
      if (this.inFlight.size >= CONCURRENCY) {
        await sleep(FULL_SLEEP_SECONDS);
        continue;
      }
      const queue = this.rotation[this.turn++ % this.rotation.length];
      const count = Math.max(COUNT_MIN, Math.min(COUNT_MAX, CONCURRENCY - this.inFlight.size));
      const read = (await this.reader.xreadgroup(
        "GROUP", GROUP, CONSUMER, "COUNT", count, "BLOCK", BLOCK_MS, "STREAMS", queue, ">",
      )) as Read;
      for (const [, entries] of read ?? []) for (const entry of entries) this.begin(queue, entry);
    }
    await this.drain();
  }

  stop(): void {
    this.running = false;
  }

  private begin(queue: string, [id, fields]: Entry): void {
    const done = this.work(queue, id, fields).finally(() => this.inFlight.delete(id));
    this.inFlight.set(id, { queue, done });
  }

  private async work(queue: string, id: string, fields: string[]): Promise<void> {
    const message = JSON.parse(fields[1]);
    this.effects.started(message.number);
    if (message.seconds) {
      await sleep(message.seconds);
      this.effects.ended(message.number);
    }
    await this.redis.xack(queue, GROUP, id);
  }

  private async heartbeat(): Promise<void> {
    for (const queue of Object.keys(QUEUES)) {
      const ids = [...this.inFlight].filter(([, held]) => held.queue === queue).map(([id]) => id);
      if (ids.length) await this.redis.xclaim(queue, GROUP, CONSUMER, 0, ...ids, "JUSTID");
    }
  }

  private async recover(): Promise<void> {
    for (const queue of Object.keys(QUEUES)) {
      const [, entries] = (await this.redis.xautoclaim(
        queue, GROUP, CONSUMER, LEASE_MS, "0-0", "COUNT", COUNT_MIN,
      )) as [string, Entry[]];
      for (const entry of entries) if (!this.inFlight.has(entry[0])) this.begin(queue, entry);
    }
  }

  private async every(seconds: number, work: () => Promise<void>): Promise<void> {
    while (this.running) {
      await sleep(seconds * (0.9 + Math.random() * 0.2));
      await work();
    }
  }

  private async drain(): Promise<void> {
    const held = [...this.inFlight.values()].map(({ done }) => done);
    await Promise.race([Promise.allSettled(held), sleep(SHUTDOWN_SECONDS)]);
    process.exit(0);
  }
}

async function makeGroup(redis: Redis, queue: string): Promise<void> {
  await redis.xgroup("CREATE", queue, GROUP, "0", "MKSTREAM").catch((error: Error) => {
    if (!error.message.includes("BUSYGROUP")) throw error;
  });
}

async function sender(first: number, count: number, seconds: number, mode: string): Promise<void> {
  const redis = new Redis(process.env.BENCH_REDIS!);
  await makeGroup(redis, "bench");
  const body = (number: number, duration: number) => JSON.stringify({ number, seconds: duration });
  const one = (number: number, duration: number) => redis.xadd("bench", "*", "body", body(number, duration));
  const many = async (numbers: number[], duration: number) => {
    for (const chunk of chunks(numbers, SEND_AT_ONCE)) {
      const pipeline = redis.pipeline();
      for (const number of chunk) pipeline.xadd("bench", "*", "body", body(number, duration));
      await pipeline.exec();
    }
  };
  await send({ one, many }, first, count, seconds, mode);
  redis.disconnect();
}

const [verb, first, count, seconds, mode] = process.argv.slice(2);
if (verb === "worker") {
  const consumer = new Consumer();
  process.once("SIGTERM", () => consumer.stop());
  void consumer.run();
} else {
  void sender(Number(first), Number(count), Number(seconds), mode);
}
