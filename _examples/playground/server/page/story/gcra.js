// GCRA, which makes the decisions of a token bucket from one instant.

import { bucket, cost, size, traffic } from "./bucket.js";
import { lit, say } from "./prose.js";
import { box, clock, label, line, plural, span } from "./svg.js";

const until = (d) => d.t + d.decisions[0].resetAfter; // the TAT after a request

// bound returns the most that can pass in any 10 s.
export const bound = (l) => size(l) + Math.ceil(10e6 / cost(l)) - 1;

export const gcra = {
  id: "gcra", name: "GCRA", gaugeName: "The same limit as a token bucket", gauge: bucket.gauge,
  length: 30, start: 8,
  limits: [{ algorithm: "gcra", quota: 1, period: 1, burst: 5 }],
  requests: traffic,
  rows: [{
    title: "the time that requests have used up", height: 96, max: 1, ticks: [],
    place: (d) => d.allowed ? 0.85 : 1,
    live(tape, area) {
      const [l] = tape.limits, [d] = tape.look(), y = area.top + 40, end = tape.now + d.resetAfter, far = tape.now + size(l) * cost(l), right = tape.width - 14;
      const wide = (a, b) => Math.max(0, Math.min(right, tape.x(b)) - tape.x(a));
      const drawn = [box(tape.x(tape.now), y, wide(tape.now, far), 28, "ahead")];
      tape.passed.forEach((p, i) => {
        const to = until(p), from = Math.max(p.t, to - cost(l));
        drawn.push(box(tape.x(from), y, wide(from, to), 28, i % 2 ? "rod" : "rod odd"));
      });
      if (tape.x(far) <= right) drawn.push(line(tape.x(far), y - 8, tape.x(far), y + 36, "limit most"));
      if (d.resetAfter > 0 && tape.x(end) <= right) drawn.push(line(tape.x(end), y - 5, tape.x(end), y + 33, "tip"), label(Math.min(tape.x(end), right - 30), y + 48, `TAT ${clock(end)}`, "middle strong"));
      return drawn;
    },
  }],
  say(tape) {
    const [l] = tape.limits, [{ resetAfter, remaining }] = tape.look();
    return `The TAT lies ${span(resetAfter)} ahead of now, and may lie ${size(l) * cost(l) / 1e6} s ahead. So ${plural(remaining, "request fits", "requests fit")} now.`;
  },
  tells: {
    lesson(tape) {
      const [l] = tape.limits, every = cost(l) / 1e6;
      return say`Each request that passes moves the ${lit("TAT", ".tip")} ${every} s later: a ${lit("rod", ".rod")} is the time of one token. The TAT may lie at most ${size(l) * every} s ahead of now, which is the ${lit("dashed mark", ".most")}: a request that would move it further is refused. The burst is how many pass at once; any 10 s hold at most ${size(l)} + ${Math.ceil(10 / every)} − 1 = ${bound(l)}.`;
    },
  },
  why: (d, { limits: [l] }) => d.allowed ? `It moved the TAT to ${clock(until(d))}.` : `Its rod would end at ${clock(until(d) + cost(l))}, but ${clock(d.t + size(l) * cost(l))} is the latest.`,
};
