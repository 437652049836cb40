// Three replicas whose store can be stopped. Each has a Limiter of the library, and the policy says
// what it does while the store is down.

import { say, write } from "./prose.js";
import { names, Site } from "./replicas.js";
import { plural } from "./svg.js";
import { weir } from "./world.js";

const recent = 10e3; // ms: the period of the limit

export class Outage extends Site {
  constructor() {
    super("outage", "Three replicas, and a Redis that can be stopped", "Redis");
    this.find(".policy").onchange = () => {
      const { down } = this;
      this.reset();
      this.set(down);
      this.act();
    };
    this.find("button.down").onclick = () => {
      this.set(!this.down);
      this.act();
    };
  }

  get policy() { return this.find(".policy").value; }

  reset() {
    this.clear();
    this.statuses = []; // {status, seen}
    weir.fail(names.length, this.policy);
    this.set(false);
    for (let i = 0; i < 15; i++) this.take(i % names.length);
    this.draw();
  }

  set(down) {
    this.down = down;
    weir.stop(down);
    if (down) (this.tried ??= new Set()).add(this.policy);
    const button = this.find("button.down");
    button.textContent = down ? "Start Redis" : "Stop Redis";
    button.setAttribute("aria-pressed", down);
    this.reply.textContent = down ? "Send 10 to A, and see who decides." : "Stop Redis, and see who decides.";
    this.draw();
  }

  take(i) {
    const [status, asked] = weir.request(i);
    this.statuses = [...this.statuses.slice(-300), { status, seen: performance.now() }];
    return this.keep(i, { status, asked, allowed: status === 200 });
  }

  send(i, n) {
    const got = {};
    for (let k = 0; k < n; k++) {
      const { status } = this.take(i);
      got[status] = (got[status] ?? 0) + 1;
    }
    this.reply.textContent = `Replica ${names[i]} answered ${n} requests: ${Object.entries(got).map(([status, n]) => `${n} with ${status}`).join(", ")}.`;
  }

  say() {
    const now = performance.now(), n = (s) => this.statuses.filter((x) => x.status === s && now - x.seen < recent).length;
    write(this.find("[data-tell]"), this.lesson(n(200)));
    return `In the last 10 s: ${n(200)} passed, ${n(429)} were refused by the limit (429)` + (n(503) ? `, ${n(503)} got 503 (service unavailable).` : ".");
  }

  lesson(passed) {
    if (!this.down) return say`Redis answers, so it decides: in the last 10 s ${plural(passed, "request")} passed, and the limit is 10. Stop it.`;
    return { open: say`Redis is down. Every request passes: ${passed} in the last 10 s, though the limit is 10.`,
      closed: say`Redis is down. Nobody gets through, whatever they sent before.`,
      memory: say`Redis is down. Each replica admits 3 in any 10 s, its share of 10, rounded down. The counts of Redis are unknown to it, so the first 10 s may hold up to 9 more.` }[this.policy];
  }
}
