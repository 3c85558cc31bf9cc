// Puts the page together: entries, charts, buttons, keys.

const report = { entries: [], charts: [], shows: { path: false, idle: true, memory: true, helps: true } };

const redraw = () => report.charts.forEach((chart) => chart.visible && chart.plot.redraw(false));

function addEntry(entry, parent) {
  const section = document.createElement("section");
  const heading = document.createElement("h2");
  heading.textContent = entry.title;
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = entry.note;
  section.append(heading, note);
  for (const memory of [false, true]) {
    const name = memory ? "memory" : "timeline";
    const label = document.createElement("p");
    label.className = `label ${name}`;
    label.textContent = memory ? memoryLabel(entry) : "timeline by rank";
    const holder = document.createElement("div");
    holder.className = `chart ${name}`;
    section.append(label, holder);
    parent.append(section);
    const chart = new Chart(report, entry, holder, memory);
    report.charts.push(chart);
    if (memory) continue;
    holder.tabIndex = 0;
    holder.setAttribute("role", "application");
    holder.setAttribute("aria-label", `Timeline of ${entry.title}: arrow keys go from action to action`);
    holder.addEventListener("keydown", (event) => chart.key(event));
  }
  return section;
}

function memoryLabel(entry) {
  return entry.limits.some((limit) => limit !== null) ? "memory by rank, and its limit" : "memory by rank";
}

function addSwatches() {
  const legend = document.getElementById("legend");
  const add = (text, paint) => {
    const item = document.createElement("li");
    const swatch = document.createElement("canvas");
    swatch.width = swatch.height = 16 * report.theme.ratio;
    const ctx = swatch.getContext("2d");
    ctx.fillStyle = paint;
    ctx.fillRect(0, 0, swatch.width, swatch.height);
    item.append(swatch, text);
    legend.append(item);
  };
  legend.replaceChildren();
  const { theme, entries } = report;
  PAGE.kinds.forEach((kind, k) => {
    if (entries.some((entry) => entry.kind.includes(k))) add(`${kind.letter} ${kind.name}`, theme.kinds[k].colour);
  });
  PAGE.causes.forEach((cause, c) => {
    if (entries.some((entry) => entry.idleCause.includes(c))) add(`idle: ${cause.name}`, theme.causes[c].pattern);
  });
  if (entries.some((entry) => entry.manyStages)) add("line below: a later stage of the rank", theme.ink);
  if (entries.some((entry) => entry.helpAction)) add("helps another rank", theme.kinds[0].striped);
}

function applyTheme() {
  report.theme = readTheme();
  addSwatches();
  redraw();
}

function press(id, action) {
  document.getElementById(id)?.addEventListener("click", action);
}

function toggle(name) {
  const button = document.getElementById(name);
  if (!button) return;
  report.shows[name] = !report.shows[name];
  button.setAttribute("aria-pressed", report.shows[name]);
  document.body.classList.toggle("no-memory", !report.shows.memory);
  redraw();
}

function switchTheme() {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme ?? (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  applyTheme();
}

function addSlider(sections) {
  const [slider, name] = [document.getElementById("one"), document.getElementById("one-name")];
  if (!slider) return;
  const show = () => {
    const chosen = Number(slider.value);
    sections.forEach((section, i) => (section.hidden = chosen > 0 && chosen !== i + 1));
    name.textContent = chosen ? report.entries[chosen - 1].title : "all";
    slider.setAttribute("aria-valuetext", name.textContent);
    report.charts.forEach((chart) => chart.update());
  };
  slider.addEventListener("input", show);
  show();
}

function addKeys(view) {
  const actions = {
    "+": () => view.zoom(0.5),
    "=": () => view.zoom(0.5),
    "-": () => view.zoom(2),
    0: () => view.fit(),
    a: () => view.pan((view.min - view.max) / 4),
    d: () => view.pan((view.max - view.min) / 4),
    c: () => toggle("path"),
    i: () => toggle("idle"),
    m: () => toggle("memory"),
    h: () => toggle("helps"),
    t: switchTheme,
    Escape: () => {
      report.charts.forEach((chart) => (chart.selected = null));
      tip.hide();
      redraw();
    },
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.type === "range") return;
    if (event.key in actions) actions[event.key]();
  });
}

async function start() {
  report.entries = await Promise.all(PAGE.entries.map(loadEntry));
  report.theme = readTheme();
  report.status = document.getElementById("status");
  report.view = new View(Math.max(...report.entries.map((entry) => entry.last)) || 1, () => {
    tip.hide();
    report.charts.forEach((chart) => chart.update());
  });
  const { view } = report;
  const parent = document.getElementById("entries");
  const sections = report.entries.map((entry) => addEntry(entry, parent));
  addSwatches();
  addSlider(sections);
  addKeys(view);
  press("in", () => view.zoom(0.5));
  press("out", () => view.zoom(2));
  press("fit", () => view.fit());
  press("theme", switchTheme);
  for (const name of Object.keys(report.shows)) press(name, () => toggle(name));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  addEventListener("scroll", () => tip.hide(), { passive: true });
  requestAnimationFrame(() => requestAnimationFrame(() => (document.body.dataset.ready = performance.now())));
}

window.report = report;
start().catch((error) => {
  document.getElementById("entries").textContent = `This page needs a newer browser: ${error.message}`;
  throw error;
});
