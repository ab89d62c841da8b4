// Every metric's curves of both arms, one chart each; what is switched off or zoomed is so in all.

const metricsState = {
  design: data.compared.design || Object.keys(data.designs)[0],
  off: new Set(),
  log: false,
  range: null,
  filter: "",
};

function metrics(named) {
  if (named) metricsState.filter = named;
  const charts = el("div", { class: "charts" });
  const toggles = el("div", { class: "toggles" });
  const draw = () => drawCharts(charts);
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
  return [el("h2", {}, say("Curves")), controls, toggles, el("p", { class: "note" }, note), charts];
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

function drawCharts(place) {
  const focused = document.activeElement?.dataset?.metric;
  const arms = Object.entries(data.designs[metricsState.design] ?? {}).filter(([arm]) => !metricsState.off.has(arm));
  const names = [...new Set(arms.flatMap(([, runs]) => runs.flatMap((run) => Object.keys(data.curves[run]))))];
  const wanted = names.filter((name) => name.includes(metricsState.filter)).sort(byInterest);
  const draw = () => drawCharts(place);
  const charts = wanted.map((metric) => {
    const lines = arms.flatMap(([arm, runs]) =>
      linesOf(
        metric,
        arm,
        runs.filter((run) => !metricsState.off.has(run)),
      ),
    );
    const drawn = new Set(lines.map((line) => line.name.split("/")[0]));
    const marks = data.marks.filter((mark) => drawn.has(mark.run));
    return chart(metric, lines, marks, metricsState, (range) => zoom(range, draw), openStep);
  });
  place.replaceChildren(...(charts.length ? charts : [el("p", {}, say("No metric has this in its name."))]));
  place.querySelector(`[data-metric="${CSS.escape(focused ?? "")}"]`)?.focus();
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
  const steps = lines[0].steps.filter((step) => lines.every((line) => line.steps.includes(step)));
  const values = steps.map(
    (step) => lines.reduce((sum, line) => sum + line.values[line.steps.indexOf(step)], 0) / lines.length,
  );
  return [...lines, { name: arm, arm, steps, values, mean: true }];
}

function openStep(step) {
  const pair = data.pairs.find((pair) => pair.design === metricsState.design);
  if (pair) location.hash = route("samples", pair.name, step);
}
