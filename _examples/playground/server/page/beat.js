// beat calls f about every every() ms, in an animation frame, with the time in ms; if every() is
// 0, in each frame. While shown() returns false, it does not call f. Beats of 100 ms or more fall
// on tenths of a second, so that several beats share their frames. beat returns a function that
// ends the calls.
export function beat(every, f, shown = () => true) {
  let timer, frame;
  const call = (time) => {
    wait();
    f(time);
  };
  const wait = () => {
    const each = every();
    if (each === 0 && shown()) {
      frame = requestAnimationFrame(call);
      return;
    }
    const unit = Math.min(100, each || 100), off = (performance.now() + unit / 2) % unit - unit / 2;
    timer = setTimeout(() => {
      if (shown()) frame = requestAnimationFrame(call);
      else wait();
    }, (each || 100) - off);
  };
  frame = requestAnimationFrame(call);
  return () => {
    clearTimeout(timer);
    cancelAnimationFrame(frame);
  };
}

// inView returns a function that says whether the reader can see an element.
export function inView(e) {
  let seen = true;
  new IntersectionObserver((entries) => { seen = entries.at(-1).isIntersecting; }).observe(e);
  return () => seen && !document.hidden;
}
