// A concurrency limit: how many requests of a key run at once.

import { every, slots } from "./edge.js";
import { lit, say } from "./prose.js";
import { box, clock, plural } from "./svg.js";

// lanes gives each request that passed the lowest lane in which none runs.
function lanes({ dots }) {
  const until = [], of = new Map();
  for (const d of dots) {
    if (!d.allowed || d.ends) continue;
    let lane = until.findIndex((t) => t <= d.t);
    if (lane < 0) lane = until.length;
    until[lane] = d.t + d.lasts;
    of.set(d, lane);
  }
  return of;
}

const running = (tape) => tape.passed.filter((d) => d.t + d.lasts > tape.now).length;

export const flights = {
  id: "flights", name: "requests in flight", gaugeName: "The requests that run now",
  length: 30, start: 12, own: { lasts: 4e6 },
  limits: [{ algorithm: "in-flight", quota: 3, period: 60 }],
  requests: [...every(6, 1, 9).map((t) => ({ t, lasts: 1 })), ...every(6, 10, 13).map((t) => ({ t, lasts: 7 })), ...every(5, 14, 19).map((t) => ({ t, lasts: 1 })), ...every(5, 20, 26).map((t) => ({ t, lasts: 2.5 }))],
  rows: [{
    title: "requests that run", height: 130, max: 8, limit: "quota",
    place: (d, tape) => d.allowed ? lanes(tape).get(d) + 0.5 : tape.limits[0].quota + 0.8,
    live(tape, area) {
      const of = lanes(tape), half = Math.min(7, (area.y(0) - area.y(1)) / 2 - 1);
      return tape.passed.flatMap((d) => {
        const y = area.y(of.get(d) + 0.5) - half, end = Math.min(tape.end, d.t + d.lasts), a = tape.x(d.t);
        return [box(a, y, tape.x(end) - a, 2 * half, "stay"), box(a, y, tape.x(Math.min(tape.now, end)) - a, 2 * half, "stayed")];
      });
    },
  }],
  gauge: (tape, w, h) => slots(w, h, tape.limits[0].quota, running(tape), `${running(tape)} of ${tape.limits[0].quota}`, "in flight"),
  say: (tape) => `${plural(running(tape), "request runs", "requests run")} now, of at most ${tape.limits[0].quota}.`,
  tells: {
    lesson({ dots, limits: [{ quota }] }) {
      const no = dots.filter((d) => !d.allowed && !d.ends), slow = no.filter((d) => d.t >= 10e6 && d.t < 18e6).length;
      return say`Quick requests hardly meet. From 10 s on requests are ${lit("slow", ".stayed")} and run at the same time, so ${slow} of the ${no.length} refusals fall into the next 8 s, though the rate is hardly higher. When ${quota} run, nobody knows when the first will end: the refusal has no Retry-After.`;
    },
  },
  describe: (d) => d.ends ? "" : `Request ${d.n + 1}, at ${clock(d.t)}: ` + (d.allowed ? `passed; it runs until ${clock(d.t + d.lasts)}.` : "refused. As many as the limit allows were running."),
};
