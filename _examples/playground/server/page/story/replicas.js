// Three replicas that count a limit in a store that they share, in the same with the library's
// Hybrid, or each by itself. The clock is that of the computer.

import { names, Site } from "./site.js";
import { plural, span } from "./svg.js";

const charge = JSON.stringify({ algorithm: "sliding-log", quota: 10, period: 10e6, burst: 10, key: "visitor", cost: 1 });

export class Replicas extends Site {
  constructor(weir) {
    super("replicas", "Three replicas and the store that they share", "Redis", weir);
  }

  get apart() { return this.choice === "apart"; }

  reset() {
    this.weir.share(names.length, this.choice);
    this.begin(18);
  }

  ask(i) {
    const { allowed, asked, retryAfter } = JSON.parse(this.weir.take(i, charge));
    return [allowed ? 200 : 429, asked, retryAfter];
  }

  answer(i, calls) {
    const yes = calls.filter((c) => c.allowed).length, own = calls.filter((c) => !c.asked).length;
    return `Replica ${names[i]} admitted ${yes} of ${calls.length}` + (this.apart || !own ? "." : `, and refused ${own} without calling Redis.`) + (calls.at(-1).allowed ? "" : ` The next fits in ${span(calls.at(-1).retryAfter)}.`);
  }

  say() {
    const yes = this.recent(200), all = yes + this.recent(429), calls = this.calls.filter((c) => c.asked).length;
    return `In the last 10 s, ${yes} of ${plural(all, "request")} passed` + (this.apart ? yes > 10 ? ": more than 10, since each replica counts to 10." : "." : `. Redis was called for ${calls} of the latest ${this.calls.length}.`);
  }
}
