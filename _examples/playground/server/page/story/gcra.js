// GCRA, which makes the decisions of a token bucket from one instant.

import { cost, size, traffic } from "./bucket.js";
import { lit, say } from "./prose.js";
import { box, clock, label, line, plural } from "./svg.js";

const until = (d) => d.t + d.decisions[0].resetAfter; // the TAT after a request

export const gcra = {
  id: "gcra", name: "GCRA",
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
    const tat = resetAfter > 0 ? `The TAT is ${clock(tape.now + resetAfter)}` : "The TAT is past";
    return `${tat}; a request may move it to ${clock(tape.now + size(l) * cost(l))} at most. So ${plural(remaining, "request fits", "requests fit")} now.`;
  },
  tells: {
    lesson(tape) {
      const [l] = tape.limits, every = cost(l) / 1e6, passed = tape.dots.filter((d) => d.allowed).length;
      return say`Each request that passes uses up ${every} s: a ${lit("rod", ".rod")} is added to the row, behind the last rod or at now. The end of the row is the ${lit("TAT", ".tip")} (theoretical arrival time), the only number that GCRA keeps. A request whose rod would end after the ${lit("dashed mark", ".most")}, ${size(l) * every} s ahead of now, is refused. Of these ${tape.dots.length} requests ${passed} pass, and a token bucket would let the same ones through.`;
    },
  },
  why: (d, { limits: [l] }) => d.allowed ? `It moved the TAT to ${clock(until(d))}.` : `Its rod would end at ${clock(until(d) + cost(l))}, but ${clock(d.t + size(l) * cost(l))} is the latest.`,
};
