// A Stream is a picture whose past moves to the left, while the present stands still at a gate. It
// has lanes, one below the other.

import { colour, gather, name } from "./heaps.js";
import { around } from "./labels.js";
import { at, label, mark, patch, svg } from "./svg.js";

export const fall = 25e4; // the µs for which a mark moves to its place
const step = 100;  // px: so much of the past is removed at once
const late = 4;    // px that the picture moves before what lies behind the marks is drawn anew
const cell = 28;   // px: a heap that is wider may be cut

export class Stream {
  left; width; height; gate; scale; lanes; origin; picture; moving;

  // draw makes the picture anew. scale has px per µs, the present is at x = gate, and the past ends
  // at x = left. A lane has
  //   dots: in the order of their times t
  //   marks(dot, now): what is drawn of a dot: [{kind, y, r, dense}]
  //   start: the y from which marks fall
  //   back(from, until, now): what is drawn behind the marks, between two instants
  //   version(now): changes with the marks of dots that have already been drawn
  //   heaps: whether marks that cover each other are counted; then top and bottom bound the numbers
  draw({ left = 0, width, height, gate, scale, lanes, now }) {
    Object.assign(this, { left, width, height, gate, scale, lanes, origin: now - gate / scale });
    this.moving = svg("g", { class: "moving" });
    for (const lane of lanes) {
      Object.assign(lane, { behind: svg("g"), landed: svg("g"), falling: svg("g"), numbers: svg("g", { "aria-hidden": "true" }), young: [], drawn: "", shown: "" });
      this.moving.append(lane.behind, lane.landed, lane.falling, lane.numbers);
    }
    this.picture = svg("svg", { x: left, y: 0, width: width - left, height, viewBox: `${left} 0 ${width - left} ${height}` }, this.moving);
    return this.picture;
  }

  x(t) { return (t - this.origin) * this.scale; }

  // fill draws new marks, removes old ones, and draws what lies behind them. If still is set, no mark
  // falls.
  fill(now, still) {
    const past = Math.floor((this.x(now) - this.gate) / step) * step, from = this.origin + (past + this.left - 10) / this.scale;
    const until = from + (this.width + 2 * step) / this.scale;
    for (const lane of this.lanes) {
      const { dots } = lane, first = dots.findIndex((d) => d.t >= from), last = dots.findLastIndex((d) => d.t <= now) + 1;
      const down = still ? last : dots.findLastIndex((d) => d.t <= now - fall) + 1;
      const seen = (a, b) => dots.slice(a, b).flatMap((d) => lane.marks(d, now).map((m) => ({ ...m, x: this.x(d.t), t: d.t, mine: d.mine })));
      const drawn = `${from} ${down - first} ${dots[down - 1]?.t} ${lane.version?.(now)}`;
      if (drawn !== lane.drawn) this.land(lane, first < 0 ? [] : seen(first, down));
      const behind = `${from} ${Math.round(this.x(now) / late)} ${still && drawn}`;
      if (behind !== lane.shown) patch(lane.behind, ...lane.back(from, until, now));
      Object.assign(lane, { drawn, shown: behind, young: seen(down, last) });
    }
    this.drop(now);
  }

  // land draws marks at their places.
  land(lane, marks) {
    const heaps = lane.heaps ? gather(marks, cell) : [], under = new Set(heaps.flatMap((h) => h.slice(1))), places = new Set();
    const taken = marks.filter((m) => !under.has(m)).map((m) => around(m.x, m.y, 5)), named = [];
    lane.most = 1;
    for (const heap of heaps) {
      const spot = name(heap, heap.length, taken, [-Infinity, lane.top, Infinity, lane.bottom], true);
      if (!spot) for (const m of heap) under.delete(m);
      else {
        named.push(label(...spot, colour(heap)));
        lane.most = Math.max(lane.most, heap.length);
      }
    }
    const free = (m) => { // of dense marks, one is drawn at each place
      const place = `${m.kind} ${Math.round(m.x / 3)} ${Math.round(m.y / 3)}`;
      return m.mine || places.size < places.add(place).size;
    };
    keep(lane.landed, marks.filter((m) => !under.has(m) && free(m)));
    patch(lane.numbers, ...named);
  }

  // drop draws the marks that fall.
  drop(now) {
    for (const lane of this.lanes) {
      if (lane.young.length === 0 && !lane.falling.firstChild) continue;
      patch(lane.falling, ...lane.young.map((m) => at(m.x, lane.start + (m.y - lane.start) * Math.min(1, (now - m.t) / fall) ** 2, drawn(m))));
    }
  }

  // move moves the past, and the marks that fall.
  move(now) {
    const way = `translate(${(this.gate - this.x(now)).toFixed(1)} 0)`;
    if (this.moving.getAttribute("transform") === way) return;
    this.moving.setAttribute("transform", way);
    this.drop(now);
  }
}

// keep makes the children of parent draw marks. Children that still draw one of them stay.
function keep(parent, marks) {
  const keys = marks.map((m) => [m.kind, m.x.toFixed(1), m.y.toFixed(1), m.r, m.mine].join()), wanted = new Set(keys);
  let next = parent.firstChild;
  const drop = () => {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  };
  marks.forEach((m, i) => {
    while (next && !wanted.has(next.key)) drop();
    if (next?.key === keys[i]) next = next.nextSibling;
    else parent.insertBefore(Object.assign(at(m.x, m.y, drawn(m)), { key: keys[i] }), next);
  });
  while (next) drop();
}

function drawn({ kind, r, mine }) {
  const e = svg("g", {}, mark(kind, r));
  if (mine) e.append(svg("circle", { r: 8, class: "mine" }));
  return e;
}
