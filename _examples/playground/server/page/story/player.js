// A Player is a picture that goes on until the reader pauses it. It stands still while the reader
// cannot see it.

import { beat, inView } from "../beat.js";

export const still = matchMedia("(prefers-reduced-motion: reduce)"), touch = matchMedia("(pointer: coarse)");

export class Player {
  root; button; words; reply; shown; playing; stop; task; box;

  // The element has a stage, and a button that plays and pauses. It may have texts with the classes
  // say and why, and a button that resets.
  constructor(id, task) {
    this.root = document.getElementById(id);
    Object.assign(this, { button: this.find(".play"), words: this.find(".say"), reply: this.find(".why"), shown: inView(this.find(".stage")) });
    this.button.onclick = () => (this.playing ? this.pause() : this.play());
    this.task = task;
    if (task) {
      this.box = /** @type {HTMLTemplateElement} */ (document.getElementById("bar")).content.querySelector(".task").cloneNode(true);
      this.box.querySelector(".begin").remove();
      this.find(".say, .why").before(this.box);
    }
    if (this.find(".reset")) this.find(".reset").onclick = () => this.reset();
  }

  // What a subclass defines: reset begins anew, pace returns the ms between two calls of advance, and
  // advance goes on by a time in µs.
  reset() {}
  pace() { return 200; }
  advance(_gone) {}

  find(selector) { return this.root.querySelector(selector); }

  // write changes a text of the page if it differs.
  write(element, text) { if (element.textContent !== text) element.textContent = text; }

  // act goes on when the reader has done something, which only the clock shows.
  act() {
    this.check();
    if (!this.playing) this.play();
  }

  // check ticks the task when it is done.
  check() {
    if (!this.task) return;
    const done = this.task.done(this);
    this.box.classList.toggle("done", done);
    this.write(this.box.querySelector("output"), done ? this.task.won(this) : `Task: ${this.task.text(this)}`);
  }

  play() {
    this.playing = true;
    this.button.textContent = "Pause";
    let before;
    this.stop?.();
    this.stop = beat(() => this.pace(), (time) => {
      const gone = Math.min(600, time - (before ?? time)) * 1e3;
      before = time;
      this.advance(gone);
    }, this.shown);
  }

  pause() {
    this.playing = false;
    this.button.textContent = "Play";
    this.stop?.();
  }
}
