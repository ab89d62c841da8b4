// The verdict, the eight rows, the ladder, the cost and how each run ended.

const FAILING_SHOWN = 10;

function overview() {
  const compared = data.experiment !== "";
  return [
    el("p", { class: `verdict ${data.verdict}` }, data.headline),
    data.beside.map((line) => el("p", { class: "beside" }, line)),
    compared && el("div", { class: "glance" }, ladderPicture(), rewardCurve()),
    compared &&
      el(
        "ul",
        {},
        data.reasons.map((reason) => el("li", {}, reason)),
      ),
    ...whatFailed(),
    ...(compared ? comparison() : []),
    el("h2", {}, say("What was not compared")),
    notCompared(),
    compared && data.runs.length > 0 && [
      el("h2", {}, say("How each run ended")),
      table(data.outcome_columns, data.runs.map(runCells), "runs"),
    ],
  ];
}

function comparison() {
  const numbers = [say("baseline"), say("experiment"), say("difference"), say("margin"), say("test")];
  return [
    el("h2", {}, say("The eight metrics")),
    table([say("metric"), say("finding"), ...numbers], data.table.map(rowCells), "rows"),
    el("p", { class: "note" }, [data.basis, ...new Set(data.table.flatMap((row) => row.notes))].join(say(" "))),
    el("h2", {}, say("The ladder of evidence")),
    table(
      [say("level"), say("status"), say("question"), say("findings compared"), say("strongest finding")],
      data.ladder.map(rungCells),
      "ladder",
    ),
    el("h2", {}, say("Performance")),
    table(
      [say("cost"), say("finding"), data.baseline, data.experiment, `${data.experiment} / ${data.baseline}`],
      data.cost.map(costCells),
      "cost",
    ),
  ];
}

// The rungs from L0 at the bottom to L4, each in the colour of what it came to.
function ladderPicture() {
  const [width, step] = [330, 34];
  const height = data.ladder.length * step + 10;
  const told = data.ladder.map((rung) => `${rungName(rung.level)}${say(": ")}${say(rung.status.replace("_", " "))}`);
  const label = `${say("The ladder of evidence")}${say(": ")}${told.join(say("; "))}`;
  const svg = el("svg", { viewBox: `0 0 ${width} ${height}`, class: "rungs", role: "img", "aria-label": label });
  for (const x of [10, 320]) svg.append(el("line", { class: "rail", x1: x, x2: x, y1: 2, y2: height - 2 }));
  data.ladder.forEach((rung, at) => {
    const y = height - (at + 1) * step;
    const counts = rung.total ? `${rung.compared}/${rung.total}` : "";
    svg.append(
      el("rect", { class: `rung ${rung.total ? rung.status : "none"}`, x: 10, y, width: 310, height: step - 8, rx: 4 }),
      el("text", { class: "rung-name", x: 20, y: y + 18 }, told[at]),
      el("text", { class: "rung-name", x: 310, y: y + 18, "text-anchor": "end" }, counts),
    );
  });
  return svg;
}

// The reward of the runs that the first table is of.
function rewardCurve() {
  const metric = "rollout/raw_reward";
  const arms = Object.entries(data.designs[data.compared.design] ?? {});
  const lines = arms.flatMap(([arm, runs]) => linesOf(metric, arm, runs));
  if (!lines.some(({ steps }) => steps.length > 1)) return null;
  const drawn = {
    lines,
    bands: bandsOf(metric, data.compared.design, lines),
    marks: marksOf(lines),
    differs: firstDifference(data.compared.design),
    note: marginNote(metric, data.compared.design),
  };
  const toCurves = () => {
    location.hash = route("metrics", metric);
  };
  const names = [
    el("span", { class: "value baseline" }, data.baseline),
    el("span", { class: "value experiment" }, data.experiment),
  ];
  return el(
    "div",
    {},
    chart(metric, drawn, { log: false, range: null }, toCurves, openStep),
    el("p", { class: "legend" }, names),
  );
}

// The first failing findings, causes above their consequences.
function whatFailed() {
  const first = data.failing.slice(0, FAILING_SHOWN);
  const more = data.failing.length - first.length;
  return [
    first.length > 0 && el("h2", {}, say("What failed")),
    first.length > 0 &&
      el(
        "ul",
        {},
        first.map((place) =>
          el(
            "li",
            {},
            rungName(data.findings[place].level),
            " ",
            findingSaid(place),
            " ",
            el("span", { class: "where" }, placeOf(data.findings[place].where)),
          ),
        ),
      ),
    more > 0 &&
      el("p", {}, link(route("findings", "status", "fail"), say("{count} more failing findings", { count: more }))),
  ];
}

function notCompared() {
  const compared = data.experiment !== "";
  const places = data.findings
    .map((finding, place) => (finding.status === "not_compared" ? place : -1))
    .filter((place) => place >= 0);
  const rows = compared ? data.table : [];
  const rungs = compared ? data.ladder : [];
  const items = [
    ...rows
      .filter((row) => !Object.keys(row.baseline).length)
      .map((row) => say("the row {row}: no values", { row: say(row.name) })),
    ...rows
      .filter((row) => !row.findings.length)
      .map((row) => say("the row {row}: no finding tests it", { row: say(row.name) })),
    ...rungs.filter((rung) => !rung.total).map((rung) => `${rungName(rung.level)}${say(": ")}${say("no finding")}`),
    ...places.map((place) => [rungName(data.findings[place].level), " ", findingSaid(place)]),
  ];
  return items.length
    ? el(
        "ul",
        {},
        items.map((item) => el("li", {}, item)),
      )
    : el("p", {}, say("Every finding compared something."));
}

function rowCells(row) {
  const tested = row.findings.map((one) => el("div", {}, one.tested));
  const found = row.findings.map((one) => el("div", {}, findingLink(one.number, one.found)));
  const [name, ...values] = row.cells;
  const metric = row.metric.endsWith("/") ? `${row.metric}stop` : row.metric;
  const lines = values.map((value) => value.split(", ").map((line) => el("div", {}, line)));
  return [
    link(route("metrics", metric), name),
    found.length ? found : say("not compared"),
    ...lines,
    tested.length ? tested : say("not compared"),
  ];
}

function findingLink(place, text) {
  return link(route("findings", place), badge(data.findings[place].status, text));
}

function rungCells(rung) {
  const counts = say("{compared} of {total}", rung);
  const strongest = rung.strongest === null ? say("no finding") : findingSaid(rung.strongest);
  return [
    rungName(rung.level),
    badge(rung.status),
    rung.question,
    link(route("findings", "level", rung.level), counts),
    strongest,
  ];
}

function findingSaid(place) {
  const finding = data.findings[place];
  const named = `${finding.check}: `;
  const message = finding.message.startsWith(named) ? finding.message.slice(named.length) : finding.message;
  return [link(route("findings", place), finding.check), say(": "), message];
}

function costCells(cost) {
  const place = data.findings.findIndex((finding) => finding.level === "cost" && finding.where.field === cost.metric);
  const [name, ...values] = cost.cells;
  return [
    name,
    place < 0 ? say("not compared") : findingLink(place, say(cost.status.replace("_", " "))),
    ...values,
  ];
}

function runCells(run) {
  const [name, ...others] = run.cells;
  const pair = pairOfRun(run.run);
  return [pair ? link(route("samples", pair.name, 0), name) : name, ...others];
}
