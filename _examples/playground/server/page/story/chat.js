// A chat with a spammer. It goes on while the reader can see it, and the reader can write, too.

import { Player } from "./player.js";
import { span } from "./svg.js";
import { tasks } from "./tasks.js";
import { Ledger, look, second } from "./world.js";

const limits = [{ algorithm: "token-bucket", quota: 1, period: 4 * second, burst: 3 }];
const round = 20 * second; // after this time the other users repeat their messages
const lines = 11;          // the most lines in the room
const script = /** @type {[number, string, string][]} */ ([
  [0.1, "anna", "hi all"], [1.3, "ben", "hi anna, did you see that goal?"], [2.2, "anna", "who is that?"], [3.3, "anna", "can it be muted?"],
  [7.2, "ben", "it mutes itself"], [11.3, "anna", "so it does"], [15.2, "ben", "back to the match"],
  ...Array.from({ length: 28 }, (_, i) => [0.4 + i * 0.7, "spammer", "BUY NOW"]),
]).map(([t, user, text]) => ({ t: t * second, user, text })).sort((a, b) => a.t - b.t);

export class Chat extends Player {
  room; users; limited;

  constructor() {
    super("chat", tasks.chat);
    for (const name of ["room", "users", "limited"]) this[name] = this.find("." + name);
    this.limited.onchange = () => {
      this.add("note", this.limited.checked ? "The limit is on." : "The limit is off.");
      this.act();
    };
    this.find("form").onsubmit = (e) => {
      e.preventDefault();
      const input = this.find("form input");
      this.say("you", input.value.trim() || "hello");
      input.value = "";
      this.meters();
      this.act();
    };
    this.room.replaceChildren(); // the start that the page has before the library is loaded
    this.ledger = new Ledger(limits);
    this.dots = [];
    this.now = 0;
    this.next = 0;
    this.until(9 * second);
    this.check();
  }

  // until plays the chat up to an instant.
  until(now) {
    for (;;) {
      const { t, user, text } = script[this.next % script.length], due = t + Math.floor(this.next / script.length) * round;
      if (due > now) break;
      this.now = due;
      this.say(user, text);
      this.next++;
    }
    this.now = now;
    this.meters();
  }

  say(user, text) {
    if (!this.limited.checked) return this.add(user, text);
    const t = Math.round(this.now), { allowed, decisions: [d] } = this.ledger.take(t, user);
    this.dots.push({ t, user, allowed, decisions: [d] });
    if (this.dots.length > 200) this.dots.shift();
    this.add(user, text, !allowed);
    if (user === "you") this.reply.textContent = allowed ? `Your message passed. You may send ${d.remaining} more at once.` : `Your message was refused. The next one passes in ${span(d.retryAfter)}.`;
  }

  // add writes a line. Refusals of one user in a row are one line.
  add(user, text, refused) {
    const last = this.room.lastElementChild;
    if (refused && last?.dataset.refused === user) {
      last.dataset.n++;
      last.lastChild.textContent = `${last.dataset.n} messages refused`;
      return;
    }
    const li = document.createElement("li");
    if (user !== "note") {
      const name = document.createElement("b");
      name.textContent = user;
      li.append(name);
    }
    if (refused) Object.assign(li.dataset, { refused: user, n: 1 });
    li.className = refused ? "held" : user;
    li.append(refused ? "1 message refused" : text);
    this.room.append(li);
    while (this.room.children.length > lines) this.room.firstElementChild.remove();
  }

  // meters draws the tokens of each user.
  meters() {
    for (const li of this.users.children) {
      const user = li.dataset.user, [d] = look(limits, this.ledger.states[user], Math.round(this.now), user);
      const text = d.remaining > 0 ? `may send ${d.remaining}` : `next in ${span(d.nextAfter)}`;
      [...li.querySelectorAll("circle")].forEach((c, i) => c.classList.toggle("token", i < d.remaining));
      this.write(li.querySelector("span"), text);
    }
  }

  advance(gone) { this.until(this.now + gone); }
}
