// The records of effects.py, written from Node: sent at, first and last start (doubles), starts (64 bits), ended at.

import * as fs from "node:fs";

const RECORD = 40;

export class Effects {
  private readonly file = fs.openSync(process.env.BENCH_EFFECTS!, "r+");
  private readonly records = fs.readFileSync(process.env.BENCH_EFFECTS!); // what a process before this one wrote

  sending(number: number): void {
    this.records.writeDoubleLE(now(), number * RECORD);
    fs.writeSync(this.file, this.records, number * RECORD, 8, number * RECORD);
  }

  ended(number: number): void {
    const at = number * RECORD + 32;
    this.records.writeDoubleLE(now(), at);
    fs.writeSync(this.file, this.records, at, 8, at);
  }

  started(number: number): void {
    const at = number * RECORD;
    const time = now();
    if (this.records.readDoubleLE(at + 8) === 0) this.records.writeDoubleLE(time, at + 8);
    this.records.writeDoubleLE(time, at + 16);
    this.records.writeUInt32LE(this.records.readUInt32LE(at + 24) + 1, at + 24);
    fs.writeSync(this.file, this.records, at + 8, 24, at + 8);
  }
}

export const sleep = (seconds: number): Promise<void> => new Promise((done) => setTimeout(done, seconds * 1000));

function now(): number {
  return (performance.timeOrigin + performance.now()) / 1000; // finer than Date.now()
}
