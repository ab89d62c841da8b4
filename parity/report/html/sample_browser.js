// One step of a pair: its groups, and the samples of one of them in both arms, side by side.

const samplesState = {
  pair: data.pairs[0]?.name,
  step: 0,
  group: null,
  slot: null,
  filter: "",
  only: false,
  order: "group",
};
const SIDES = ["baseline", "experiment"];
const OPEN_TOKENS = 64;
const LINKED_STEPS = 60;

async function samples(pairName, step, group, slot) {
  if (!data.pairs.length)
    return [
      el("h2", {}, say("Samples")),
      el("p", {}, say("This report has no samples: it was made from curves alone.")),
    ];
  const pair =
    data.pairs.find((one) => one.name === pairName) ?? data.pairs.find((one) => one.name === samplesState.pair);
  const last = Math.max(0, pair.steps - 1);
  Object.assign(samplesState, {
    pair: pair.name,
    step: step === undefined ? Math.min(samplesState.step, last) : Math.min(Math.max(0, Number(step) || 0), last),
    group: group === undefined ? null : Number(group),
    slot: slot === undefined ? null : Number(slot),
  });
  const body = el("div", { class: "drill" });
  await drawStep(body, pair);
  return [el("h2", {}, say("Samples")), stepControls(pair, last, body), ...stepNotes(pair), body];
}

function goTo(pair, step, group) {
  const parts = ["samples", pair, step, group].filter((part) => part !== null && part !== undefined);
  location.hash = route(...parts);
}

function stepControls(pair, last, body) {
  const { step } = samplesState;
  const named = data.pairs.map((one) => [one.name, say("{design}, seed {seed}", one)]);
  const to = (event) => goTo(pair.name, Math.min(Math.max(0, Number(event.target.value) || 0), last));
  return el(
    "div",
    { class: "controls" },
    choice(say("pair"), named, pair.name, (name) => goTo(name, Math.min(step, last))),
    el(
      "button",
      {
        type: "button",
        disabled: step <= 0,
        onclick: () => goTo(pair.name, step - 1),
        "aria-label": say("previous step"),
      },
      "◀",
    ),
    el(
      "label",
      {},
      say("step"),
      " ",
      el("input", { type: "number", class: "step", min: 0, max: last, value: step, onchange: to }),
    ),
    el(
      "button",
      {
        type: "button",
        disabled: step >= last,
        onclick: () => goTo(pair.name, step + 1),
        "aria-label": say("next step"),
      },
      "▶",
    ),
    el("input", { type: "range", min: 0, max: last, value: step, onchange: to, "aria-label": say("step") }),
    filter(say("prompt or response contains"), samplesState.filter, (text) => {
      samplesState.filter = text;
      drawStep(body, pair);
    }),
    choice(say("order"), orders(), samplesState.order, (order) => {
      samplesState.order = order;
      drawStep(body, pair);
    }),
    check(say("only groups that differ or have a finding"), samplesState.only, (on) => {
      samplesState.only = on;
      drawStep(body, pair);
    }),
  );
}

function orders() {
  return [
    ["group", say("by group")],
    ["reward down", say("highest reward first")],
    ["reward up", say("lowest reward first")],
    ["length down", say("longest first")],
    ["length up", say("shortest first")],
  ];
}

// Groups by the mean over both sides' samples; what has none comes last.
function ordered(groups) {
  const [name, way] = samplesState.order.split(" ");
  if (name === "group") return groups;
  const key = (group) => {
    const values = SIDES.flatMap((side) => group[side]).map((sample) =>
      plainNumber(name === "reward" ? sample.reward : (sample.response_length ?? sample.tokens)),
    );
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return Number.isFinite(mean) ? (way === "up" ? mean : -mean) : Infinity;
  };
  return [...groups].sort((one, two) => key(one) - key(two) || one.group - two.group);
}

function sidesOf(pair) {
  return SIDES.slice(0, pair.sides);
}

function stepNotes(pair) {
  const held = Array.from({ length: pair.steps }, (_, step) => step).filter((step) => packedSamples(pair.name, step));
  const lacking = pair.steps - held.length;
  const noted = [...new Set(findingsOf(pair).map(({ finding }) => finding.where.rollout_id))]
    .filter((step) => step !== undefined)
    .sort((one, two) => one - two);
  return [
    lacking > 0 &&
      el(
        "p",
        { class: "note" },
        say(
          "This file holds the samples of {held} of {steps} steps of this pair: those where something failed or happened, the first and the last, and others evenly between. The rest are under runs/ of the experiment's directory.",
          { held: held.length, steps: pair.steps },
        ),
      ),
    lacking > 0 && stepLinks(pair, say("Steps in this file: "), held),
    noted.length > 0 && stepLinks(pair, say("Steps with a finding: "), noted),
  ];
}

function stepLinks(pair, name, steps) {
  const links = steps.slice(0, LINKED_STEPS).map((step) => [link(route("samples", pair.name, step), step), " "]);
  return el("p", { class: "note" }, name, links, steps.length > LINKED_STEPS && "…");
}

// What failed or is open at a place in the runs of a pair.
function findingsOf(pair, step, group, slot) {
  return data.findings
    .map((finding, place) => ({ finding, place }))
    .filter(
      ({ finding: { status, where } }) =>
        status !== "pass" &&
        pairOfRun(where.run) === pair &&
        (step === undefined || where.rollout_id === step) &&
        (group === undefined || where.group_index === group) &&
        (slot === undefined || where.index === slot),
    );
}

async function drawStep(body, pair) {
  const { step, filter: text, only } = samplesState;
  if (!packedSamples(pair.name, step)) {
    const said = pair.steps
      ? say("The samples of this step are not in this file: see runs/{run}/rollouts.", { run: pair.runs[0] })
      : say("No step has samples.");
    body.replaceChildren(el("p", {}, said));
    return;
  }
  const { groups, cut, requests } = await samplesOf(pair.name, step);
  const matches = (group) =>
    [...group.baseline, ...group.experiment].some((sample) =>
      `${promptOf(sample)}\n${sample.text ?? ""}`.includes(text),
    );
  const marked = (group) => differing(group) > 0 || findingsOf(pair, step, group.group).length > 0;
  const shown = ordered(groups.filter((group) => matches(group) && (!only || marked(group))));
  const chosen = groups.find((group) => group.group === samplesState.group) ?? shown[0];
  samplesState.shown = shown.map((group) => group.group);
  samplesState.current = chosen?.group;
  body.replaceChildren(
    el(
      "div",
      { class: "groups" },
      el("p", { class: "note" }, say("{shown} of {all} groups", { shown: shown.length, all: groups.length })),
      groupTable(pair, step, shown, chosen),
    ),
    el(
      "div",
      { class: "group" },
      requestLines(requests, pair),
      chosen ? groupDetail(pair, step, chosen, cut) : el("p", {}, say("No group matches.")),
    ),
  );
  body.querySelector(".here")?.scrollIntoView({ block: "nearest" });
}

function differing(group) {
  return group.experiment.filter((sample) => sample.differs !== null).length;
}

function promptOf(sample) {
  return sample?.prompt ?? (sample?.prompt_ids ? sample.prompt_ids.join(" ") : say("not recorded"));
}

function groupTable(pair, step, groups, chosen) {
  const rows = groups.map((group) => {
    return el(
      "tr",
      { class: group === chosen ? "here" : "" },
      el(
        "td",
        {},
        link(route("samples", pair.name, step, group.group), group.group),
        flags(differing(group), findingsOf(pair, step, group.group).length),
      ),
      el("td", { class: "prompt" }, promptOf(group.baseline[0] ?? group.experiment[0]).slice(0, 60)),
      sidesOf(pair).map((side) => el("td", { class: side }, mean(group[side], "reward"))),
      sidesOf(pair).map((side) => el("td", { class: side }, mean(group[side], "tokens"))),
    );
  });
  const two = pair.sides > 1;
  const both = (name) => (two ? [say("{name}, baseline", { name }), say("{name}, experiment", { name })] : [name]);
  const head = [say("group"), say("prompt"), ...both(say("reward")), ...both(say("length"))];
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": say("groups") },
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          head.map((name) => el("th", { scope: "col" }, name)),
        ),
      ),
      el("tbody", {}, rows),
    ),
  );
}

function flags(differs, found) {
  return [
    differs > 0 && el("div", {}, badge("fail", say("{count} differ", { count: differs }))),
    found > 0 && el("div", {}, badge("inconclusive", say("{count} findings", { count: found }))),
  ];
}

function mean(samplesOfArm, name) {
  const values = samplesOfArm.map((sample) => sample[name]);
  if (!values.length || values.some((value) => value === null)) return "–";
  return number(values.reduce((sum, value) => sum + plainNumber(value), 0) / values.length);
}

function groupDetail(pair, step, group, cut) {
  const slots = [...new Set([...group.baseline, ...group.experiment].map((sample) => sample.index))].sort(
    (one, two) => one - two,
  );
  const prompts = [
    ...new Set(
      ["baseline", "experiment"]
        .map((side) => group[side][0])
        .filter(Boolean)
        .map(promptOf),
    ),
  ];
  const found = findingsOf(pair, step, group.group);
  return [
    el("h3", {}, say("step {step}, group {group}", { step, group: group.group })),
    prompts.length > 1 && el("p", {}, badge("fail", say("the arms' prompts differ"))),
    prompts.map((prompt) => el("pre", { class: "text", dir: "auto", tabindex: 0, "data-of": "prompt" }, prompt)),
    found.length > 0 &&
      el(
        "ul",
        {},
        found.map(({ place }) => el("li", {}, findingSaid(place))),
      ),
    cut !== null &&
      el("p", { class: "note" }, say("Responses are cut after {cut} tokens here; the files have them whole.", { cut })),
    el(
      "div",
      { class: pair.sides > 1 ? "sides" : "" },
      sidesOf(pair).map((side, place) =>
        el("h4", { class: side }, pair.sides > 1 ? Object.keys(data.designs[pair.design] ?? {})[place] : pair.runs[0]),
      ),
      slots.map((slot) => {
        const [own, other] = SIDES.map((side) => group[side].filter((sample) => sample.index === slot));
        const cells = [sampleCell(own, "baseline", slot, pair.equal ? other[0] : null)];
        return pair.sides > 1 ? [...cells, sampleCell(other, "experiment", slot, pair.equal ? own[0] : null)] : cells;
      }),
    ),
  ];
}

function sampleCell(found, side, slot, other) {
  const here = slot === samplesState.slot ? "here" : "";
  return el(
    "div",
    { class: `sample ${side} ${here}`, "data-slot": slot },
    found.length ? found.map((sample) => sampleCard(sample, other)) : say("slot {slot}: not in this arm", { slot }),
  );
}

function sampleCard(sample, other) {
  const facts = [
    [say("finish reason"), sample.finish_reason],
    [say("reward"), number(sample.reward)],
    [say("advantage"), number(sample.advantage)],
    [say("length"), number(sample.response_length ?? sample.tokens)],
    [say("weights"), sample.weight_versions?.join(", ")],
    [say("seed"), sample.sampling_seed],
    [say("engine"), sample.engine_id],
  ].filter(([, value]) => value !== null && value !== undefined);
  const whole = sample.text === null || [...sample.text].length >= sample.characters;
  return [
    el(
      "div",
      { class: "facts" },
      el("b", {}, say("slot {slot}", { slot: sample.index })),
      facts.map(([name, value]) => el("span", {}, `${name} `, el("b", {}, value))),
    ),
    sample.text === null
      ? el("p", { class: "note" }, say("text not recorded"))
      : el("pre", { class: "text", dir: "auto", tabindex: 0, "data-of": "response" }, sample.text, whole ? "" : " …"),
    sample.differs !== null &&
      el("p", {}, badge("fail", say("first differs from the other arm at token {token}", { token: sample.differs }))),
    tokensOf(sample, other),
    el("small", {}, say("{file}, row {row}", sample)),
  ];
}

function tokensOf(sample, other) {
  if (sample.output_ids === null) return el("p", { class: "note" }, say("tokens not recorded"));
  const shown = sample.output_ids.length;
  const count =
    shown < sample.tokens
      ? say("first {shown} of {all} tokens, id over log-prob", { shown, all: sample.tokens })
      : say("{all} tokens, id over log-prob", { all: shown });
  const label = `${say("tokens")}${say(": ")}${say("{file}, row {row}", sample)}`;
  const list = el("div", { class: "tokens", tabindex: 0, role: "region", "aria-label": label });
  const fill = () => list.childElementCount || list.append(...sample.output_ids.map((id, at) => token(sample, id, at, other)));
  const ontoggle = (event) => event.target.open && fill();
  if (shown <= OPEN_TOKENS) fill();
  return el("details", { open: shown <= OPEN_TOKENS, ontoggle }, el("summary", {}, count), list);
}

function token(sample, id, at, other) {
  const thousandths = sample.logprobs?.[at];
  const value = typeof thousandths === "number" ? thousandths / 1000 : thousandths;
  const shown = typeof value === "number" ? value.toFixed(3) : (value ?? "–");
  const trained = sample.loss_mask === null || sample.loss_mask?.[at] === 1;
  const likely =
    typeof value !== "number"
      ? "unknown"
      : value > -0.1
        ? "sure"
        : value > -1
          ? "likely"
          : value > -3
            ? "open"
            : "rare";
  const text = data.tokens[id] ?? null;
  const said = say("token {at}: id {id}, log-prob {value}, {trained}", {
    at,
    id,
    value: shown,
    trained: trained ? say("trained") : say("masked"),
  });
  const unlike = other?.output_ids && other.output_ids[at] !== id;
  const kind = `token ${likely} ${trained ? "" : "masked"} ${unlike ? "unlike" : ""} ${at === sample.differs ? "differs" : ""}`;
  return el(
    "span",
    { class: kind, title: text === null ? said : `${said}: ${visible(text)}` },
    text !== null && el("b", {}, text),
    el("span", {}, id),
    el("small", {}, shown),
  );
}
