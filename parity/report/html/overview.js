// The verdict, the eight rows, the ladder, the cost and how each run ended.

const FAILING_SHOWN = 10;

function overview() {
  return [
    el("p", { class: `verdict ${data.verdict}` }, data.headline),
    data.beside.map((line) => el("p", { class: "beside" }, line)),
    el(
      "ul",
      {},
      data.reasons.map((reason) => el("li", {}, reason)),
    ),
    ...whatFailed(),
    el("h2", {}, say("The eight metrics")),
    table(
      [say("metric"), say("finding"), say("baseline"), say("experiment"), say("difference"), say("margin"), say("test")],
      data.table.map(rowCells),
      "rows",
    ),
    el("p", { class: "note" }, [data.basis, ...new Set(data.table.flatMap((row) => row.notes))].join(say(" "))),
    el("h2", {}, say("The ladder of evidence")),
    table(
      [say("level"), say("question"), say("status"), say("findings compared"), say("strongest finding")],
      data.ladder.map(rungCells),
      "ladder",
    ),
    el("h2", {}, say("Performance")),
    table(
      ["", data.baseline, data.experiment, `${data.experiment} / ${data.baseline}`, say("finding")],
      data.cost.map(costCells),
      "cost",
    ),
    el("h2", {}, say("What was not compared")),
    notCompared(),
    el("h2", {}, say("How each run ended")),
    table(data.outcome_columns, data.runs.map(runCells), "runs"),
  ];
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
  const places = data.findings
    .map((finding, place) => (finding.status === "not_compared" ? place : -1))
    .filter((place) => place >= 0);
  const items = [
    ...data.table
      .filter((row) => !Object.keys(row.baseline).length)
      .map((row) => say("the row {row}: no values", { row: say(row.name) })),
    ...data.table
      .filter((row) => !row.findings.length)
      .map((row) => say("the row {row}: no finding tests it", { row: say(row.name) })),
    ...data.ladder.filter((rung) => !rung.total).map((rung) => `${rungName(rung.level)}${say(": ")}${say("no finding")}`),
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
    rung.question,
    badge(rung.status),
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
  return [...cost.cells, place < 0 ? say("not compared") : findingLink(place, say(cost.status.replace("_", " ")))];
}

function runCells(run) {
  const [name, ...others] = run.cells;
  const pair = pairOfRun(run.run);
  return [pair ? link(route("samples", pair.name, 0), name) : name, ...others];
}
