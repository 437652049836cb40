// Two clients with the same work: one waits as long as Retry-After says, the other hammers.

import { say } from "./prose.js";
import { clock, label } from "./svg.js";
import { Ledger, second } from "./world.js";

const jobs = 12;       // of each client
const again = 0.2;     // after so many s the hammering client tries again
const names = ["honours Retry-After", "tries every 0.2 s"];

// work returns when a client sends requests until all its jobs are done.
function work({ limits, end }, who) {
  const ledger = new Ledger(limits), sent = [];
  for (let t = second, done = 0; done < jobs && t < end && sent.length < 90;) {
    sent.push({ t: t / second, user: String(who), who });
    const { allowed, decisions: [{ retryAfter }] } = ledger.take(t);
    if (allowed) done++;
    t += allowed ? 50e3 : who ? again * second : retryAfter;
  }
  return sent;
}

const counts = (dots, i) => [dots.filter((d) => d.who === i && d.allowed).length, dots.filter((d) => d.who === i && !d.allowed).length];

export const retry = {
  id: "retry", name: "two clients", fixed: true, left: 8,
  length: 14, start: 14,
  limits: [{ algorithm: "gcra", quota: 1, period: 1, burst: 3 }],
  requests: (tape) => [...work(tape, 0), ...work(tape, 1)],
  changes: true, // the requests depend on the limit
  rows: names.map((title, i) => ({
    title, height: 40, max: 1, ticks: [],
    place: (d) => d.who === i ? (d.allowed ? 0.25 : 0.75) : undefined,
    live: (tape, area) => {
      const [yes, no] = counts(tape.past, i), last = tape.past.findLast((d) => d.who === i && d.allowed);
      return [label(tape.width - 14, area.top - 12, tape.width < 400 ? `${yes} done, ${no} refused` : `${yes} of ${jobs} jobs${yes === jobs ? ` by ${clock(last.t)}` : ""}, ${no} refused`, "end soft title")];
    },
  })),
  say(tape) {
    const [[a, b], [c, d]] = [0, 1].map((i) => counts(tape.past, i));
    return `The client that waits has sent ${a + b} requests, and the one that hammers ${c + d}.`;
  },
  tells: {
    lesson({ dots }) {
      const [[, b], [c, d]] = [0, 1].map((i) => counts(dots, i));
      const end = (i) => dots.findLast((x) => x.who === i && x.allowed).t, late = end(1) - end(0);
      return say`Both do ${jobs} jobs, and hammering gains nothing: it is done ${late > 0 ? `${(late / second).toFixed(1)} s later` : "at the same time"}, with ${d} of ${c + d} requests refused. The client that waits has ${b} refused: it sends the next job at once, and each refusal tells it how long to wait.`;
    },
  },
  why: (d) => d.allowed ? "A job is done." : d.who ? "This client does not read Retry-After." : "This client sleeps until then.",
};
