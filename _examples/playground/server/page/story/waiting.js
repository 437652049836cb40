// A leaky bucket as a queue: requests wait, and leave one by one.

import { every } from "./traffic.js";
import { lit, say } from "./prose.js";
import { slots } from "./slots.js";
import { line, plural, span } from "./svg.js";
import { second } from "./world.js";

const queue = (tape) => tape.passed.filter((d) => d.t + d.wait + tape.limits[0].period > tape.now); // the first may be at the server
const here = (tape) => queue(tape).filter((d) => d.t + d.wait > tape.now);

export const waiting = {
  id: "waiting", name: "a leaky bucket as a queue", gaugeName: "The queue now",
  length: 20, start: 5,
  limits: [{ algorithm: "leaky-bucket", quota: 1, period: 1, burst: 6 }], within: 5,
  requests: [...every(9, 2, 3.8), ...every(4, 8, 10), ...every(8, 12, 13.6)],
  rows: [{
    title: "goes ahead", height: 70, max: 1, ticks: [],
    place: (d) => d.allowed ? 0.15 : 0.85,
    x: (d, tape) => tape.x(d.t + d.wait),
    live: (tape, area) => tape.passed.map((d) => line(tape.x(d.t), 46, tape.x(d.t + d.wait), area.y(0.15) - 6, "way")),
  }],
  gauge(tape, w, h) {
    const all = queue(tape), { burst } = tape.limits[0];
    return slots(w, h, burst, all.map((d) => d.t + d.wait > tape.now ? "waits" : "passed"), `${all.length} of ${burst} taken`, "server");
  },
  tells: {
    lesson(tape) {
      const [l] = tape.limits, longest = Math.max(0, ...tape.passed.map((d) => d.wait)), no = tape.past.filter((d) => !d.allowed).length;
      return say`Requests leave the queue ${l.period / second} s apart, ${lit("however they arrive", ".way")}. So far the longest wait is ${(longest / second).toFixed(1)} s, and ${no} ${no === 1 ? "was" : "were"} refused.`;
    },
  },
  say(tape) {
    const n = here(tape), next = Math.min(...n.map((d) => d.t + d.wait));
    return n.length ? `${plural(n.length, "request waits", "requests wait")}. The next goes ahead in ${span(next - tape.now)}.` : "No request waits.";
  },
  why(d, tape) {
    const [{ burst, period }] = tape.limits, wait = d.decisions[0].resetAfter;
    if (d.allowed) return d.wait ? "It keeps its place." : "No request was before it.";
    return wait > (burst - 1) * period ? `All ${burst} places are taken.` : `It would wait ${span(wait)}, more than ${span(tape.within)}.`;
  },
};
