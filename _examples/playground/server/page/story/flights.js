// A concurrency limit: how many requests of a key run at once.

import { slots } from "./slots.js";
import { every } from "./traffic.js";
import { bars, lanes } from "./lanes.js";
import { lit, say } from "./prose.js";
import { clock, plural } from "./svg.js";

const ends = (d) => d.t + d.lasts;
const running = (tape) => tape.passed.filter((d) => d.t + d.lasts > tape.now).length;

export const flights = {
  id: "flights", name: "requests in flight", gaugeName: "The requests that run now",
  length: 30, start: 15, own: { lasts: 2e6 },
  limits: [{ algorithm: "in-flight", quota: 3, period: 60 }],
  requests: [...every(6, 1, 9).map((t) => ({ t, lasts: 1 })), ...every(6, 9, 17).map((t) => ({ t, lasts: 7 })), ...every(7, 17, 26.33).map((t) => ({ t, lasts: 1 }))],
  rows: [{
    title: "requests that run", height: 130, max: 8, limit: "quota",
    place: (d, tape) => d.allowed ? lanes(tape, ends).get(d) + 0.5 : tape.limits[0].quota + 0.8,
    live: (tape, area) => bars(tape, area, ends, 7),
  }],
  gauge: (tape, w, h) => slots(w, h, tape.limits[0].quota, Array(running(tape)).fill("passed"), `${running(tape)} of ${tape.limits[0].quota}`, "in flight"),
  say: (tape) => `${plural(running(tape), "request runs", "requests run")} now, of at most ${tape.limits[0].quota}.`,
  tells: {
    lesson({ dots }) {
      const no = dots.filter((d) => !d.allowed && !d.ends), slow = no.filter((d) => d.t >= 9e6 && d.t < 17e6).length;
      return say`The requests come every 1.3 s. From 9 to 17 s they are ${lit("slow", ".stayed")}, so more of them run at once: ${slow} of the ${no.length} refusals fall into these 8 s. Nobody knows when the first will end, so a refusal cannot say when to come again.`;
    },
  },
  describe: (d) => d.ends ? "" : `Request ${d.n + 1}, at ${clock(d.t)}: ` + (d.allowed ? `passed; it runs until ${clock(d.t + d.lasts)}.` : "refused. As many as the limit allows were running."),
};
