// Draws the lanes of a timeline on a canvas: actions, idle time, critical path, helps.

const DENSE = 3; // CSS pixels an action: below, pixels show what share of them each kind has.

function drawLanes(ctx, box, view, entry, shows, theme) {
  const scale = box.width / (view.max - view.min);
  const x = (time) => box.left + (time - view.min) * scale;
  const lane = box.height / entry.ranks;
  const inset = Math.min(2 * theme.ratio, lane * 0.08);
  ctx.save();
  ctx.beginPath();
  ctx.rect(box.left, box.top, box.width, box.height);
  ctx.clip();
  let shown = 0;
  for (let rank = 0; rank < entry.ranks; rank++) {
    const [first, last] = visibleActions(entry, rank, view);
    shown += last - first;
  }
  const place = { x, lane, inset, top: (rank) => box.top + rank * lane + inset, height: lane - 2 * inset };
  if (box.width * entry.ranks < shown * DENSE * theme.ratio) {
    drawDense(ctx, box, view, entry, shows, theme, place);
  } else {
    for (let rank = 0; rank < entry.ranks; rank++) {
      if (shows.idle) drawIdle(ctx, view, entry, rank, theme, place);
      drawActions(ctx, view, entry, rank, shows, theme, place);
    }
  }
  if (entry.helpAction) drawHelps(ctx, view, entry, shows, theme, place);
  if (shows.path) drawPath(ctx, view, entry, theme, place);
  ctx.restore();
}

function drawIdle(ctx, view, entry, rank, theme, place) {
  const [first, last] = visibleIdle(entry, rank, view);
  for (let k = first; k < last; k++) {
    const left = place.x(entry.idleStart[k]);
    const width = place.x(entry.idleEnd[k]) - left;
    const cause = theme.causes[entry.idleCause[k]];
    ctx.fillStyle = width > 6 * theme.ratio ? cause.pattern : cause.pale;
    ctx.fillRect(left, place.top(rank), width, place.height);
  }
}

function drawActions(ctx, view, entry, rank, shows, theme, place) {
  const [first, last] = visibleActions(entry, rank, view);
  const size = Math.min(place.height * 0.62, 13 * theme.ratio);
  const labelled = place.height >= 11 * theme.ratio;
  ctx.font = `${size}px ${theme.font}`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  for (let i = first; i < last; i++) {
    const left = place.x(entry.start[i]);
    const whole = place.x(entry.end[i]) - left;
    const width = Math.max(whole - Math.min(theme.ratio, whole * 0.1), 0.5);
    const height = entry.half[i] ? place.height / 2 : place.height;
    const top = place.top(rank) + (entry.half[i] === 2 ? height : 0);
    const kind = theme.kinds[entry.kind[i]];
    ctx.globalAlpha = shows.path && !entry.onPath[i] ? 0.25 : 1;
    ctx.fillStyle = kind.colour;
    ctx.fillRect(left, top, width, height);
    if (entry.manyStages && entry.turn[entry.stage[i]] && height > 5 * theme.ratio) {
      ctx.fillStyle = kind.ink;
      const line = Math.max(theme.ratio, height * 0.09);
      for (let t = 0; t < entry.turn[entry.stage[i]]; t++) {
        ctx.fillRect(left, top + height - line * (1 + 2 * t), width, line);
      }
    }
    if (labelled && !entry.half[i] && width > size * 0.9) {
      const long = actionName(entry, i);
      const short = String(entry.microbatch[i]);
      // Letters and digits are about 0.65 of the font's size wide.
      const room = (text) => text.length * size * 0.65 + 3 * theme.ratio < width;
      const text = room(long) ? long : room(short) ? short : "";
      if (text) {
        ctx.fillStyle = kind.ink;
        const seen = [Math.max(left, place.x(view.min)), Math.min(left + width, place.x(view.max))];
        if (seen[1] - seen[0] > text.length * size * 0.6) {
          ctx.fillText(text, (seen[0] + seen[1]) / 2, top + height / 2);
        }
      }
    }
  }
  ctx.globalAlpha = 1;
}

// One row of pixels a lane, each the mean of what runs in its time, then stretched to the lane's height.
function drawDense(ctx, box, view, entry, shows, theme, place) {
  const width = Math.ceil(box.width);
  const scale = box.width / (view.max - view.min);
  const sums = new Float32Array(width * 4);
  const image = new ImageData(width, entry.ranks);
  const add = (start, end, rgb, weight) => {
    const from = Math.max((start - view.min) * scale, 0);
    const to = Math.min((end - view.min) * scale, width);
    for (let column = Math.floor(from); column < to; column++) {
      const share = weight * (Math.min(to, column + 1) - Math.max(from, column));
      sums[4 * column] += share * rgb[0];
      sums[4 * column + 1] += share * rgb[1];
      sums[4 * column + 2] += share * rgb[2];
      sums[4 * column + 3] += share;
    }
  };
  for (let rank = 0; rank < entry.ranks; rank++) {
    sums.fill(0);
    let [first, last] = visibleActions(entry, rank, view);
    for (let i = first; i < last; i++) {
      const kind = theme.kinds[entry.kind[i]];
      const rgb = shows.path && !entry.onPath[i] ? kind.faded : kind.rgb;
      add(entry.start[i], entry.end[i], rgb, entry.half[i] ? 0.5 : 1);
    }
    [first, last] = shows.idle ? visibleIdle(entry, rank, view) : [0, 0];
    for (let k = first; k < last; k++) {
      add(entry.idleStart[k], entry.idleEnd[k], theme.causes[entry.idleCause[k]].rgb, 1);
    }
    for (let column = 0; column < width; column++) {
      const rest = Math.max(1 - sums[4 * column + 3], 0);
      for (let c = 0; c < 3; c++) {
        image.data[4 * (rank * width + column) + c] = sums[4 * column + c] + rest * theme.paperRgb[c];
      }
      image.data[4 * (rank * width + column) + 3] = 255;
    }
  }
  const strip = new OffscreenCanvas(width, entry.ranks);
  strip.getContext("2d").putImageData(image, 0, 0);
  ctx.imageSmoothingEnabled = false;
  for (let rank = 0; rank < entry.ranks; rank++) {
    ctx.drawImage(strip, 0, rank, width, 1, box.left, place.top(rank), width, place.height);
  }
}

// What a rank does for another is striped, in the helped kind's colour; an arrow comes from the helped.
function drawHelps(ctx, view, entry, shows, theme, place) {
  const arrows = [];
  for (let h = 0; h < entry.helpAction.length; h++) {
    if (entry.helpEnd[h] < view.min || entry.helpDecided[h] > view.max) continue;
    const rank = entry.helpLender[h];
    const left = place.x(entry.helpStart[h]);
    const width = Math.max(place.x(entry.helpEnd[h]) - left, theme.ratio);
    ctx.fillStyle = theme.kinds[entry.kind[entry.helpAction[h]]].striped;
    ctx.fillRect(left, place.top(rank), width, place.height);
    arrows.push([h, left]);
  }
  if (!shows.helps || arrows.length > 600) return;
  ctx.fillStyle = theme.ink;
  for (const [h, left] of arrows) {
    const from = entry.rank[entry.helpAction[h]];
    const to = entry.helpLender[h];
    const down = to > from;
    const x0 = place.x(entry.helpDecided[h]);
    const y0 = place.top(from) + (down ? place.height : 0);
    const y1 = place.top(to) + (down ? 0 : place.height);
    const head = Math.min(7 * theme.ratio, place.lane / 2) * (down ? 1 : -1);
    ctx.beginPath();
    ctx.moveTo(x0, y0);
    ctx.bezierCurveTo(x0, (y0 + y1) / 2, left, (y0 + y1) / 2, left, y1 - head);
    // A rim in the paper's colour sets the arrow off from what it crosses.
    ctx.strokeStyle = theme.paper;
    ctx.lineWidth = 4 * theme.ratio;
    ctx.stroke();
    ctx.strokeStyle = theme.ink;
    ctx.lineWidth = 1.5 * theme.ratio;
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(left, y1);
    ctx.lineTo(left - Math.abs(head) * 0.7, y1 - head);
    ctx.lineTo(left + Math.abs(head) * 0.7, y1 - head);
    ctx.fill();
  }
}

// A line through the actions of the critical path, along each and across to the next.
function drawPath(ctx, view, entry, theme, place) {
  // Low in the lane, clear of the labels.
  const line = (i) => place.top(entry.rank[i]) + place.height * 0.85;
  ctx.lineWidth = 2 * theme.ratio;
  ctx.strokeStyle = theme.ink;
  ctx.lineJoin = "round";
  ctx.beginPath();
  entry.path.forEach((i, step) => {
    // What is out of view is left out, but for its line to what is in view.
    const before = entry.path[Math.max(step - 1, 0)];
    const after = entry.path[Math.min(step + 1, entry.path.length - 1)];
    if (entry.end[after] < view.min || entry.start[before] > view.max) return;
    ctx.lineTo(place.x(entry.start[i]), line(i));
    ctx.lineTo(place.x(entry.end[i]), line(i));
  });
  ctx.stroke();
}

// Memory of each rank: the highest level in each pixel, and the limit.
function drawMemory(ctx, box, view, entry, theme) {
  const scale = box.width / (view.max - view.min);
  const lane = box.height / entry.ranks;
  const gap = Math.min(3 * theme.ratio, lane * 0.15);
  const most = Math.max(...entry.peaks, ...entry.limits.map((limit) => limit ?? 0)) || 1;
  const width = Math.ceil(box.width);
  const high = new Float32Array(width);
  ctx.save();
  ctx.beginPath();
  ctx.rect(box.left, box.top, box.width, box.height);
  ctx.clip();
  for (let rank = 0; rank < entry.ranks; rank++) {
    const { times, levels } = entry.memory[rank];
    const bottom = box.top + (rank + 1) * lane;
    const y = (level) => (level / most) * (lane - gap);
    high.fill(0);
    const first = above(times, view.min, 0, times.length) - 1;
    const last = above(times, view.max, 0, times.length);
    for (let k = Math.max(first, 0); k < last; k++) {
      const from = Math.max(Math.floor((times[k] - view.min) * scale), 0);
      const end = k + 1 < times.length ? times[k + 1] : entry.last;
      const to = Math.min(Math.ceil((end - view.min) * scale), width);
      for (let column = from; column < to; column++) {
        if (levels[k] > high[column]) high[column] = levels[k];
      }
    }
    ctx.fillStyle = theme.memory;
    for (let column = 0; column < width; ) {
      let next = column + 1;
      while (next < width && high[next] === high[column]) next++;
      const height = y(high[column]);
      ctx.fillRect(box.left + column, bottom - height, next - column, height);
      column = next;
    }
    if (entry.limits[rank] !== null) {
      ctx.fillStyle = theme.limit;
      ctx.fillRect(box.left, bottom - y(entry.limits[rank]), box.width, Math.max(1, 1.25 * theme.ratio));
    }
    ctx.fillStyle = theme.grid;
    ctx.fillRect(box.left, bottom - 1, box.width, 1);
  }
  ctx.restore();
}
