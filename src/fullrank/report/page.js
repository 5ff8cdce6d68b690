const page = JSON.parse(document.getElementById("data").textContent);
const names = Object.keys(page.figures);
const root = document.documentElement;
const legend = document.querySelector(".runs");
const state = { position: page.positions.length - 1, relative: false, printing: false, hidden: new Set() };

const figureOf = name => document.getElementById(`figure-${name}`);
const plotOf = name => figureOf(name).querySelector(".plot");

/* Return the colours of the style sheet in a colour scheme; "" is the scheme of the page. */
function colours(scheme) {
  const probe = document.createElement("div");
  probe.className = "plot";
  probe.style.colorScheme = scheme;
  document.body.append(probe);
  const { color, backgroundColor, outlineColor, borderTopColor } = getComputedStyle(probe);
  probe.remove();
  return { ink: color, paper: backgroundColor, rule: outlineColor, soft: borderTopColor };
}

/* Return the data and the layout of a figure in the current state: position of the slider, division, hidden runs. For print and for files,
   the figure has the colours of `scheme` and its own legend. */
function currentFigure(name, scheme, size = { autosize: true }) {
  const { data, layout, frames } = page.figures[name];
  const { ink, paper, rule, soft } = colours(scheme);
  const drawn = structuredClone(layout);
  Object.assign(drawn, { paper_bgcolor: paper, plot_bgcolor: paper }, size);
  drawn.font.color = ink;
  drawn.hoverlabel = { bgcolor: paper, bordercolor: soft, font: { color: ink } };
  for (const key of Object.keys(drawn).filter(key => /^[xy]axis\d*$/.test(key))) {
    Object.assign(drawn[key], { gridcolor: rule, zerolinecolor: rule, linecolor: soft, tickfont: { ...drawn[key].tickfont, color: soft }, automargin: true });
  }
  if (layout.meta?.over_steps && !scheme) drawn.shapes = [...drawn.shapes, ...sliderLines(data, layout.meta.top, soft)];
  drawn.shapes = drawn.shapes?.filter(({ legendgroup }) => !state.hidden.has(legendgroup));
  if (legend && !scheme) {
    drawn.showlegend = false;
    drawn.height -= drawn.margin.t;
    drawn.margin.t = 0;
  }
  const traces = data.map(trace => ({ ...trace, visible: !state.hidden.has(trace.legendgroup) }));
  if (!frames) return { data: traces, layout: drawn };
  drawn.yaxis.range = layout.meta.ranges[Number(state.relative)];
  drawn.yaxis.uirevision = String(state.relative);
  const frame = frames[Math.min(state.position, frames.length - 1)];
  return { data: traces.map((trace, i) => ({ ...trace, y: scaled(i < frame.length ? frame[i].y : trace.y) })), layout: drawn };
}

/* Return the lines that show the position of the slider on a step axis: one line per step, in the colour of the run if only one run is at
   this step and others are elsewhere. There is no line at the end of training. */
function sliderLines(data, top, soft) {
  if (state.position >= page.positions.length - 1) return [];
  const places = Object.entries(page.positions[state.position].steps).filter(([run]) => !state.hidden.has(run));
  return [...new Set(places.map(([, step]) => step))].map(step => {
    const runs = places.filter(place => place[1] === step).map(([run]) => run);
    const runColour = runs.length === 1 && places.length > 1 && data.find(trace => trace.legendgroup === runs[0])?.line.color;
    const line = { color: runColour || soft, width: 1.5 };
    return { type: "line", x0: step, x1: step, yref: "paper", y0: 0, y1: top, layer: "below", line };
  });
}

const scaled = y => (state.relative ? y.map(value => (value === null ? null : value / (y[0] || 1))) : y);

/* The size of a printed figure: with its heading and caption it fits on a page of A4 or Letter. */
const printSize = ({ height }) => ({ width: 640, height: Math.min(height, 780) });

function draw(name) {
  const { data, layout } = state.printing ? currentFigure(name, "light", printSize(page.figures[name].layout)) : currentFigure(name, "");
  plotOf(name).style.height = `${layout.height}px`;
  const svg = { name: "svg", title: "Download as SVG", icon: Plotly.Icons.camera, click: () => saveSvg(name) };
  Plotly.react(plotOf(name), data, layout, {
    responsive: true, displaylogo: false, modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d", svg]],
  });
  // Screen readers read the label of the plot instead of its drawing.
  plotOf(name).querySelectorAll(".main-svg").forEach(drawing => drawing.setAttribute("aria-hidden", true));
}

const drawAll = () => names.forEach(draw);

/* Draw one figure after the other, so that a page with many curves can be read and scrolled meanwhile. */
async function drawInTurn() {
  for (const name of names) {
    draw(name);
    await new Promise(done => setTimeout(done));
  }
}

/* Downloads: the figure as SVG in light colours; its numbers as CSV, for all positions of the slider. */
function save(url, file) {
  const link = document.createElement("a");
  Object.assign(link, { href: url, download: file });
  link.click();
}

async function saveSvg(name) {
  const { data, layout } = currentFigure(name, "light", { width: 760 });
  save(await Plotly.toImage({ data, layout }, { format: "svg", width: 760, height: layout.height }), `${name}.svg`);
}

function saveCsv(name) {
  const url = URL.createObjectURL(new Blob([csv(page.figures[name])], { type: "text/csv" }));
  save(url, `${name}.csv`);
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function csv({ data, layout, frames }) {
  const head = frames ? ["run", "location", "step", "index", "eigenvalue"] : ["run", "quantity", layout.xaxis.title.text, "value"];
  const rows = frames
    ? frames.flatMap(frame => frame.flatMap(({ step, y }, i) => y.map((value, k) => [data[i].meta.run, layout.meta.location, step, data[i].x[k], value])))
    : data.flatMap(({ meta, x, y }) => x.map((at, k) => [meta.run, meta.quantity, at, meta.texts?.[k] ?? y[k]]));
  const lines = [head, ...rows].map(row => row.map(field).join(","));
  return [...new Set(lines)].join("\r\n") + "\r\n"; // the spectra of a shorter run appear at several positions
}

function field(value) {
  const text = String(value ?? "");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/* Controls. */
function moveSlider(position) {
  state.position = position;
  const slider = document.getElementById("position");
  slider.value = position;
  document.getElementById("position-caption").textContent = page.positions[position].caption;
  slider.setAttribute("aria-valuetext", page.positions[position].caption);
  for (const name of names) {
    if (page.figures[name].frames) draw(name);
    else if (page.figures[name].layout.meta?.over_steps) Plotly.relayout(plotOf(name), { shapes: currentFigure(name, "").layout.shapes });
  }
}

/* Move the slider to the spectrum that is nearest to a step of a run. */
function moveSliderTo(run, step) {
  const distances = page.positions.map(({ steps }) => Math.abs((steps[run] ?? Infinity) - step));
  const nearest = Math.min(...distances);
  if (Number.isFinite(nearest)) moveSlider(distances.indexOf(nearest));
}

function toggleRun(button) {
  const { run } = button.dataset;
  if (!state.hidden.delete(run)) state.hidden.add(run);
  button.setAttribute("aria-pressed", !state.hidden.has(run));
  drawAll();
}

function listen(id, event, action) {
  document.getElementById(id)?.addEventListener(event, action);
}

let player = null;

function stop() {
  clearInterval(player);
  player = null;
  const button = document.getElementById("play");
  if (button) button.textContent = "Play";
}

function play() {
  if (player) return stop();
  const last = page.positions.length - 1;
  if (state.position === last) moveSlider(0);
  document.getElementById("play").textContent = "Stop";
  player = setInterval(() => (state.position < last ? moveSlider(state.position + 1) : stop()), 120);
}

const isDark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function nameTheme() {
  document.getElementById("theme").textContent = isDark() ? "Light colours" : "Dark colours";
}

function preparePrint(printing) {
  state.printing = printing;
  document.querySelectorAll("details").forEach(details => {
    if (printing) details.dataset.open = details.open;
    details.open = printing || details.dataset.open === "true";
  });
  drawAll();
}

/* plotly.js is stored in the page as base64 of gzip. It runs as a script element, because the content security policy allows its hash. */
async function loadPlotly() {
  const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), letter => letter.charCodeAt(0));
  const script = document.createElement("script");
  script.textContent = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  document.head.append(script);
}

async function main() {
  listen("theme", "click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); drawAll(); });
  nameTheme();
  if (names.length) await loadPlotly();
  await drawInTurn();
  listen("position", "input", event => { stop(); moveSlider(Number(event.target.value)); });
  listen("play", "click", play);
  listen("relative", "change", event => { state.relative = event.target.checked; moveSlider(state.position); });
  if (document.getElementById("position")) moveSlider(state.position);
  legend?.addEventListener("click", ({ target }) => target.closest("button") && toggleRun(target.closest("button")));
  for (const name of names) {
    figureOf(name).addEventListener("click", ({ target }) => {
      if (target.dataset.download === "svg") saveSvg(name);
      if (target.dataset.download === "csv") saveCsv(name);
    });
    if (!page.figures[name].layout.meta?.over_steps) continue;
    plotOf(name).on("plotly_click", ({ points: [{ data, x }] }) => { stop(); moveSliderTo(data.legendgroup, x); });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { nameTheme(); drawAll(); });
  addEventListener("beforeprint", () => preparePrint(true));
  addEventListener("afterprint", () => preparePrint(false));
  root.dataset.ready = "";
}

main().catch(error => {
  const message = document.getElementById("error");
  message.textContent = `The figures cannot be drawn in this browser (${error.message}); the tables are complete.`;
  message.hidden = false;
});
