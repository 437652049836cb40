// A room in which users chat. It goes on while the reader can see it, and the reader can write, too.

import { chat } from "./chat.js";
import { Player } from "./player.js";
import { span } from "./svg.js";
import { tasks } from "./tasks.js";
import { Ledger, look, second } from "./world.js";

const { limits, round, script } = chat;
const lines = 100; // the most lines in the room; those of the reader are the last to go

export class Room extends Player {
  room; users; limited; dots = []; refused = {}; now = 0; next = 0;
  ledger = new Ledger(limits);

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
    this.until(9 * second);
    this.check();
  }

  // until plays the chat up to an instant.
  until(now) {
    for (;;) {
      const { t, user, text } = script[this.next % script.length], rounds = Math.floor(this.next / script.length), due = t + rounds * round;
      if (due > now) break;
      this.now = due;
      this.say(user, text(rounds));
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
    if (!allowed) this.refused[user] = (this.refused[user] ?? 0) + 1;
    this.add(user, text, !allowed);
    if (user === "you") this.reply.textContent = allowed ? "Your message passed." : `Your message was refused, because your ${limits[0].burst} were used up. One more fitted ${span(d.retryAfter)} later.`;
  }

  // add writes a line, and shows it unless the reader looks at earlier ones. Refusals of one user in a
  // row are one line.
  add(user, text, refused) {
    const { room } = this, last = /** @type {any} */ (room.lastElementChild), end = room.scrollTop + room.clientHeight > room.scrollHeight - 40;
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
    li.className = refused ? `held ${user}` : user;
    li.append(refused ? "1 message refused" : text);
    room.append(li);
    while (room.children.length > lines) (room.querySelector("li:not(.you)") ?? room.firstElementChild).remove();
    if (end || user === "you") room.scrollTop = room.scrollHeight;
  }

  // meters draws the tokens of each user.
  meters() {
    for (const li of this.users.children) {
      const user = li.dataset.user, [d] = look(limits, this.ledger.states[user], Math.round(this.now), user);
      [...li.querySelectorAll("circle")].forEach((c, i) => c.classList.toggle("token", i < d.remaining));
      this.write(li.querySelector("span"), `${d.remaining > 0 ? `may send ${d.remaining}` : `next in ${span(d.nextAfter)}`}; ${this.refused[user] ?? 0} refused`);
    }
  }

  advance(gone) { this.until(this.now + gone); }
}
