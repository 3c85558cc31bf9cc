// Unpacks the arrays of the page. Actions stand rank after rank in the order in which they ran.

const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array };
const TIMES = ["start", "end", "idleStart", "idleEnd", "helpDecided", "helpStart", "helpEnd"];

async function unpack({ type, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new TYPES[type](await new Response(stream).arrayBuffer());
}

async function loadEntry(raw) {
  const entry = { ...raw };
  await Promise.all(
    Object.entries(raw.arrays).map(async ([name, packed]) => (entry[name] = await unpack(packed))),
  );
  for (const name of TIMES) {
    if (entry[name]) entry[name] = Float64Array.from(entry[name], (ticks) => ticks * raw.tick);
  }
  const count = entry.start.length;
  entry.rank = new Uint16Array(count);
  for (let rank = 0; rank < entry.ranks; rank++) {
    entry.rank.fill(rank, entry.offsets[rank], entry.offsets[rank + 1]);
  }
  entry.onPath = new Uint8Array(count);
  for (const place of entry.path) entry.onPath[place] = 1;
  // Of actions that run side by side the forward takes the upper half of the lane (1), the other 2.
  entry.half = new Uint8Array(count);
  for (let i = 0; i < count; i++) {
    if (entry.overlap[i]) {
      entry.half[i] = 1;
      entry.half[i + 1] = 2;
    }
  }
  const stages = Array.from({ length: entry.ranks }, () => new Set());
  for (let i = 0; i < count; i++) stages[entry.rank[i]].add(entry.stage[i]);
  // A stage's turn on its rank: 0 for the first.
  entry.turn = new Uint8Array(Math.max(...stages.map((set) => Math.max(...set))) + 1);
  for (const set of stages) [...set].sort((a, b) => a - b).forEach((s, i) => (entry.turn[s] = i));
  entry.manyStages = entry.turn.some((turn) => turn > 0);
  entry.memory = Array.from({ length: entry.ranks }, (_, rank) => memorySteps(entry, rank));
  entry.helpsByLender = Array.from({ length: entry.ranks }, () => []);
  entry.helpLender?.forEach((rank, help) => entry.helpsByLender[rank].push(help));
  return entry;
}

function memorySteps(entry, rank) {
  const times = [];
  const levels = [];
  let level = 0;
  const step = (time, change) => {
    if (change === 0) return;
    level += change;
    times.push(time);
    levels.push(level);
  };
  const begin = (i) => step(entry.start[i], entry.allocated[entry.kind[i]][entry.stage[i]]);
  const finish = (i) => step(entry.end[i], -entry.freed[entry.kind[i]][entry.stage[i]]);
  for (let i = entry.offsets[rank]; i < entry.offsets[rank + 1]; i++) {
    begin(i);
    // Both of an overlapping pair start before either ends.
    if (entry.overlap[i]) begin(i + 1);
    finish(i);
    if (entry.overlap[i]) finish(++i);
  }
  return { times: Float64Array.from(times), levels: Float64Array.from(levels) };
}

// The first place in [first, last) whose value is above x.
function above(values, x, first, last) {
  while (first < last) {
    const middle = (first + last) >> 1;
    if (values[middle] > x) last = middle;
    else first = middle + 1;
  }
  return first;
}

// The actions of a rank that a view shows, as [first, last).
function visibleActions(entry, rank, view) {
  const [from, to] = [entry.offsets[rank], entry.offsets[rank + 1]];
  // One that began earlier may still run, and so may the other of its pair.
  return [Math.max(above(entry.start, view.min, from, to) - 2, from), above(entry.start, view.max, from, to)];
}

function visibleIdle(entry, rank, view) {
  const [from, to] = [entry.idleOffsets[rank], entry.idleOffsets[rank + 1]];
  return [above(entry.idleEnd, view.min, from, to), above(entry.idleStart, view.max, from, to)];
}

function actionName(entry, i) {
  const split = entry.split[i] ? `.${entry.split[i]}` : "";
  return `${entry.stage[i]}${PAGE.kinds[entry.kind[i]].letter}${entry.microbatch[i]}${split}`;
}
