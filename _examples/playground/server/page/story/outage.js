// Three replicas whose store can be stopped. Each has a Limiter of the library, and the policy says
// what it does while the store is down.

import { say, write } from "./prose.js";
import { names, period, Site } from "./site.js";
import { plural } from "./svg.js";

export class Outage extends Site {
  constructor(weir) {
    super("outage", "Three replicas, and a Redis that can be stopped", "Redis", weir);
    this.on(this.find("button.down"), "click", () => this.set(!this.down));
  }

  change() {
    const { down } = this;
    this.reset();
    if (down) this.set(true);
  }

  reset() {
    this.weir.fail(names.length, this.choice);
    this.set(false, -period);
    this.begin(15);
  }

  // set stops Redis or starts it. What was called before is no longer drawn.
  set(down, since = performance.now()) {
    Object.assign(this, { down, since });
    for (const call of this.calls ?? []) call.old = true;
    this.weir.stop(down);
    if (down) (this.tried ??= new Set()).add(this.choice);
    this.write(this.find("button.down"), down ? "Start Redis" : "Stop Redis");
    this.find("button.down").setAttribute("aria-pressed", down);
    this.reply.textContent = down ? "Send 10 to A, and see who decides." : "Stop Redis, and see who decides.";
    this.draw();
  }

  ask(i) { return this.weir.request(i); }

  answer(i, calls) {
    const got = Object.entries(Object.groupBy(calls, (c) => String(c.status)));
    return `Replica ${names[i]} answered ${calls.length} requests: ${got.map(([status, { length }]) => `${length} with ${status}`).join(", ")}.`;
  }

  say() {
    const [yes, no, failed] = [200, 429, 503].map((s) => this.recent(s));
    write(this.find("[data-tell]"), this.lesson(plural(yes, "request")));
    return `In the last 10 s: ${yes} passed, ${no} were refused by the limit (429)` + (failed ? `, ${failed} because Redis is down (503).` : ".");
  }

  lesson(passed) {
    if (!this.down && performance.now() - this.since < period) return say`Redis decides again, with the counts that it had. ${this.back(passed)}`;
    if (!this.down) return say`Redis answers, so it decides: in the last 10 s ${passed} passed, and the limit is 10. Stop it.`;
    return { open: say`Redis is down, and nothing is counted: ${passed} passed in the last 10 s. Right where too much is better than nothing, as for reading public pages.`,
      closed: say`Redis is down, and every request gets 503 (service unavailable). Right where one request too many does harm, as for a login or a payment.`,
      memory: say`Redis is down. Each replica admits 3 in any 10 s, its share of 10, rounded down. Right for most APIs: nobody is locked out, and the server is protected.` }[this.choice];
  }

  // back says what the last 10 s may hold after Redis is back.
  back(passed) {
    return { open: say`It does not know what passed meanwhile, and nothing limited that: in the last 10 s ${passed} passed, and the limit is 10.`,
      closed: say`Nothing passed meanwhile, so the limit of 10 holds: in the last 10 s ${passed} passed.`,
      memory: say`It does not know what the replicas let through meanwhile, at most 9 in any 10 s, so these 10 s may hold up to 19: now ${passed}.` }[this.choice];
  }
}
