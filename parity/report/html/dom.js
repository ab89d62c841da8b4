"use strict";
// Elements, words and numbers. Whatever was written elsewhere enters the page through el(), as text.

const data = JSON.parse(document.getElementById("report").textContent);
const SVG_TAGS = new Set(["svg", "g", "path", "line", "rect", "circle", "text", "title"]);
const NO_GLYPH =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu;

function el(tag, attributes, ...children) {
  const node = SVG_TAGS.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  const shown = children.flat(Infinity).filter((child) => child != null && child !== false);
  node.append(...shown.map((child) => (child instanceof Node ? child : visible(String(child)))));
  return node;
}

// What has no glyph, or turns the direction of what follows, is shown by its number.
function visible(text) {
  return text.replace(NO_GLYPH, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

function say(template, values = {}) {
  const text = Object.hasOwn(data.words, template) ? data.words[template] : template;
  return text.replace(/\{(\w+)\}/g, (place, name) => (Object.hasOwn(values, name) ? values[name] : place));
}

function number(value) {
  if (value == null) return say("not recorded");
  if (typeof value === "string" || !Number.isFinite(value)) return String(value);
  if (value === 0) return "0";
  if (Number.isInteger(value) || Math.abs(value) >= 9999.5) {
    return Math.abs(value) < 1e15 ? Math.round(value).toLocaleString("en-US") : value.toExponential(3);
  }
  return Math.abs(value) >= 1e-4 ? String(Number(value.toPrecision(4))) : value.toExponential(3);
}

// NaN and infinities are text in JSON.
function plainNumber(value) {
  return value == null ? NaN : Number(value);
}

function route(...parts) {
  return `#${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

function link(target, ...children) {
  return el("a", { href: target }, children);
}

function table(columns, rows, name) {
  const head = el(
    "tr",
    {},
    columns.map((column) => el("th", { scope: "col" }, column)),
  );
  const body = rows.map((cells) =>
    el(
      "tr",
      {},
      cells.map((cell) => el("td", {}, cell)),
    ),
  );
  const inside = el("table", { class: name }, el("thead", {}, head), el("tbody", {}, body));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": columns.join(say(", ")) }, inside);
}

function badge(status, text = say(status.replace("_", " "))) {
  return el("span", { class: `badge ${status}` }, text);
}

function choice(label, options, chosen, onChoice) {
  const items = options.map(([value, text]) => el("option", { value, selected: value === chosen }, text));
  const onchange = (event) => onChoice(event.target.value);
  return el("label", {}, label, " ", el("select", { onchange }, items));
}

function check(label, checked, onChange, name) {
  const onchange = (event) => onChange(event.target.checked);
  return el("label", { class: name }, el("input", { type: "checkbox", checked, onchange }), " ", label);
}

function filter(label, value, onInput) {
  const oninput = (event) => onInput(event.target.value);
  return el("label", {}, label, " ", el("input", { type: "search", class: "filter", value, oninput }));
}

function rungName(level) {
  const rungs = ["contract", "sampling", "replay", "training", "cost"];
  return `L${rungs.indexOf(level)} ${say(level)}`;
}

function armOf(curve) {
  const arms = Object.values(data.designs).flatMap((of_design) => Object.entries(of_design));
  return arms.find(([, names]) => names.includes(curve))?.[0] ?? "";
}

function sideOf(arm) {
  return arm === data.baseline ? "baseline" : arm === data.experiment ? "experiment" : "other";
}

function pairOfRun(run) {
  return data.pairs.find((pair) => pair.runs.includes(String(run).split("/")[0]));
}
