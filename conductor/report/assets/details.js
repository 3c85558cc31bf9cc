// What stands under a point, and what is said of it.

function ms(value) {
  const text = value !== 0 && Math.abs(value) < 1 ? value.toPrecision(3) : value.toFixed(2);
  return `${text}\u00a0ms`;
}

// The thing at a time on a rank: { action }, { help }, { idle } or null. `low`: in the lane's lower half.
function thingAt(entry, rank, time, low = false) {
  if (rank < 0 || rank >= entry.ranks) return null;
  const now = { min: time, max: time };
  for (const help of entry.helpsByLender[rank]) {
    if (entry.helpStart[help] <= time && time <= entry.helpEnd[help]) return { help };
  }
  const [first, last] = visibleActions(entry, rank, now);
  for (let i = last - 1; i >= first; i--) {
    if (entry.start[i] <= time && time <= entry.end[i] && entry.half[i] !== (low ? 1 : 2)) {
      return { action: i };
    }
  }
  const [idle, end] = visibleIdle(entry, rank, now);
  return idle < end ? { idle } : null;
}

function where(entry, i) {
  return `${actionName(entry, i)} on rank ${entry.rank[i]}`;
}

function whyIdle(entry, idle) {
  const cause = PAGE.causes[entry.idleCause[idle]];
  const source = entry.idleAction[idle] < 0 ? -1 : entry.source[entry.idleAction[idle]];
  const ended = source < 0 || cause.memory ? "" : `: ${where(entry, source)}, ended at ${ms(entry.end[source])}`;
  return cause.name + ended;
}

// The idle pieces right before an action.
function waitsOf(entry, i) {
  const rank = entry.rank[i];
  const [from, to] = [entry.idleOffsets[rank], entry.idleOffsets[rank + 1]];
  const found = [];
  for (let k = above(entry.idleStart, entry.start[i], from, to) - 1; k >= from; k--) {
    if (entry.idleAction[k] === i) found.unshift(k);
    else if (found.length || entry.idleAction[k] < i) break;
  }
  return found;
}

// A heading and rows of [name, value].
function describe(entry, thing) {
  if ("action" in thing) {
    const i = thing.action;
    const kind = PAGE.kinds[entry.kind[i]];
    const waits = waitsOf(entry, i).map((k) => {
      const length = entry.idleEnd[k] - entry.idleStart[k];
      return ["waited", `${ms(length)} ${whyIdle(entry, k).replace("waits ", "")}`];
    });
    const helps = [];
    entry.helpAction?.forEach((action, help) => {
      if (action === i) helps.push(["helped by", `rank ${entry.helpLender[help]}, ${entry.helpDoes[help]}`]);
    });
    const split = entry.splits > 1 ? [["sequence split", entry.split[i]]] : [];
    return {
      heading: `${actionName(entry, i)}: ${kind.name}`,
      rows: [
        ["rank", entry.rank[i]],
        ["stage", entry.stage[i]],
        ["micro-batch", entry.microbatch[i]],
        ...split,
        ["start", ms(entry.start[i])],
        ["end", ms(entry.end[i])],
        ["duration", ms(entry.end[i] - entry.start[i])],
        ...(waits.length ? waits : [["waited", "not at all"]]),
        ...helps,
        ...(entry.onPath[i] ? [["critical path", "on it"]] : []),
      ],
    };
  }
  const idle = "idle" in thing;
  const [start, end] = idle
    ? [entry.idleStart[thing.idle], entry.idleEnd[thing.idle]]
    : [entry.helpStart[thing.help], entry.helpEnd[thing.help]];
  const times = [
    ["start", ms(start)],
    ["end", ms(end)],
    ["duration", ms(end - start)],
  ];
  if (!idle) {
    const action = entry.helpAction[thing.help];
    return {
      heading: `helps with ${where(entry, action)}`,
      rows: [["rank", entry.helpLender[thing.help]], ["does", entry.helpDoes[thing.help]], ...times],
    };
  }
  const next = entry.idleAction[thing.idle];
  return {
    heading: "idle",
    rows: [["why", whyIdle(entry, thing.idle)], ...(next < 0 ? [] : [["next", actionName(entry, next)]]), ...times],
  };
}

function describeMemory(entry, rank, time) {
  const { times, levels } = entry.memory[rank];
  const k = above(times, time, 0, times.length) - 1;
  const limit = entry.limits[rank];
  const number = (value) => String(Number(value.toPrecision(6)));
  return {
    heading: `memory of rank ${rank}`,
    rows: [
      ["at", ms(time)],
      ["holds", number(k < 0 ? 0 : levels[k])],
      ["peak", number(entry.peaks[rank])],
      ["limit", limit === null ? "none" : number(limit)],
    ],
  };
}

const tip = {
  element: null,

  // Beside a point in the window, and inside it.
  show({ heading, rows }, x, y) {
    this.element ??= document.getElementById("tip");
    const title = document.createElement("strong");
    title.textContent = heading;
    const list = document.createElement("dl");
    for (const [name, value] of rows) {
      const [term, text] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      text.textContent = value;
      list.append(term, text);
    }
    this.element.replaceChildren(title, list);
    this.element.hidden = false;
    const box = this.element.getBoundingClientRect();
    const side = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
    this.element.style.left = `${Math.max(side, 4)}px`;
    this.element.style.top = `${Math.max(Math.min(y + 16, innerHeight - box.height - 4), 4)}px`;
  },

  hide() {
    if (this.element) this.element.hidden = true;
  },
};
