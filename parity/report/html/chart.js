// One metric's curves as SVG: values under the pointer, zoom by dragging, the same by keyboard.

const CHART = { width: 540, height: 250, left: 62, right: 12, top: 12, bottom: 30 };
const LARGEST = 1e150; // from here on a value is as good as infinite: its square is
const MARKS = { engine_restart: "▲", resume: "▶", abort: "▼", collapse: "✖" };

// drawn: lines [{name, arm, steps, values, mean}], bands [{kind, steps, low, high}], marks, the step at which the runs
// first differ or null, and a note; state: {log, range}; onRange(range or null); onStep(step).
function chart(metric, { lines, bands, marks, differs, note }, state, onRange, onStep) {
  const { width, height, left, right, top, bottom } = CHART;
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((one, two) => one - two);
  const [first, last] = state.range ?? [steps[0] ?? 0, steps.at(-1) ?? 1];
  const inRange = (steps, values) => values.filter((_, at) => steps[at] >= first && steps[at] <= last);
  const isDrawable = (value) => Math.abs(value) < LARGEST && (!state.log || value > 0);
  const shown = lines.flatMap((line) => inRange(line.steps, line.values));
  const drawable = shown.filter(isDrawable);
  const around = bands.flatMap(({ steps, low, high }) => [...inRange(steps, low), ...inRange(steps, high)]);
  const scale = valueScale([...drawable, ...around.filter(isDrawable)], state.log);
  const x = (step) => left + ((step - first) / (last - first || 1)) * (width - left - right);
  const y = (value) => height - bottom - scale.place(value) * (height - top - bottom);

  const cursor = el("line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  const band = el("rect", { class: "zoom", y: top, height: height - top - bottom, visibility: "hidden" });
  const tip = el("div", { class: "tip", role: "status", hidden: true });
  const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": metric });
  for (const tick of scale.ticks) {
    svg.append(el("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    svg.append(el("text", { class: "tick", x: left - 6, y: y(tick) + 3.5, "text-anchor": "end" }, number(tick)));
  }
  for (const tick of niceTicks(first, last, 6).filter(Number.isInteger)) {
    svg.append(el("text", { class: "tick", x: x(tick), y: height - bottom + 14, "text-anchor": "middle" }, tick));
  }
  for (const one of bands) {
    svg.append(el("path", { class: `band ${one.kind}`, d: bandPath(one, first, last, x, y, state.log) }));
  }
  if (differs !== null && differs >= first && differs <= last) {
    const said = el("title", {}, say("first difference (L2)"));
    svg.append(el("line", { class: "differs", x1: x(differs), x2: x(differs), y1: top, y2: height - bottom }, said));
  }
  for (const line of lines) {
    const kind = `curve ${sideOf(line.arm)} ${line.mean ? "mean" : ""}`;
    svg.append(el("path", { class: kind, d: pathOf(line, first, last, x, y, state.log), "data-run": line.name }));
  }
  for (const mark of marks.filter((mark) => mark.step >= first && mark.step <= last)) {
    const said = `${mark.run}: ${say(mark.kind.replace("_", " "))} ${mark.message}`;
    const name = `mark ${sideOf(armOf(mark.run))}`;
    svg.append(
      el(
        "text",
        { class: name, x: x(mark.step), y: top + 8, "text-anchor": "middle" },
        el("title", {}, said),
        MARKS[mark.kind],
      ),
    );
  }
  svg.append(cursor, band);

  let at = null;
  const stepUnder = (event) => {
    const box = svg.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * width;
    const step = first + ((place - left) / (width - left - right)) * (last - first);
    return steps.reduce((near, one) => (Math.abs(one - step) < Math.abs(near - step) ? one : near), steps[0]);
  };
  const point = (step) => {
    at = step;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(step));
    cursor.setAttribute("visibility", "visible");
    const values = lines
      .map((line) => [line, line.values[line.steps.indexOf(step)]])
      .filter(([, value]) => value !== undefined);
    tip.replaceChildren(
      el("b", {}, say("step {step}", { step })),
      ...values.map(([line, value]) =>
        el(
          "div",
          { class: `value ${sideOf(line.arm)}` },
          `${line.mean ? say("mean of {arm}", { arm: line.arm }) : line.name} `,
          el("b", {}, number(value)),
        ),
      ),
    );
    tip.hidden = false;
    tip.classList.toggle("left", x(step) > width / 2);
  };
  const leave = () => {
    tip.hidden = true;
    cursor.setAttribute("visibility", "hidden");
  };
  let from = null;
  svg.addEventListener("pointerdown", (event) => {
    from = stepUnder(event);
    svg.setPointerCapture(event.pointerId);
  });
  svg.addEventListener("pointermove", (event) => {
    const step = stepUnder(event);
    point(step);
    if (from === null || step === from) return;
    band.setAttribute("visibility", "visible");
    band.setAttribute("x", Math.min(x(from), x(step)));
    band.setAttribute("width", Math.abs(x(step) - x(from)));
  });
  svg.addEventListener("pointerup", (event) => {
    const [begun, step] = [from, stepUnder(event)];
    from = null;
    if (begun === null) return;
    if (begun === step) onStep(step);
    else onRange([Math.min(begun, step), Math.max(begun, step)]);
  });
  svg.addEventListener("pointerleave", leave);

  const onkeydown = (event) => {
    const inside = steps.filter((step) => step >= first && step <= last);
    const place = inside.indexOf(at);
    if (event.key === "ArrowRight") point(inside[Math.min(place + 1, inside.length - 1)]);
    else if (event.key === "ArrowLeft") point(inside[Math.max(place - 1, 0)]);
    else if (event.key === "Enter" && at !== null) onStep(at);
    else if (event.key === "+" && at !== null && inside.length > 4) {
      const half = Math.max(2, Math.floor(inside.length / 4));
      onRange([inside[Math.max(0, place - half)], inside[Math.min(inside.length - 1, place + half)]]);
    } else if (event.key === "0" || event.key === "Escape") onRange(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const lost = shown.length - drawable.length;
  const notDrawn = lost
    ? state.log
      ? say("{count} values that are NaN, infinite or not above 0 are not drawn", { count: lost })
      : say("{count} values that are NaN or infinite are not drawn", { count: lost })
    : "";
  return el(
    "figure",
    { class: "chart", tabindex: 0, onkeydown, onblur: leave, "data-metric": metric },
    el("figcaption", {}, metric, [note, notDrawn].filter(Boolean).map((one) => el("small", {}, " ", one))),
    steps.length ? el("div", { class: "plot" }, svg, tip) : el("p", {}, say("not recorded")),
  );
}

function pathOf(line, first, last, x, y, log) {
  let path = "";
  let drawing = false;
  line.steps.forEach((step, at) => {
    const value = line.values[at];
    if (step < first || step > last || !(Math.abs(value) < LARGEST) || (log && value <= 0)) {
      drawing = false;
      return;
    }
    path += `${drawing ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    if (!drawing) path += "h0.01"; // a point without neighbours shows as a dot
    drawing = true;
  });
  return path;
}

function valueScale(values, log) {
  if (!values.length) return { ticks: [], place: () => 0.5 };
  const ends = values.reduce(
    ([low, high], value) => [Math.min(low, value), Math.max(high, value)],
    [Infinity, -Infinity],
  );
  const measure = log ? Math.log10 : (value) => value;
  let [low, high] = ends.map(measure);
  const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 0.5;
  [low, high] = [low - room, high + room];
  const powers = log
    ? Array.from({ length: Math.floor(high) - Math.ceil(low) + 1 }, (_, at) => 10 ** (Math.ceil(low) + at))
    : [];
  const ticks =
    powers.length > 1
      ? powers
      : log
        ? niceTicks(10 ** low, 10 ** high, 4).filter((tick) => tick > 0)
        : niceTicks(low, high, 5);
  return { ticks, place: (value) => (measure(value) - low) / (high - low) };
}

function niceTicks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((size) => size >= rough);
  const count = Math.floor(high / step) - Math.ceil(low / step) + 1;
  return Array.from({ length: count }, (_, at) => Number(((Math.ceil(low / step) + at) * step).toPrecision(12)));
}
