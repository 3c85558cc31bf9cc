// One canvas with an axis, by uPlot: the lanes of a timeline, or the memory under them.

const GUTTER = 40;

function laneHeight(ranks, memory) {
  const heights = memory ? [30, 20, 13, 8] : [36, 26, 18, 11];
  return heights[ranks <= 8 ? 0 : ranks <= 16 ? 1 : ranks <= 32 ? 2 : 3];
}

class Chart {
  constructor(report, entry, parent, memory) {
    Object.assign(this, { report, entry, parent, memory, visible: true, selected: null });
    const lane = laneHeight(entry.ranks, memory);
    const every = Math.ceil(14 / lane);
    const labels = [];
    for (let rank = 0; rank < entry.ranks; rank += every) labels.push(rank + 0.5);
    const axis = {
      stroke: () => report.theme.soft,
      grid: { stroke: () => report.theme.grid, width: 1 },
      ticks: { stroke: () => report.theme.grid, width: 1, size: 4 },
      font: "11px system-ui, sans-serif",
    };
    this.plot = new uPlot(
      {
        width: Math.max(parent.clientWidth, 200),
        height: entry.ranks * lane + (memory ? 6 : 34),
        padding: [2, 24, memory ? 4 : 0, 0],
        legend: { show: false },
        scales: {
          x: { time: false, range: (_, min, max) => [min, max] },
          y: { range: () => [0, entry.ranks], dir: -1 },
        },
        series: [{}, { paths: () => null, points: { show: false } }],
        axes: [
          { ...axis, show: !memory, size: 32, values: (_, ticks) => ticks.map((tick) => `${tick} ms`), space: 80 },
          {
            ...axis,
            size: GUTTER,
            gap: 4,
            grid: { show: false },
            ticks: { show: false },
            splits: () => labels,
            values: (_, ranks) => ranks.map((rank) => String(rank - 0.5)),
          },
        ],
        cursor: {
          drag: { x: false, y: false, setScale: false },
          sync: { key: "time" },
          points: { show: false },
          y: false,
          bind: { dblclick: () => null },
        },
        hooks: { draw: [(plot) => this.draw(plot.ctx, plot.bbox)] },
      },
      [
        [0, report.view.last],
        [0, 0],
      ],
      parent,
    );
    steer(this.plot.over, report.view);
    this.plot.over.addEventListener("pointermove", (event) => this.hover(event));
    this.plot.over.addEventListener("pointerdown", (event) => this.hover(event));
    // A finger leaves when it is lifted: what it found stays to be read.
    this.plot.over.addEventListener("pointerleave", (event) => event.pointerType === "touch" || tip.hide());
    new ResizeObserver(() => this.resize()).observe(parent);
    new IntersectionObserver(([seen]) => {
      this.visible = seen.isIntersecting;
      if (!this.visible) return;
      this.update();
      this.plot.redraw(false);
    }).observe(parent);
  }

  resize() {
    const width = this.parent.clientWidth;
    if (width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.plot.height });
  }

  update() {
    if (!this.visible) return;
    const { min, max } = this.report.view;
    this.plot.setScale("x", { min, max });
  }

  draw(ctx, box) {
    // The page was moved to another screen, or its zoom changed.
    if (this.report.theme.ratio !== devicePixelRatio) this.report.theme = readTheme();
    const { theme, shows } = this.report;
    const view = { min: this.plot.scales.x.min, max: this.plot.scales.x.max };
    if (!(view.max > view.min)) return;
    if (this.memory) drawMemory(ctx, box, view, this.entry, theme);
    else drawLanes(ctx, box, view, this.entry, shows, theme);
    if (this.selected !== null && !this.memory) this.drawSelected(ctx, box, view, theme);
  }

  drawSelected(ctx, box, view, theme) {
    const { entry, selected } = this;
    const scale = box.width / (view.max - view.min);
    const lane = box.height / entry.ranks;
    ctx.lineWidth = 2.5 * theme.ratio;
    ctx.strokeStyle = theme.ink;
    ctx.strokeRect(
      box.left + (entry.start[selected] - view.min) * scale,
      box.top + entry.rank[selected] * lane,
      Math.max((entry.end[selected] - entry.start[selected]) * scale, 2 * theme.ratio),
      lane,
    );
  }

  hover(event) {
    const box = this.plot.over.getBoundingClientRect();
    const time = this.plot.posToVal(event.clientX - box.left, "x");
    const lanes = ((event.clientY - box.top) / box.height) * this.entry.ranks;
    const rank = Math.min(Math.max(Math.floor(lanes), 0), this.entry.ranks - 1);
    if (this.memory) {
      tip.show(describeMemory(this.entry, rank, time), event.clientX, event.clientY);
      return;
    }
    const thing = thingAt(this.entry, rank, time, lanes - rank > 0.5);
    if (thing) tip.show(describe(this.entry, thing), event.clientX, event.clientY);
    else tip.hide();
  }

  // Where the middle of an action stands in the window.
  pointOf(i) {
    const { entry } = this;
    const box = this.plot.over.getBoundingClientRect();
    const quarter = entry.half[i] ? entry.half[i] / 2 - 0.25 : 0.5;
    return {
      x: box.left + this.plot.valToPos((entry.start[i] + entry.end[i]) / 2, "x"),
      y: box.top + ((entry.rank[i] + quarter) / entry.ranks) * box.height,
    };
  }

  select(i) {
    this.selected = i;
    const { view, status } = this.report;
    view.show(this.entry.start[i], this.entry.end[i]);
    const height = this.pointOf(i).y;
    if (height < 80 || height > innerHeight - 20) scrollBy(0, height - innerHeight / 2);
    this.plot.redraw(false);
    const said = describe(this.entry, { action: i });
    status.textContent = `${said.heading}. ${said.rows.map((row) => row.join(" ")).join(", ")}`;
    requestAnimationFrame(() =>
      requestAnimationFrame(() => {
        const { x, y } = this.pointOf(i);
        tip.show(said, x, y);
      }),
    );
  }

  // Arrows go from action to action; the report handles all other keys.
  key(event) {
    const { entry } = this;
    const at = this.selected ?? above(entry.start, this.report.view.min, 0, entry.offsets[1]) - 1;
    const rank = entry.rank[Math.max(at, 0)];
    const [first, last] = [entry.offsets[rank], entry.offsets[rank + 1] - 1];
    const beside = (other) => {
      if (other < 0 || other >= entry.ranks) return at;
      const next = above(entry.start, entry.start[at], entry.offsets[other], entry.offsets[other + 1]) - 1;
      return Math.max(next, entry.offsets[other]);
    };
    const places = {
      ArrowRight: () => Math.min(at + 1, last),
      ArrowLeft: () => Math.max(at - 1, first),
      ArrowDown: () => beside(rank + 1),
      ArrowUp: () => beside(rank - 1),
      Home: () => first,
      End: () => last,
    };
    if (!(event.key in places) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.select(Math.max(places[event.key](), 0));
  }
}
