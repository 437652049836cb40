// beat calls f with the time in ms, in time with the screen, and waits every() ms before the
// next call. Meanwhile the browser has nothing to draw. It returns a function that ends it.
export function beat(every, f) {
  let timer, frame;
  const call = (time) => {
    wait();
    f(time);
  };
  const wait = () => { timer = setTimeout(() => { frame = requestAnimationFrame(call); }, every()); };
  frame = requestAnimationFrame(call);
  return () => {
    clearTimeout(timer);
    cancelAnimationFrame(frame);
  };
}
