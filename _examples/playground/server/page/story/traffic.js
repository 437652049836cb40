// When requests of the scenes come, in units of a scene.

// every returns n instants with equal gaps, from one instant up to another but without it.
export const every = (n, from, to) => Array.from({ length: n }, (_, i) => from + (to - from) * i / n);

// attack has the times of requests on both sides of an edge, and of some later requests.
export const attack = [...every(11, 8.8, 9.9), ...every(11, 10.1, 11.2), ...every(8, 16, 24), ...every(4, 26, 28)];

// anchoredAttack is the same for a window that begins with the first request: it begins at 1 s, and
// 9 more requests pass just before its end.
export const anchoredAttack = [1, ...every(10, 9.9, 10.9), ...every(11, 11.1, 12.2), ...every(8, 16, 24), ...every(4, 26, 28)];
