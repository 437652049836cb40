// GCRA, which makes the decisions of a token bucket from one instant. The upper row is the bucket,
// and the lower one the ruler: both show when the bucket is full again, one below the other.

import { cost, level, size, tokens, traffic } from "./bucket.js";
import { lit, say } from "./prose.js";
import { box, clock, label, line, path, plural } from "./svg.js";

const until = (d) => d.t + d.decisions[0].resetAfter; // the TAT after a request
const more = (l) => Math.ceil(10e6 / cost(l)) - 1;     // what passes in 10 s after the burst
const tenths = (us) => (Math.floor(us / 1e5 + 1e-6) / 10).toFixed(1);

// bound returns the most that can pass in any 10 s.
export const bound = (l) => size(l) + more(l);

export const gcra = {
  id: "gcra", name: "GCRA",
  length: 30, start: 8, clock: (t) => `${tenths(t)} s`,
  limits: [{ algorithm: "gcra", quota: 1, period: 1, burst: 5 }],
  requests: traffic,
  rows: [{
    title: "1. the bucket: its tokens", height: 96, max: 10, limit: "burst", called: "bucket size",
    place: (d, { limits: [l] }) => tokens(l, d.decisions[0]),
    live(tape, area) {
      const [l] = tape.limits, [d] = tape.look(), full = tape.x(tape.now + d.resetAfter);
      if (full > tape.width - 14 || d.resetAfter <= 0) return level(tape, area);
      return [...level(tape, area), path([[tape.x(tape.now), area.y(tokens(l, d))], [full, area.y(size(l))], [full, area.bottom + 48]], "forecast")];
    },
  }, {
    title: "2. the ruler: a rod for each token", height: 60, max: 1, ticks: [],
    place: () => undefined,
    live(tape, area) {
      const [l] = tape.limits, [d] = tape.look(), y = area.top + 8, end = tape.now + d.resetAfter, far = tape.now + size(l) * cost(l), right = tape.width - 14;
      const rod = (a, b, kind) => box(tape.x(a), y, Math.max(0, Math.min(right, tape.x(b)) - tape.x(a)), 28, kind);
      const drawn = [rod(tape.now, far, "ahead"), ...tape.passed.map((p, i) => rod(Math.max(p.t, until(p) - cost(l)), until(p), i % 2 ? "rod" : "rod odd"))];
      if (tape.x(far) <= right) drawn.push(line(tape.x(far), y - 8, tape.x(far), y + 36, "limit most"));
      if (d.resetAfter > 0 && tape.x(end) <= right) drawn.push(line(tape.x(end), y - 5, tape.x(end), y + 33, "tip"), label(Math.min(tape.x(end) - 3, right - 66), y + 46, `TAT ${clock(end)}`, "strong"));
      return drawn;
    },
  }],
  say(tape) {
    const [l] = tape.limits, [{ resetAfter, remaining }] = tape.look(), all = size(l) * cost(l), used = Math.ceil(resetAfter / 1e5 - 1e-6) * 1e5;
    return `The TAT lies ${tenths(used)} s ahead of now, and may lie ${tenths(all)} s ahead. So ${tenths(all - used)} s are free: ${plural(remaining, "request fits", "requests fit")}, ${cost(l) / 1e6} s each.`;
  },
  tells: {
    bucket(tape) {
      const [l] = tape.limits, [{ remaining, resetAfter }] = tape.look();
      return say`This is the bucket of scene 4: ${remaining} of ${size(l)} tokens now. At one token every ${cost(l) / 1e6} s it is ${lit("full", ".forecast, .tip")} at ${clock(tape.now + resetAfter)}. GCRA keeps only this time, called TAT (theoretical arrival time).`;
    },
    ruler({ limits: [l] }) {
      const every = cost(l) / 1e6;
      return say`A ${lit("rod", ".rod")} is the ${every} s of one token. A request that passes adds a rod, so the ${lit("TAT", ".tip")} moves ${every} s later. An empty bucket is ${plural(size(l), "rod")}, up to the ${lit("dashed mark", ".most")}. A rod that would end behind it does not fit: the request is refused.`;
    },
    most({ limits: [l] }) {
      return say`Any 10 s hold at most ${bound(l)}: ${size(l)} at once (the burst), then ${more(l)} more, one every ${cost(l) / 1e6} s. A burst of 10 would allow ${10 + more(l)}.`;
    },
  },
  why: (d, { limits: [l] }) => d.allowed ? `It moved the TAT to ${clock(until(d))}.` : `Its rod would end at ${clock(until(d) + cost(l))}, but ${clock(d.t + size(l) * cost(l))} is the latest.`,
};
