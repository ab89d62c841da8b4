// What surrounds curves: the margin around the baseline, and the interval of each arm's mean over runs, not steps.

function bandsOf(metric, design, lines) {
  const shown = [];
  if (metricsState.bands.has("margin")) shown.push(...marginBand(metric, design, lines));
  if (metricsState.bands.has("interval")) shown.push(...intervalBands(design, lines));
  return shown;
}

// The margin that a finding of these runs holds the metric to, if one does.
function marginOf(metric, design) {
  return design === data.compared.design && Object.hasOwn(data.margins, metric) ? data.margins[metric] : null;
}

function marginBand(metric, design, lines) {
  const held = marginOf(metric, design);
  const own = lines.filter((line) => line.arm === data.baseline);
  const middle = own.find((line) => line.mean) ?? own[0];
  if (!held || !middle) return [];
  const away = (sign) => (value) => (held.in_log ? value * Math.exp(sign * held.margin) : value + sign * held.margin);
  const [floor, lower] = [floorOf(lines), away(-1)];
  const low = middle.values.map((value) => Math.max(floor, lower(value)));
  return [{ kind: "margin", steps: middle.steps, low, high: middle.values.map(away(1)) }];
}

// Pointwise, as the pictures have it: from so many runs in each arm on.
function intervalBands(design, lines) {
  const { runs, quantiles } = data.interval;
  const arms = Object.keys(data.designs[design] ?? {}).map((arm) => lines.filter((line) => line.arm === arm));
  if (!arms.every((own) => own.filter((line) => !line.mean).length >= runs)) return [];
  const floor = floorOf(lines);
  return arms.map((own) => {
    const mean = own.find((line) => line.mean);
    const values = own.filter((line) => !line.mean).map(valuesByStep);
    const half = mean.steps.map((step, at) => {
      const squares = values.map((of) => (of.get(step) - mean.values[at]) ** 2);
      const variance = squares.reduce((sum, one) => sum + one, 0) / (values.length - 1);
      return quantiles[values.length] * Math.sqrt(variance / values.length);
    });
    return {
      kind: `interval ${sideOf(own[0].arm)}`,
      steps: mean.steps,
      low: mean.values.map((value, at) => Math.max(floor, value - half[at])),
      high: mean.values.map((value, at) => value + half[at]),
    };
  });
}

// A band of what is never negative ends at 0.
function floorOf(lines) {
  return lines.every((line) => line.values.every((value) => !(value < 0))) ? 0 : -Infinity;
}

function valuesByStep(line) {
  return new Map(line.steps.map((step, at) => [step, line.values[at]]));
}

// Up along the high side and back along the low one, anew after each gap; on a log scale down to the bottom at most.
function bandPath(band, first, last, x, y, log) {
  const pieces = [[]];
  band.steps.forEach((step, at) => {
    const { low, high } = { low: band.low[at], high: band.high[at] };
    if (step < first || step > last) return;
    if (!(Math.abs(low) < LARGEST && Math.abs(high) < LARGEST) || (log && high <= 0)) pieces.push([]);
    else pieces.at(-1).push([x(step), y(high), log && low <= 0 ? CHART.height - CHART.bottom : y(low)]);
  });
  const point = (place, height) => `${place.toFixed(1)} ${height.toFixed(1)}`;
  return pieces
    .filter((piece) => piece.length)
    .map((piece) => {
      const up = piece.map(([place, high]) => point(place, high));
      const back = [...piece].reverse().map(([place, , low]) => point(place, low));
      return `M${[...up, ...back].join("L")}Z`;
    })
    .join("");
}

// What a chart's lines, bands and marks mean; the bands are switched here.
function legend(design, marks, differs, onBand) {
  const arms = Object.entries(data.designs[design] ?? {});
  const several = arms.some(([, runs]) => runs.length > 1);
  const banded = arms.length > 0 && arms.every(([, runs]) => runs.length >= data.interval.runs);
  const held = design === data.compared.design && Object.keys(data.margins).length > 0;
  const swatch = (shape) => el("svg", { viewBox: "0 0 28 12", class: "swatch", "aria-hidden": "true" }, shape);
  const stroke = (kind) => swatch(el("line", { class: kind, x1: 1, x2: 27, y1: 6, y2: 6 }));
  const fill = (kind) => swatch(el("rect", { class: kind, x: 1, y: 1, width: 26, height: 10 }));
  const item = (sign, text) => el("span", { class: "item" }, sign, " ", text);
  const toggle = (name, sign, text) =>
    el("label", { class: "item" }, [
      el("input", {
        type: "checkbox",
        checked: metricsState.bands.has(name),
        onchange: (event) => onBand(name, event.target.checked),
      }),
      sign,
      " ",
      text,
    ]);
  return [
    arms.map(([arm, runs]) => {
      const name = runs.length > 1 ? say("{arm}, mean of {count} runs", { arm, count: runs.length }) : arm;
      return item(stroke(`curve ${sideOf(arm)} ${runs.length > 1 ? "mean" : ""}`), name);
    }),
    several && item(stroke("curve one"), say("one run")),
    held && toggle("margin", fill("band margin"), say("margin around the baseline")),
    banded &&
      toggle(
        "interval",
        fill("band interval"),
        say("{level} % interval over runs", { level: Math.round(100 * data.interval.level) }),
      ),
    [...new Set(marks.map((mark) => mark.kind))].map((kind) =>
      item(el("span", { class: "mark" }, MARKS[kind]), say(kind.replace("_", " "))),
    ),
    differs !== null && item(stroke("differs"), say("first difference (L2)")),
  ];
}

// The first step at which L2 found the runs of a design to differ; null where it found them equal.
function firstDifference(design) {
  const runs = new Set(Object.values(data.designs[design] ?? {}).flat());
  const steps = data.failing
    .map((place) => data.findings[place])
    .filter(({ level, where }) => level === "replay" && runs.has(where.run) && where.rollout_id !== undefined)
    .map(({ where }) => where.rollout_id);
  return steps.length ? Math.min(...steps) : null;
}
