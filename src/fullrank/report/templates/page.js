const figures = JSON.parse(document.getElementById("data").textContent);
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
    xaxis: axis, yaxis: axis, hoverlabel: { bgcolor: paper, bordercolor: soft, font: { color: ink } },
    updatemenudefaults: { bgcolor: paper, bordercolor: rule, font: { color: ink } },
    sliderdefaults: { bgcolor: rule, bordercolor: rule, activebgcolor: soft, tickcolor: rule, font: { color: soft } },
  } };
}

/* Return a figure in the current state: position of the slider, division by the largest eigenvalue, hidden runs. */
function current(name, scheme = "", size = {}) {
  const { data, layout, frames, relative_ranges } = figures[name];
  const drawn = { ...structuredClone(layout), ...size, template: template(scheme) };
  const scaled = y => (state.relative && frames ? y.map(value => value && value / y[0]) : y);
  const shown = frames?.map(frame => ({ ...frame, data: frame.data.map(({ y }) => ({ y: scaled(y) })) }));
  const at = shown?.[state.position ?? shown.length - 1].data ?? [];
  const traces = data.map((trace, i) => ({ ...trace, y: at[i]?.y ?? scaled(trace.y), visible: !state.hidden.has(trace.legendgroup) }));
  if (frames) drawn.sliders[0].active = state.position ?? frames.length - 1;
  if (frames && state.relative) relative_ranges.forEach((range, k) => { drawn[k ? `yaxis${k + 1}` : "yaxis"].range = range; });
  return { data: traces, layout: drawn, frames: shown };
}

/* A printed figure has light colours, and fits on a page of A4 or Letter with its heading and caption. */
async function draw(name) {
  const height = Math.min(figures[name].layout.height, 780);
  const figure = state.printing ? current(name, "light", { width: 640, height }) : current(name);
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
  const size = { width: 760, height: figures[name].layout.height };
  const { data, layout } = current(name, "light", { ...size, showlegend: true });
  save(await Plotly.toImage({ data, layout }, { format: "svg", ...size }), `${name}.svg`);
}

function saveCsv(name) {
  const { data, layout, frames } = figures[name];
  const axis = layout.xaxis.title.text, cell = value => `"${String(value ?? "").replaceAll('"', '""')}"`;
  const rows = (k, y, position) => data[k].x.map((x, j) => [position, ...data[k].meta, x, y[j]]);
  const lines = frames
    ? frames.flatMap((frame, f) => frame.data.flatMap(({ y }, k) => rows(k, y, layout.sliders[0].steps[f].label)))
    : data.flatMap((trace, k) => rows(k, trace.y, ""));
  const text = [["position", "run", "quantity", axis, "value"], ...lines].map(line => line.map(cell).join(",")).join("\r\n");
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
