// A Chat shows the messages in two rooms: one without a limit, one with it.

import { seconds } from "./dom.js";

const most = 9; // lines of a room

export class Chat {
  sum; free; limited; sent; passed;

  constructor(sum, free, limited) {
    Object.assign(this, { sum, free, limited });
    this.begin();
  }

  begin() {
    this.sent = new Map();
    this.passed = new Map();
    this.sum.textContent = "";
    this.free.replaceChildren();
    this.limited.replaceChildren();
  }

  add(lines) {
    for (const { user, text, ok, retry, last } of lines) {
      count(this.sent, user);
      append(this.free, said(user, text));
      if (ok) {
        count(this.passed, user);
        append(this.limited, said(user, text));
      } else {
        this.hold(user, retry);
      }
      if (last) this.sumUp();
    }
  }

  // hold shows one line for several messages in a row that were held back.
  hold(user, retry) {
    let note = this.limited.lastElementChild;
    if (note?.className !== "held") {
      note = document.createElement("li");
      note.className = "held";
      note.dataset.n = 0;
      append(this.limited, note);
    }
    note.dataset.n++;
    const n = Number(note.dataset.n);
    note.textContent = `${n} ${n === 1 ? "message" : "messages"} of ${user} held back, next in ${seconds(retry)}`;
  }

  sumUp() {
    this.sum.textContent = [...this.sent].map(([user, n]) => `${user}: ${this.passed.get(user) ?? 0} of ${n}`).join(", ") + " messages passed.";
  }
}

function count(map, user) { map.set(user, (map.get(user) ?? 0) + 1); }

function said(user, text) {
  const li = document.createElement("li"), name = document.createElement("b");
  if (user === "spammer") li.className = "spam";
  name.textContent = user;
  li.append(name, text);
  return li;
}

function append(room, li) {
  room.append(li);
  while (room.children.length > most) room.firstElementChild.remove();
}
