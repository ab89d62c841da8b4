// Which view is shown: the part of the address after #. Keys do what links do.

const VIEWS = { overview, metrics, samples, findings, events: timeline, provenance };
const TITLES = {
  overview: say("Overview"),
  metrics: say("Curves"),
  samples: say("Samples"),
  findings: say("Findings"),
  events: say("Events"),
  provenance: say("Provenance"),
};
const main = document.getElementById("view");

function parts() {
  const [view, ...rest] = location.hash.slice(1).split("/").map(decodeURIComponent);
  return Object.hasOwn(VIEWS, view) ? [view, ...rest] : ["overview"];
}

function drawHead(view) {
  const links = Object.keys(VIEWS).map((name, at) =>
    el("a", { href: route(name), "aria-current": name === view ? "page" : null, accesskey: at + 1 }, TITLES[name]),
  );
  document
    .getElementById("head")
    .replaceChildren(
      el("h1", {}, "rollout parity ", el("span", { class: `badge ${data.verdict}` }, data.verdict_words)),
      el("nav", { "aria-label": say("views") }, links),
      el("button", { type: "button", class: "keys", onclick: showKeys }, say("keys")),
    );
}

async function show() {
  const [view, ...rest] = parts();
  drawHead(view);
  const content = await VIEWS[view](...rest);
  main.replaceChildren(...content.flat(Infinity).filter(Boolean));
  main.dataset.view = view;
  scrollTo(0, 0);
  main.querySelector(".sample.here")?.scrollIntoView({ block: "center" });
}

function showKeys() {
  const keys = [
    ["1 – 6", say("the views")],
    ["/", say("filter")],
    ["[ ]", say("previous and next step of samples")],
    ["j k", say("next and previous group")],
    ["?", say("these keys")],
  ];
  const dialog = el(
    "dialog",
    { onclose: () => dialog.remove() },
    table([say("key"), say("goes to")], keys),
    el("form", { method: "dialog" }, el("button", {}, say("close"))),
  );
  document.body.append(dialog);
  dialog.showModal();
}

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input:not([type=checkbox]), select"))
    return;
  const names = Object.keys(VIEWS);
  const { pair, step, shown = [], current } = samplesState;
  const beside = (by) => shown[shown.indexOf(current) + by];
  const keys = {
    "/": () => main.querySelector(".filter")?.focus(),
    "?": showKeys,
    "[": () => step > 0 && goTo(pair, step - 1),
    "]": () => goTo(pair, step + 1),
    j: () => beside(1) !== undefined && goTo(pair, step, beside(1)),
    k: () => beside(-1) !== undefined && goTo(pair, step, beside(-1)),
  };
  const inSamples = parts()[0] === "samples" && data.pairs.length > 0;
  if (/^[1-6]$/.test(event.key)) location.hash = route(names[Number(event.key) - 1]);
  else if (event.key in keys && (inSamples || "/?".includes(event.key))) keys[event.key]();
  else return;
  event.preventDefault();
}

// On paper there are no links: every view but the samples follows the other.
async function printAll() {
  const shown = [overview(), metrics(), findings(), timeline(), provenance()];
  main.replaceChildren(...shown.map((content) => el("section", {}, content.flat(Infinity).filter(Boolean))));
  for (const folded of main.querySelectorAll("details.passing, details.constant")) {
    folded.fill();
    folded.open = true;
  }
}

addEventListener("hashchange", show);
addEventListener("keydown", onKey);
addEventListener("beforeprint", printAll);
addEventListener("afterprint", show);
show();
