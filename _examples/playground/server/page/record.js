// A Record has the decisions of one algorithm, and how much was spent. Instants are in µs since 1970.

const maxDots = 1200;    // most dots that are kept
const maxSamples = 2400; // most samples that are kept for a user
const keep = 2.2;        // how many periods are kept
const slack = 64;        // so many more may be kept, because moving a long list for each dot takes time

export class Record {
  constructor() { this.clear(); }

  clear() {
    this.dots = [];    // {t, user, ok, count, no, sum, remaining, retry, reset, wait, mine, n, v}; count of sum requests passed
    this.limits = [];  // the capacity is v from the instant t on: [{t, v}]
    this.levels = [];  // by user: [{t, v}]
    this.left = [];    // by user: {remaining, next, reset, idle}, with instants
    this.passed = this.refused = this.peak = 0;
  }

  // configure sets the limit from now on. What is drawn of the past stays as it was.
  configure(head, settings, users, now) {
    this.head = head;
    this.period = settings.period * 1e6;
    this.quota = settings.quota;
    if (this.limits.at(-1)?.v !== head.capacity) this.limits.push({ t: now, v: head.capacity });
    while (this.levels.length < users) this.levels.push([]);
  }

  get bucket() { return this.head.algorithm === "token-bucket"; }
  get cost() { return this.period / this.quota; }

  // level returns how many units are spent or, for a token bucket, how many are left. The level
  // of a meter has fractions of units.
  level(remaining, reset) {
    const { head } = this, spent = head.meter ? reset / this.cost : head.capacity - remaining;
    return this.bucket ? head.capacity - spent : spent;
  }

  // add adds a frame. n is the number of its first request.
  add(frame, now, n) {
    for (const [t, user, count, remaining, retry, reset, wait, mine, no] of frame.hits ?? []) {
      const v = this.level(remaining, reset);
      this.dots.push({ t, user, ok: count > 0, count, no, sum: count + no, remaining, retry, reset, wait, mine: mine === 1, n: n++, v, cost: count * this.cost });
      if (count && user < this.levels.length) this.levels[user].push({ t, v: this.bucket ? v + count : v - count }, { t, v });
    }
    frame.left.forEach(([remaining, next, reset], user) => {
      this.left[user] = { remaining, next: now + next, reset: now + reset, idle: reset === 0 };
      this.sample(this.levels[user], now, this.level(remaining, reset));
    });
    Object.assign(this, { passed: frame.passed, refused: frame.refused, peak: frame.peak });
    this.forget(now);
  }

  // sample keeps about one sample for each pixel, and of equal samples in a row the first and the last.
  sample(level, t, v) {
    const last = level.at(-1), before = level.at(-2);
    if (last?.look && before?.look && (t - before.t < this.period / 300 || v === last.v && v === before.v)) level.pop();
    level.push({ t, v, look: true });
  }

  // forget drops dots and samples that have left the picture.
  forget(now) {
    const old = now - keep * this.period;
    drop(this.dots, maxDots, (d) => d.t < old);
    for (const level of this.levels) drop(level, maxSamples, (s) => s.t < old);
    while (this.limits.length > 1 && this.limits[1].t < old) this.limits.shift();
  }
}

// drop shortens a list from the front: first to the length most, and then by the elements for
// which over returns true.
function drop(list, most, over) {
  let n = Math.max(0, list.length - most);
  while (n < list.length && over(list[n])) n++;
  if (n >= slack) list.splice(0, n);
}
