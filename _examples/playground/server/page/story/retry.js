// Three clients with the same work: one waits as long as Retry-After says, one hammers, and one waits
// as RateLimit says, before it is refused.

import { say } from "./prose.js";
import { clock, label } from "./svg.js";
import { Ledger, second } from "./world.js";

const jobs = 12;    // of each client
const next = 50e3;  // after so many µs a client sends the next job
const clients = [   // how long a client waits, by the last decision
  { title: "waits as Retry-After says", wait: (d) => (d.allowed ? next : d.retryAfter), why: "It sleeps until then." },
  { title: "tries every 0.2 s", wait: (d) => (d.allowed ? next : 200e3), why: "It does not read Retry-After." },
  { title: "waits as RateLimit says", wait: (d) => (d.remaining > 0 ? next : d.nextAfter), why: "" },
];

// work returns when a client sends requests until all its jobs are done.
function work({ limits, end }, who) {
  const ledger = new Ledger(limits), sent = [];
  for (let t = second, done = 0; done < jobs && t < end && sent.length < 90;) {
    sent.push({ t: t / second, user: String(who), who });
    const { allowed, decisions: [decision] } = ledger.take(t);
    if (allowed) done++;
    t += clients[who].wait(decision);
  }
  return sent;
}

const counts = (dots, i) => [true, false].map((yes) => dots.filter((d) => d.who === i && d.allowed === yes).length);
const end = (dots, i) => dots.findLast((d) => d.who === i && d.allowed).t;

export const retry = {
  id: "retry", name: "three clients", fixed: true, left: 8,
  length: 14, start: 14,
  limits: [{ algorithm: "gcra", quota: 1, period: 1, burst: 3 }],
  requests: (tape) => clients.flatMap((_, i) => work(tape, i)),
  changes: true, // the requests depend on the limit
  rows: clients.map(({ title }, i) => ({
    title, height: 30, max: 1, ticks: [],
    place: (d) => d.who === i ? (d.allowed ? 0.25 : 0.75) : undefined,
    live: (tape, area) => {
      const [yes, no] = counts(tape.past, i);
      return [label(tape.width - 14, area.top - 12, tape.width < 400 ? `${no} refused` : `${yes} of ${jobs} jobs${yes === jobs ? ` by ${clock(end(tape.past, i))}` : ""}, ${no} refused`, "end soft title")];
    },
  })),
  say: ({ past }) => `The client that waits has sent ${past.filter((d) => d.who === 0).length} requests, the one that hammers ${past.filter((d) => d.who === 1).length}, and the one that reads RateLimit ${past.filter((d) => d.who === 2).length}.`,
  tells: {
    lesson({ dots }) {
      const [a, b, c] = clients.map((_, i) => counts(dots, i)[1]), late = Math.round(end(dots, 1) / 1e5) - Math.round(end(dots, 0) / 1e5);
      return say`The client that hammers is done ${late > 0 ? `${(late / 10).toFixed(1)} s later` : "at the same time"}, and ${b} of its requests are refused: work for both sides, and with a penalty, a ban. The client that waits has ${a} refused. The third has ${c}: each response says when the next fits.`;
    },
  },
  why: (d) => d.allowed ? "A job is done." : clients[d.who].why,
};
