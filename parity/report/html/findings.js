// Every finding, filtered, each with its numbers and where its rows are on disk.

const findingsState = {
  filter: "",
  level: "",
  run: "",
  statuses: new Set(["fail", "inconclusive", "not_compared", "pass"]),
  most: 200,
};
const ORDER = ["fail", "inconclusive", "not_compared", "pass"];

function findings(...parts) {
  const [kind, value] = parts;
  if (kind === "level") Object.assign(findingsState, { level: value, run: "", filter: "", statuses: new Set(ORDER) });
  if (kind === "status") Object.assign(findingsState, { level: "", run: "", filter: "", statuses: new Set([value]) });
  const named = /^\d+$/.test(kind ?? "") ? Number(kind) : null;
  const list = el("div", { class: "findings" });
  const draw = () => drawFindings(list, named);
  const set = (name) => (chosen) => {
    findingsState[name] = chosen;
    draw();
  };
  const runs = [...new Set(data.findings.map((finding) => finding.where.run).filter(Boolean))].sort();
  const levels = [...new Set(data.findings.map((finding) => finding.level))];
  draw();
  return [
    el("h2", {}, say("Findings")),
    el(
      "div",
      { class: "controls" },
      filter(say("contains"), findingsState.filter, set("filter")),
      choice(
        say("level"),
        [["", say("all")], ...levels.map((level) => [level, rungName(level)])],
        findingsState.level,
        set("level"),
      ),
      choice(say("run"), [["", say("all")], ...runs.map((run) => [run, run])], findingsState.run, set("run")),
      ORDER.map((status) =>
        check(badge(status), findingsState.statuses.has(status), (on) => {
          findingsState.statuses[on ? "add" : "delete"](status);
          draw();
        }),
      ),
    ),
    list,
  ];
}

function drawFindings(list, named) {
  const text = findingsState.filter.toLowerCase();
  const wanted = data.findings
    .map((finding, place) => ({ finding, place }))
    .filter(({ finding, place }) => place === named || isWanted(finding, text))
    .sort(
      (one, two) =>
        ORDER.indexOf(one.finding.status) - ORDER.indexOf(two.finding.status) ||
        causeRank(one.place) - causeRank(two.place) ||
        one.place - two.place,
    );
  const most = findingsState.most;
  const first = wanted.filter(({ place }, at) => at < most || place === named);
  const more = () => {
    findingsState.most = Infinity;
    drawFindings(list, named);
  };
  list.replaceChildren(
    el(
      "p",
      { class: "note", role: "status" },
      say("{shown} of {all} findings", { shown: wanted.length, all: data.findings.length }),
    ),
    ...cards(first, named),
    ...(wanted.length > first.length ? [el("button", { type: "button", onclick: more }, say("show all"))] : []),
  );
  if (named !== null)
    requestAnimationFrame(() => document.getElementById(`finding-${named}`)?.scrollIntoView({ block: "start" }));
}

// Among failures, causes stand above their consequences.
function causeRank(place) {
  return data.failing.indexOf(place);
}

// What passes is folded where something else is listed beside it.
function cards(shown, named) {
  const card = ({ finding, place }) => findingCard(finding, place, place === named);
  const folds = ({ finding, place }) => finding.status === "pass" && place !== named;
  const passing = shown.filter(folds);
  if (passing.length === shown.length || passing.length < 2) return shown.map(card);
  const others = shown.filter((one) => !folds(one)).map(card);
  const inside = el("div", {});
  const fill = () => inside.childElementCount || inside.append(...passing.map(card));
  const summary = el("summary", {}, badge("pass"), " ", say("{count} findings that pass", { count: passing.length }));
  const folded = el("details", { class: "passing", ontoggle: fill }, summary, inside);
  return [...others, Object.assign(folded, { fill })];
}

function isWanted(finding, text) {
  const { level, run, statuses } = findingsState;
  const said = `${finding.check} ${finding.message} ${Object.values(finding.where).join(" ")}`.toLowerCase();
  return (
    statuses.has(finding.status) &&
    (!level || finding.level === level) &&
    (!run || finding.where.run === run) &&
    said.includes(text)
  );
}

function placeOf(where) {
  const said = {
    run: (run) => say("run {run}", { run }),
    rollout_id: (step) => say("step {step}", { step }),
    group_index: (group) => say("group {group}", { group }),
    index: (slot) => say("slot {slot}", { slot }),
    field: (field) => say("field {field}", { field }),
  };
  return Object.entries(where)
    .map(([name, value]) => said[name](value))
    .join(say(", "));
}

function findingCard(finding, place, open) {
  const status =
    finding.status === "fail" && finding.severity === "warning"
      ? badge("inconclusive", say("warning"))
      : badge(finding.status);
  const summary = el(
    "summary",
    {},
    status,
    " ",
    rungName(finding.level),
    " ",
    el("b", {}, finding.check),
    " ",
    el("span", { class: "where" }, placeOf(finding.where)),
    " ",
    el("span", { class: "message" }, finding.message),
  );
  const ontoggle = (event) =>
    event.target.open && event.target.childElementCount < 2 && event.target.append(findingDetail(finding));
  const card = el("details", { id: `finding-${place}`, class: finding.status, ontoggle }, summary);
  if (open) {
    card.append(findingDetail(finding));
    card.open = true;
  }
  return card;
}

function findingDetail(finding) {
  const { where } = finding;
  const pair = pairOfRun(where.run);
  const target =
    pair &&
    where.rollout_id !== undefined &&
    ["samples", pair.name, where.rollout_id, where.group_index, where.index].filter((part) => part !== undefined);
  const facts = [
    [say("rule"), data.rules[finding.check] ?? ""],
    [say("message"), finding.message],
    [say("as in report.json"), finding.original],
    [say("where"), placeOf(where) || say("everything that was checked")],
    [say("expected"), shownValue(finding.expected)],
    [say("observed"), shownValue(finding.observed)],
    ...Object.entries(finding.evidence).map(([name, value]) => [name, shownValue(value)]),
    [say("rows on disk"), finding.source || say("not recorded")],
  ].filter(([, value]) => value !== "");
  return el(
    "div",
    { class: "detail" },
    el(
      "dl",
      {},
      facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    ),
    target && link(route(...target), say("open the samples of this place")),
    finding.where.field?.includes("/") &&
      data.curves && [" ", link(route("metrics", finding.where.field), say("open the curves"))],
  );
}

function shownValue(value) {
  if (value === null) return "";
  if (typeof value === "number") return number(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}
