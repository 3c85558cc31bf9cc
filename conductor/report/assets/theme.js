// Colours as the canvas needs them, for light and dark.

function rgbOf(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function mixed(front, back, share) {
  return front.map((value, c) => Math.round(share * value + (1 - share) * back[c]));
}

function striped(colour, ground, directions, size, line) {
  const tile = new OffscreenCanvas(size, size);
  const ctx = tile.getContext("2d");
  ctx.fillStyle = ground;
  ctx.fillRect(0, 0, size, size);
  ctx.strokeStyle = colour;
  ctx.lineWidth = line;
  ctx.beginPath();
  for (const shift of [-size, 0, size]) {
    for (const direction of directions) {
      const [dx, x] = { "/": [size, 0], "\\": [-size, size], "|": [0, size / 2] }[direction];
      // Longer than the tile, so that its corners are full.
      ctx.moveTo(x + shift - dx, 2 * size);
      ctx.lineTo(x + shift + 2 * dx, -size);
    }
  }
  ctx.stroke();
  return ctx.createPattern(tile, "repeat");
}

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const ratio = devicePixelRatio || 1;
  const paper = rgbOf(value("paper"));
  const css = (rgb) => `rgb(${rgb.join(" ")})`;
  const size = Math.round(7 * ratio);
  return {
    ratio,
    ink: value("ink"),
    soft: value("soft"),
    grid: value("grid"),
    font: "system-ui, sans-serif",
    paper: css(paper),
    paperRgb: paper,
    memory: css(mixed(rgbOf(PAGE.memory), paper, 0.65)),
    limit: PAGE.limit,
    kinds: PAGE.kinds.map((kind) => ({
      ...kind,
      rgb: rgbOf(kind.colour),
      faded: mixed(rgbOf(kind.colour), paper, 0.25),
      striped: striped(kind.ink, kind.colour, "/", size, 1.5 * ratio),
    })),
    causes: PAGE.causes.map((cause) => {
      const rgb = mixed(rgbOf(cause.colour), paper, PAGE.pale);
      const line = css(mixed(rgbOf(cause.colour), paper, 0.75));
      return { rgb, pale: css(rgb), pattern: striped(line, css(rgb), cause.hatch, size, ratio) };
    }),
  };
}
