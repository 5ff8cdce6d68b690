const { figures, runs, last_step, colors } = JSON.parse(document.getElementById("data").textContent);
const several = runs.length > 1;
const names = Object.keys(figures);
const root = document.documentElement;
const state = { position: null, relative: false, printing: false, hidden: new Set() };

const plotOf = name => document.querySelector(`#figure-${name} .plot`);
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ?? (systemIsDark.matches ? "dark" : "light")) === "dark";

/* Return plotly's template with the colours of the style sheet, in a colour scheme ("" is that of the page). */
function template(scheme) {
  const probe = document.createElement("div");
  probe.className = "plot";
  probe.style.colorScheme = scheme;
  document.body.append(probe);
  const { color: ink, backgroundColor: paper, outlineColor: rule, borderTopColor: soft } = getComputedStyle(probe);
  probe.remove();
  const axis = { gridcolor: rule, zerolinecolor: rule, linecolor: soft, tickfont: { color: soft }, automargin: true };
  return { layout: {
    paper_bgcolor: paper, plot_bgcolor: paper, font: { family: "system-ui, sans-serif", size: 12, color: ink },
    xaxis: axis, yaxis: axis, hoverlabel: { namelength: -1, bgcolor: paper, bordercolor: soft, font: { color: ink } },
    updatemenudefaults: { bgcolor: paper, bordercolor: rule, font: { color: ink } },
    sliderdefaults: { bgcolor: rule, bordercolor: rule, activebgcolor: soft, tickcolor: rule, font: { color: soft } },
  } };
}

/* The kinds of vertical axes. */
const axes = {
  number: { nticks: 5, exponentformat: "power" },
  count: { nticks: 5, rangemode: "tozero" },
  percent: { nticks: 5, rangemode: "tozero", tickformat: ".3~p", hoverformat: ".1%" },
  log: { nticks: 6, type: "log", exponentformat: "power", hoverformat: ".3~g", tickfont: { size: 10 } },
};
/* The runs after the last colour start again at the first colour, with the next dash. */
const dashes = ["solid", "dash", "dot", "dashdot"];
const colorOf = run => colors[run % colors.length];
const dashOf = run => dashes[Math.floor(run / colors.length) % dashes.length];
/* The curves of one run belong to its feature sets, and have their colours. */
const labelOf = run => runs[several ? run : 0].label;
/* Plotly's name of the k-th axis: y, y2, y3 … */
const axis = (letter, k) => (k ? `${letter}${k + 1}` : letter);
/* Escape text for plotly, which draws a subset of HTML, and %{x} as a field. */
const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "%{": "%&#123;" };
const plain = text => text.replace(/[&<>]|%\{/g, found => escapes[found]);

/* Return a curve with the values `y` as a trace of plotly. */
function trace({ run, name, x, low, high, images, share, points, faint, opacity = faint ? 0.4 : 1 }, y, xaxis, yaxis) {
  const label = labelOf(run), color = colorOf(run);
  const error = share && images.some(Boolean) && images.map((n, k) => (n ? Math.sqrt(y[k] * (1 - y[k]) / n) : 0));
  const bars = error ? { array: error } : low && { array: high.map((end, k) => end - y[k]), arrayminus: low.map((end, k) => y[k] - end) };
  return {
    type: "scatter", mode: points || x.length === 1 ? "lines+markers" : "lines", x, y, xaxis, yaxis, opacity,
    name: plain(several ? `${label}: ${name}` : name), meta: [label, name],
    hovertext: images?.map(n => (n ? `n = ${n}` : "")), legendgroup: `${run}`, visible: !state.hidden.has(`${run}`),
    line: { color, dash: dashOf(run), width: faint ? 1.25 : 2 }, marker: { color, size: 4 },
    error_y: bars && { ...bars, thickness: 1, width: 3 },
  };
}

/* Return the layout of a figure: its panels one above the other, over the same horizontal axis if there is no slider. */
function layoutOf({ x, panels, positions, ticks }) {
  const height = positions ? 300 : panels.length > 1 ? 150 : 210, gap = positions ? 90 : 42;
  const layout = {
    height: panels.length * (height + gap) - gap + (positions ? 196 : 90), margin: { l: 52, r: 10, t: 42, b: 48 },
    grid: { subplots: panels.map((_, k) => [axis("x", positions ? k : 0) + axis("y", k)]), ygap: gap / (height + gap) },
    hovermode: "x unified", hoversubplots: several ? "single" : "axis", // values of all panels of many runs would cover it
    showlegend: false, uirevision: "keep", annotations: [], shapes: [],
  };
  if (ticks) Object.assign(layout, { showlegend: !several, legend: { orientation: "h", x: 0, y: -0.4, yanchor: "top" } });
  const scale = ticks ? { type: "log", tickvals: ticks, ticktext: ticks.map(String) } : {};
  if (x === "step") Object.assign(scale, { range: [0, 1.02 * last_step], exponentformat: "none" });
  panels.forEach(({ title, kind, range, relative_range }, k) => {
    layout[axis("xaxis", positions ? k : 0)] = { title: { text: x }, ...scale };
    layout[axis("yaxis", k)] = { ...axes[kind], range: (state.relative && relative_range) || range };
    const place = { xref: "paper", x: 0, xanchor: "left", yref: `${axis("y", k)} domain`, y: 1, yanchor: "bottom" };
    layout.annotations.push({ ...place, text: `<b>${plain(title)}</b>`, showarrow: false });
  });
  if (x === "step") runs.forEach((_, run) => markAlarms(layout, run));
  return layout;
}

/* Add a line and a mark for each alarm of a run. */
function markAlarms({ annotations, shapes }, run) {
  const { label, alarms } = runs[run], color = colorOf(run);
  for (const [step, lines] of Object.entries(alarms)) {
    const hovertext = (several ? [label, ...lines] : lines).map(plain).join("<br>");
    const mark = { text: "▼", showarrow: false, hovertext, font: { color, size: 14 } };
    annotations.push({ ...mark, x: step, yref: "paper", y: 1, yanchor: "bottom" });
    const line = { type: "line", layer: "below", line: { color, width: 1, dash: "dot" } };
    shapes.push({ ...line, x0: step, x1: step, yref: "paper", y0: 0, y1: 1 });
  }
}

/* Return the slider over the positions, and the button that plays them. */
function controls(positions) {
  const step = duration => ({ mode: "immediate", transition: { duration: 0 }, frame: { duration, redraw: true } });
  const steps = positions.map((label, k) => ({ label, method: "animate", args: [[`${k}`], step(0)] }));
  const play = { label: "Play", method: "animate", args: [null, step(120)] };
  const active = state.position ?? positions.length - 1, prefix = several ? "share of the training: " : "step ";
  const place = { x: 0, xanchor: "left", y: 0, yanchor: "top", pad: { t: 62 } };
  return {
    sliders: [{ active, currentvalue: { prefix }, steps, pad: { t: 56 }, x: 0.2, len: 0.72 }],
    updatemenus: [{ type: "buttons", showactive: false, buttons: [play], ...place }],
  };
}

/* Return a figure in the current state: position of the slider, division by the largest eigenvalue, hidden runs. */
function current(name, scheme = "", size = {}) {
  const figure = figures[name], { panels, positions } = figure;
  const scaled = y => (state.relative && positions ? y.map(value => value && value / y[0]) : y);
  const at = state.position ?? positions?.length - 1;
  const data = panels.flatMap(({ curves }, k) => curves.map(curve =>
    trace(curve, scaled(curve.frames?.[at] ?? curve.y), axis("x", positions ? k : 0), axis("y", k))));
  const layout = { ...layoutOf(figure), ...(positions && controls(positions)), ...size, template: template(scheme) };
  const curves = panels.flatMap(panel => panel.curves), traces = [...curves.keys()].filter(i => curves[i].frames);
  const frames = positions?.map((_, k) => ({ name: `${k}`, traces, data: traces.map(i => ({ y: scaled(curves[i].frames[k]) })) }));
  return { data, layout, frames };
}

/* A printed figure has light colours, and fits on a page of A4 or Letter with its heading and caption. */
async function draw(name) {
  const { height } = layoutOf(figures[name]);
  const figure = state.printing ? current(name, "light", { width: 640, height: Math.min(height, 780) }) : current(name);
  plotOf(name).style.height = `${figure.layout.height}px`;
  const config = { responsive: true, displaylogo: false, modeBarButtons: [["zoomIn2d", "zoomOut2d", "resetScale2d"]] };
  await Plotly.react(plotOf(name), { ...figure, config });
  plotOf(name).querySelectorAll(".main-svg").forEach(drawing => drawing.setAttribute("aria-hidden", true)); // the plot has a label
}

async function drawAll() {
  for (const name of names) await draw(name);
}

/* Downloads: the figure as SVG in light colours with a legend; its numbers as CSV, for all positions of the slider. */
function save(url, file) {
  Object.assign(document.createElement("a"), { href: url, download: file }).click();
}

async function saveSvg(name) {
  const size = { width: 760, height: layoutOf(figures[name]).height };
  const { data, layout } = current(name, "light", { ...size, showlegend: true });
  save(await Plotly.toImage({ data, layout }, { format: "svg", ...size }), `${name}.svg`);
}

function saveCsv(name) {
  const { x: title, panels, positions } = figures[name];
  const cell = value => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const rows = ({ run, name, x }, y, position) => x.map((at, j) => [position, labelOf(run), name, at, y[j]]);
  const lines = panels.flatMap(panel => panel.curves).flatMap(curve =>
    curve.frames?.flatMap((y, k) => rows(curve, y, positions[k])) ?? rows(curve, curve.y, ""));
  const text = [["position", "run", "quantity", title, "value"], ...lines].map(line => line.map(cell).join(",")).join("\r\n");
  save(URL.createObjectURL(new Blob([text], { type: "text/csv" })), `${name}.csv`);
}

function toggleRun(button) {
  const { run } = button.dataset;
  if (!state.hidden.delete(run)) state.hidden.add(run);
  button.setAttribute("aria-pressed", !state.hidden.has(run));
  drawAll();
}

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
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; nameTheme(); drawAll(); });
  systemIsDark.addEventListener("change", () => { nameTheme(); drawAll(); });
  nameTheme();
  for (const name of names) plotOf(name).style.height = `${layoutOf(figures[name]).height}px`; // so that nothing moves later
  if (names.length) await loadPlotly();
  await drawAll();
  if (figures.spectrum) plotOf("spectrum").on("plotly_animatingframe", ({ name }) => { state.position = Number(name); });
  document.getElementById("relative")?.addEventListener("change", ({ target }) => { state.relative = target.checked; draw("spectrum"); });
  document.querySelectorAll("[data-run]").forEach(button => button.addEventListener("click", () => toggleRun(button)));
  for (const name of names) {
    const [svg, csv] = document.querySelectorAll(`#figure-${name} [data-download]`);
    svg.addEventListener("click", () => saveSvg(name));
    csv.addEventListener("click", () => saveCsv(name));
  }
  addEventListener("beforeprint", () => preparePrint(true));
  addEventListener("afterprint", () => preparePrint(false));
  root.dataset.ready = "";
}

main().catch(error => {
  const message = document.getElementById("error");
  message.textContent = `The figures cannot be drawn in this browser (${error.message}); the tables are complete.`;
  message.hidden = false;
});
