// A Line is the time line of one algorithm: a Stream with a lane for each user. The Axis below all
// of them is a Stream, too.

import { inView } from "./beat.js";
import { length, seconds } from "./dom.js";
import { lane } from "./lane.js";
import { Record } from "./record.js";
import { fall, Stream } from "./story/stream.js";
import { label, line, patch, svg, ticks } from "./story/svg.js";

const right = 14; // px to the right of the time that is shown

// frame returns where the present stands in a picture, and how long the past is.
function frame(picture, users, period) {
  const width = picture.clientWidth || 626, height = picture.clientHeight || 84, left = users.length > 1 ? 84 : 34, narrow = width < 520;
  const [past, future] = narrow ? [1.4, 0.8] : [2, 1], scale = (width - left - right) / (past + future) / period;
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  return { left, width, height, scale, gate: left + past * period * scale };
}

export class Line {
  record = new Record();
  stream = new Stream();
  view; filled; fresh; // what the picture shows

  constructor(picture) {
    this.picture = picture;
    this.seen = inView(picture);
    new ResizeObserver(() => { this.fresh = false; }).observe(picture);
  }

  // show draws an instant, if the reader can see the picture and something differs from what is
  // drawn there. The first picture is always drawn. last says that nothing later is known.
  show(view, version, { users, apart, still, last }) {
    if (this.fresh && !this.seen()) return;
    if (!this.fresh) this.draw(view, users, apart);
    const { stream } = this, until = (t) => this.record.dots.findLast((d) => d.t <= t)?.n;
    const filled = [version, Math.floor(stream.x(view) / 8), last, until(view), until(view - fall), stream.lanes[0].version(view)].join();
    if (filled !== this.filled) stream.fill(view, still);
    stream.move(view);
    Object.assign(this, { view, filled, fresh: true });
  }

  draw(view, users, apart) {
    const { record, picture, stream } = this, place = frame(picture, users, record.period), each = place.height / users.length;
    const lanes = users.map((_, i) => lane(record, i, i * each, each, stream, apart));
    const moving = stream.draw({ ...place, lanes, now: view });
    picture.replaceChildren(...lanes.flatMap((l, i) => l.still(stream, users.length > 1 && users[i])), line(place.gate, 0, place.gate, place.height, "head"), moving);
    this.filled = undefined;
  }

  get most() { return Math.max(...this.stream.lanes.map((l) => l.most)); }
}

// An Axis has the times since the beginning of the scene.
export class Axis {
  stream = new Stream();
  fresh; filled; told;

  constructor(picture) {
    this.picture = picture;
    this.now = svg("g");
    new ResizeObserver(() => { this.fresh = false; }).observe(picture);
  }

  show(view, { users, start, period }) {
    const { stream } = this, text = `now: ${seconds(Math.max(0, view - start))}`;
    if (!this.fresh) {
      const place = frame(this.picture, users, period * 1e6), size = [86400, 3600, 60, 1].find((u) => period >= 2 * u) ?? 1, each = size * ticks(period / size, place.width < 520 ? 2.5 : 5)[1] * 1e6;
      const back = (from, until) => Array.from({ length: Math.ceil((until - from) / each) }, (_, i) => start + (Math.ceil((from - start) / each) + i) * each).filter((t) => t >= start)
        .flatMap((t) => [line(stream.x(t), 0, stream.x(t), 5, "rule"), label(stream.x(t), 17, length(+((t - start) / 1e6).toFixed(1)), "middle soft")]);
      this.picture.replaceChildren(stream.draw({ ...place, left: 0, lanes: [{ dots: [], back }], now: view }), this.now);
    }
    const filled = Math.floor(stream.x(view) / 50);
    if (!this.fresh || filled !== this.filled) stream.fill(view, true);
    if (!this.fresh || text !== this.told) {
      patch(this.now, line(stream.gate, 0, stream.gate, 22, "head"), label(stream.gate, 34, text, "middle accent"));
    }
    stream.move(view);
    Object.assign(this, { fresh: true, filled, told: text });
  }
}
