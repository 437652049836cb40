// What the time line of an algorithm shows, as the story draws it.

import { at, box, label, line, mark, path, pieces } from "./story/svg.js";

const day = 86400e6; // µs

// lane returns a lane of the Stream for one user of a Record, between two heights of the picture.
// apart says whether another algorithm decides a dot differently.
export function lane(record, user, top, height, stream, apart) {
  const { head, dots, period, cost, bucket } = record, { algorithm, capacity } = head, small = height < 60, level = record.levels[user];
  const high = top + (small ? 18 : 20), low = top + height - (small ? 7 : 12), most = Math.max(...record.limits.map((l) => l.v)), ruler = algorithm === "gcra";
  const y = (v) => low - (low - high) * Math.min(1, Math.max(0, v / most)), x = (t) => stream.x(t);
  const rod = Math.max(4, Math.min(28, low - high - 12)), ahead = capacity * cost; // of the ruler of GCRA
  const spent = () => dots.filter((d) => d.ok && d.user === user);

  // windows returns when windows begin, and how long they are.
  function windows(from, until) {
    if (algorithm === "anchored-window") return [[...new Set(spent().map((d) => d.t + d.reset - period))], period];
    const each = { "fixed-window": period, "calendar": day }[algorithm];
    return each ? [Array.from({ length: Math.ceil((until - from) / each) + 1 }, (_, i) => (Math.floor(from / each) + i) * each), each] : [[], 0];
  }

  function boxes(from, until, now) {
    const [starts, length] = windows(from, until);
    return starts.map((t) => box(x(Math.max(from, t)) + 1, y(capacity) - 3, x(Math.min(until, t + length)) - x(Math.max(from, t)) - 2, low - y(capacity) + 3, t <= now && now < t + length ? "box open" : "box"));
  }

  // points returns the level up to now: of a meter it is a slope, and of a window a step.
  function points(now) {
    const all = [];
    for (const s of level) {
      const last = all.at(-1);
      if (s.t > now) {
        if (last && head.meter && s.t > last.t) all.push({ t: now, v: last.v + (s.v - last.v) * (now - last.t) / (s.t - last.t) });
        break;
      }
      if (last && !head.meter) all.push({ t: s.t, v: last.v });
      all.push(s);
    }
    if (all.length) all.push({ t: now, v: all.at(-1).v });
    return all.map(({ t, v }) => [x(t), y(v)]);
  }

  const levels = (now) => pieces(points(now)).flatMap((p) => [path([...p, [p.at(-1)[0], low], [p[0][0], low]], "water"), path(p, "estimate")]);

  // future draws what comes if nothing else is spent: how a meter drains, when a window ends, and
  // when the next request fits if none fits now.
  function future(now) {
    const left = record.left[user];
    if (!left || left.idle || left.reset <= now) return [];
    const v = level.findLast((s) => s.t <= now)?.v ?? 0, way = [[x(now), y(v)]], drawn = [];
    if (head.meter) way.push([x(left.reset), y(bucket ? capacity : 0)]);
    else if (algorithm === "sliding-log") {
      let rest = v;
      for (const d of spent()) if (d.t <= now && d.t + period > now) way.push([x(d.t + period), y(rest)], [x(d.t + period), y(rest -= d.count)]);
    } else if (algorithm !== "sliding-window") way.push([x(left.reset), y(v)], [x(left.reset), y(0)]);
    if (way.length > 1) drawn.push(path(way, "forecast"));
    if (left.remaining === 0 && left.next > now) drawn.push(at(x(left.next), y(bucket ? 0 : capacity), mark("waits")));
    return drawn;
  }

  // rods draws GCRA: a request that passes adds a rod behind the last one, or at its instant.
  function rods(now) {
    const passed = spent().filter((d) => d.t <= now), end = passed.at(-1);
    const drawn = passed.map((d) => box(x(Math.max(d.t, d.t + d.reset - d.cost)), low - rod, x(d.t + d.reset) - x(Math.max(d.t, d.t + d.reset - d.cost)), rod, d.n % 2 ? "rod" : "rod odd"));
    if (end && end.t + end.reset > now) drawn.push(line(x(end.t + end.reset), low - rod - 4, x(end.t + end.reset), low, "tip"));
    return drawn;
  }

  return {
    dots, heaps: true, start: top, top, bottom: top + height,
    marks(d, now) {
      if (d.user !== user) return [];
      const r = d.sum > 1 ? 2 : 3.5, dense = d.sum > 1, drawn = [];
      if (d.count) drawn.push({ kind: d.t + d.wait > now ? "waits" : "passed", y: ruler ? high + 2 : y(d.v), r, dense });
      if (d.no) drawn.push({ kind: "refused", y: ruler ? high - 9 : bucket ? low + 1 : high - (small ? 9 : 10), r, dense });
      return drawn;
    },
    version: (now) => `${dots[0]?.t} ${dots.findLastIndex((d) => d.wait && d.t + d.wait <= now)}`,
    back(from, until, now) {
      const past = dots.filter((d) => d.t >= from && d.t <= now), differ = past.filter(apart).map((d) => line(x(d.t), top, x(d.t), top + height, "apart"));
      if (ruler) return [...differ, ...rods(now)];
      const edges = algorithm === "sliding-window" ? Array.from({ length: Math.ceil((until - from) / period) }, (_, i) => x((Math.ceil(from / period) + i) * period)) : [];
      const limit = record.limits.flatMap(({ t, v }, i) => [[x(i ? t : from), y(v)], [x(record.limits[i + 1]?.t ?? until), y(v)]]);
      const waits = algorithm === "leaky-bucket" ? past.filter((d) => d.wait && d.user === user) : [];
      return [...differ, ...edges.map((x) => line(x, high - 6, x, low, "window")), ...boxes(from, until, now), ...levels(now), path(limit, "limit"), ...future(now),
        ...waits.map((d) => line(x(d.t), y(d.v), x(d.t + d.wait), low, "way"))];
    },
    // still returns what does not move: the axis, and what lies around the present instant.
    still({ left, gate, width, scale }, who) {
      const drawn = [line(left, low, width, low, "rule")];
      if (algorithm.startsWith("sliding-")) drawn.push(box(gate - period * scale, high - 6, period * scale, low - high + 6, "covered"));
      if (ruler) drawn.push(box(gate, low - rod, ahead * scale, rod, "ahead"), line(gate + ahead * scale, low - rod - 8, gate + ahead * scale, low + 4, "limit most"));
      for (const [v, text] of ruler ? [] : [[capacity, capacity.toLocaleString("en", { notation: "compact" })], [0, "0"]]) {
        drawn.push(label(left - 6, y(v) + 4, text, "end soft"), line(left - 3, y(v), left, y(v), "rule"));
      }
      if (who) drawn.push(label(0, (high + low) / 2 + 4, who, "strong"));
      return drawn;
    },
  };
}
