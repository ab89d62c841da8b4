// Every metric's curves of both arms, one chart each; what is switched off or zoomed is so in all.

const metricsState = {
  design: data.compared.design || Object.keys(data.designs)[0],
  off: new Set(),
  log: false,
  range: null,
  filter: "",
  bands: new Set(["margin", "interval"]),
};

function metrics(named) {
  if (named) metricsState.filter = named;
  const charts = el("div", { class: "charts" });
  const toggles = el("div", { class: "toggles" });
  const meaning = el("p", { class: "legend" });
  const draw = () => drawCharts(charts, meaning);
  const redesign = (design) => {
    Object.assign(metricsState, { design, range: null });
    drawToggles(toggles, draw);
    draw();
  };
  drawToggles(toggles, draw);
  draw();
  const controls = el(
    "div",
    { class: "controls" },
    choice(
      say("design"),
      Object.keys(data.designs).map((design) => [design, design]),
      metricsState.design,
      redesign,
    ),
    filter(say("metrics named"), metricsState.filter, (text) => {
      metricsState.filter = text;
      draw();
    }),
    check(say("log scale"), metricsState.log, (on) => {
      metricsState.log = on;
      draw();
    }),
    el("button", { type: "button", onclick: () => zoom(null, draw) }, say("whole range")),
  );
  const note = say(
    "Drag to zoom all charts, click to open a step. By keyboard: arrows move, + zooms, 0 shows all, Enter opens the step.",
  );
  return [el("h2", {}, say("Curves")), controls, toggles, el("p", { class: "note" }, note), meaning, charts];
}

function zoom(range, draw) {
  metricsState.range = range;
  draw();
}

function drawToggles(place, draw) {
  const toggle = (name) => (on) => {
    metricsState.off[on ? "delete" : "add"](name);
    draw();
  };
  const box = (name, kind) => check(name, !metricsState.off.has(name), toggle(name), `${kind}`);
  const arms = Object.entries(data.designs[metricsState.design] ?? {});
  place.replaceChildren(
    ...arms.map(([arm, runs]) =>
      el(
        "fieldset",
        { class: sideOf(arm) },
        el("legend", {}, box(arm, "arm")),
        runs.map((run) => box(run, "run")),
      ),
    ),
  );
}

function drawCharts(place, meaning) {
  const { design } = metricsState;
  const focused = document.activeElement?.dataset?.metric;
  const arms = Object.entries(data.designs[design] ?? {}).filter(([arm]) => !metricsState.off.has(arm));
  const names = [...new Set(arms.flatMap(([, runs]) => runs.flatMap((run) => Object.keys(data.curves[run]))))];
  const wanted = names.filter((name) => name.includes(metricsState.filter)).sort(byInterest);
  const draw = () => drawCharts(place, meaning);
  const differs = firstDifference(design);
  const linesOfMetric = (metric) =>
    arms.flatMap(([arm, runs]) =>
      linesOf(
        metric,
        arm,
        runs.filter((run) => !metricsState.off.has(run)),
      ),
    );
  const chartOf = (metric, lines) => {
    const note = marginNote(metric, design);
    const drawn = { lines, bands: bandsOf(metric, design, lines), marks: marksOf(lines), differs, note };
    return chart(metric, drawn, metricsState, (range) => zoom(range, draw), openStep);
  };
  const curves = wanted.map((metric) => [metric, linesOfMetric(metric)]);
  const [constant, moving] = [true, false].map((flat) =>
    curves.filter(([, lines]) => isConstant(lines) === flat),
  );
  const charts = moving.map(([metric, lines]) => chartOf(metric, lines));
  if (constant.length) charts.push(constantMetrics(constant, chartOf, !moving.length));
  const every = arms.flatMap(([, runs]) => runs.map((name) => ({ name })));
  const onBand = (name, on) => {
    metricsState.bands[on ? "add" : "delete"](name);
    draw();
  };
  meaning.replaceChildren(...legend(design, marksOf(every), differs, onBand).flat(Infinity).filter(Boolean));
  place.replaceChildren(...(charts.length ? charts : [el("p", {}, say("No metric has this in its name."))]));
  place.querySelector(`[data-metric="${CSS.escape(focused ?? "")}"]`)?.focus();
}

// Whether every value of every run is the same number.
function isConstant(lines) {
  const first = lines[0]?.values[0];
  return Number.isFinite(first) && lines.every((line) => line.values.every((value) => value === first));
}

// Constant metrics as a list of values, with their charts on a click.
function constantMetrics(metrics, chartOf, open) {
  const inside = el("div", { class: "charts" });
  const fill = () => inside.childElementCount || inside.append(...metrics.map((one) => chartOf(...one)));
  if (open) fill();
  const values = metrics.map(([metric, lines]) => `${metric} ${number(lines[0].values[0])}`).join(say(", "));
  const summary = say("{count} metrics that never change: {values}", { count: metrics.length, values });
  const folded = el("details", { class: "constant", open, ontoggle: fill }, el("summary", {}, summary), inside);
  return Object.assign(folded, { fill });
}

// What happened to the runs that are drawn.
function marksOf(lines) {
  const drawn = new Set(lines.map((line) => line.name.split("/")[0]));
  return data.marks.filter((mark) => drawn.has(mark.run));
}

// The margin that decides, and the finding that says how it came out.
function marginNote(metric, design) {
  const held = marginOf(metric, design);
  return held && [`±${number(held.margin)}${held.in_log ? " (log)" : ""}: `, findingLink(held.number, held.found)];
}

// The metrics that the pictures show come first, then the others by name.
function byInterest(one, two) {
  const rank = (name) => data.first_metrics.indexOf(name) + 1 || 99;
  return rank(one) - rank(two) || (one < two ? -1 : 1);
}

function linesOf(metric, arm, runs) {
  const lines = runs
    .filter((run) => Object.hasOwn(data.curves[run], metric))
    .map((run) => {
      const { steps, values } = data.curves[run][metric];
      return { name: run, arm, steps, values: values.map(plainNumber), mean: false };
    });
  if (lines.length < 2) return lines;
  const every = lines.map(valuesByStep);
  const steps = lines[0].steps.filter((step) => every.every((values) => values.has(step)));
  const values = steps.map((step) => every.reduce((sum, of) => sum + of.get(step), 0) / lines.length);
  return [...lines, { name: arm, arm, steps, values, mean: true }];
}

function openStep(step) {
  const pair = data.pairs.find((pair) => pair.design === metricsState.design);
  if (pair) location.hash = route("samples", pair.name, step);
}
