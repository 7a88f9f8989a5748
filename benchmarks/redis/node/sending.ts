// The sending verbs of peer.py: send FIRST COUNT SECONDS MODE.

import { Effects, sleep } from "./effects";

const PACE_SECONDS = 0.02;

export interface Sender {
  one(number: number, seconds: number): Promise<unknown>;
  many?(numbers: number[], seconds: number): Promise<unknown>;
}

export async function send(sender: Sender, first: number, count: number, seconds: number, mode: string): Promise<void> {
  const effects = new Effects();
  const rest = Array.from({ length: count - 1 }, (_, step) => first + 1 + step);
  if (mode === "paced") effects.sending(first);
  await sender.one(first, seconds); // opens connections, and is not timed
  const begun = performance.now();
  if (mode === "many") {
    await sender.many!(rest, seconds);
  } else {
    for (const [step, number] of rest.entries()) {
      if (mode === "paced") {
        await sleep(Math.max(0, (step + 1) * PACE_SECONDS - (performance.now() - begun) / 1000));
        effects.sending(number);
      }
      await sender.one(number, seconds);
    }
  }
  console.log((performance.now() - begun) / 1000);
}

export function chunks(numbers: number[], size: number): number[][] {
  return Array.from({ length: Math.ceil(numbers.length / size) }, (_, n) => numbers.slice(n * size, (n + 1) * size));
}
