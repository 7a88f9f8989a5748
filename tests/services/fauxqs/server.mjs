// fauxqs as a process of its own: `node server.mjs PORT FOLDER`, where 0 lets the system choose the port, and FOLDER is
// the one in which `npm ci` put the package. Its own start script listens on every address of the machine; this one on
// loopback alone. SIGHUP closes the port and every connection, SIGUSR2 listens on it again: what the service holds lives
// on meanwhile. It ends with its input, where that is a pipe.

import { fstatSync } from "node:fs";
import { register } from "node:module";
import { pathToFileURL } from "node:url";

const [port, folder] = process.argv.slice(2);
const part = (path) => import(pathToFileURL(`${folder}/node_modules/fauxqs/dist/${path}`));

// The package keeps data in SQLite where it is asked to, which is never here; but it imports what Node has since 22.5.
const withoutSqlite = `export const resolve = (name, context, next) => name === "node:sqlite"
  ? { url: "data:text/javascript,export class DatabaseSync {}", shortCircuit: true } : next(name, context);`;
await import("node:sqlite").catch(() => register(`data:text/javascript,${encodeURIComponent(withoutSqlite)}`));

const { buildApp } = await part("app.js");
const { SqsStore } = await part("sqs/sqsStore.js");
const { SnsStore } = await part("sns/snsStore.js");
const { S3Store } = await part("s3/s3Store.js");

const stores = { sqsStore: new SqsStore(), snsStore: new SnsStore(), s3Store: new S3Store() };
stores.sqsStore.host = undefined; // a queue's URL has the host that was asked for it, not a name to be looked up

async function listen(port) {
  const app = buildApp({ logger: false, stores });
  app.post("/_clean", async () => {
    for (const store of Object.values(stores)) store.purgeAll();
    return {};
  });
  await app.listen({ port, host: "127.0.0.1" });
  console.log(`listening on ${app.server.address().port}`);
  return app;
}

setInterval(() => {}, 1 << 30); // Node ends when nothing is left to wait for, as while it is away
if (fstatSync(0).isFIFO()) process.stdin.on("end", () => process.exit()).resume();
let app = await listen(Number(port));
const kept = app.server.address().port;
process.on("SIGHUP", async () => {
  await app.close();
  console.log("away");
});
process.on("SIGUSR2", async () => {
  app = await listen(kept);
});
