// BullMQ: hashes and lists behind Lua scripts. `node bullmq.js worker`, or `send FIRST COUNT SECONDS MODE`.

import { Queue, Worker } from "bullmq";
import { Effects, sleep } from "./effects";
import { chunks, send } from "./sending";

const url = new URL(process.env.BENCH_REDIS!);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const SEND_AT_ONCE = 500;

async function worker(): Promise<void> {
  const effects = new Effects();
  const working = new Worker(
    "bench",
    async (job) => {
      effects.started(job.data.number);
      if (job.data.seconds) {
        await sleep(job.data.seconds);
        effects.ended(job.data.number);
      }
    },
    // Its jobs are fetched one by one, each with the end of the one before it: there is nothing to prefetch.
    { connection, concurrency: Number(process.env.BENCH_CONCURRENCY), removeOnComplete: { count: 0 } },
  );
  process.once("SIGTERM", () => void working.close().then(() => process.exit(0)));
}

async function sender(first: number, count: number, seconds: number, mode: string): Promise<void> {
  const queue = new Queue("bench", { connection, defaultJobOptions: { removeOnComplete: true, attempts: 5 } });
  await queue.waitUntilReady();
  const one = (number: number, duration: number) => queue.add("work", { number, seconds: duration });
  const many = async (numbers: number[], duration: number) => {
    for (const chunk of chunks(numbers, SEND_AT_ONCE)) {
      await queue.addBulk(chunk.map((number) => ({ name: "work", data: { number, seconds: duration } })));
    }
  };
  await send({ one, many }, first, count, seconds, mode);
  await queue.close();
}

const [verb, first, count, seconds, mode] = process.argv.slice(2);
void (verb === "worker" ? worker() : sender(Number(first), Number(count), Number(seconds), mode));
