// frame is the time between two pictures of something that moves, in ms, and slow of something that
// only creeps. Without a graphics processor a browser needs 6 to 12 ms of a core for each picture.
export const frame = 85, slow = 150;

// beat calls f about every every() ms, in an animation frame, with the time in ms. While shown()
// returns false, or the page is hidden, it does not call f. Beats fall on multiples of their length,
// and those of whole tenths of a second on tenths, so that several beats share their frames. beat returns
// a function that ends the calls.
export function beat(every, f, shown = () => true) {
  let timer, next;
  const end = new AbortController();
  const call = (time) => {
    wait();
    f(time);
  };
  const wait = () => {
    clearTimeout(timer);
    if (document.hidden) return;
    const each = every(), unit = each % 100 ? each : 100, off = (performance.now() + unit / 2) % unit - unit / 2;
    timer = setTimeout(() => {
      if (shown()) next = requestAnimationFrame(call);
      else wait();
    }, shown() ? each - off : 250);
  };
  document.addEventListener("visibilitychange", wait, { signal: end.signal });
  next = requestAnimationFrame(call);
  return () => {
    end.abort();
    clearTimeout(timer);
    cancelAnimationFrame(next);
  };
}

// inView returns a function that says whether the reader can see an element.
export function inView(e) {
  let seen = true;
  new IntersectionObserver((entries) => { seen = entries.at(-1).isIntersecting; }).observe(e);
  return () => seen;
}
