// What happened to each run, on one line a run, and as a table.

const LANE = 28;
const EVENT_MARKS = { start: "▷", end: "◼", retry: "●", ...MARKS };

function timeline() {
  const begun = ([, events]) => Math.min(...events.map((event) => event.time ?? Infinity));
  const lanes = Object.entries(data.events)
    .filter(([, events]) => events.length)
    .sort((one, two) => begun(one) - begun(two));
  const every = lanes.flatMap(([run, events]) => events.map((event) => ({ run, ...event })));
  const timed = every.filter((event) => Number.isFinite(event.time));
  if (!timed.length) return [el("h2", {}, say("Events")), el("p", {}, say("This report has no events."))];
  const ends = timed.reduce(
    ([low, high], { time }) => [Math.min(low, time), Math.max(high, time)],
    [Infinity, -Infinity],
  );
  const told = every.filter((event) => event.event !== "step").sort((one, two) => one.time - two.time);
  return [
    el("h2", {}, say("Events")),
    el(
      "p",
      { class: "note" },
      say("from {from} on, {seconds} s", { from: clock(ends[0]), seconds: number(Math.round(ends[1] - ends[0])) }),
    ),
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": say("Events") }, lanesChart(lanes, ends)),
    el(
      "p",
      { class: "note" },
      Object.entries(EVENT_MARKS)
        .filter(([kind]) => kind !== "collapse")
        .map(([kind, sign]) => `${sign} ${say(kind.replace("_", " "))}  `),
    ),
    table(
      [say("time"), say("run"), say("event"), say("step"), say("count"), say("message")],
      told.map(eventCells),
      "events",
    ),
  ];
}

function clock(time) {
  return Number.isFinite(time)
    ? `${new Date(time * 1000).toISOString().replace("T", " ").slice(0, 19)} UTC`
    : say("not recorded");
}

function eventCells(event) {
  return [
    clock(event.time),
    event.run,
    say(event.event.replace("_", " ")),
    event.step ?? "",
    event.count ?? "",
    event.message ?? "",
  ];
}

function lanesChart(lanes, [begin, end]) {
  const [width, left] = [1000, 190];
  const x = (time) => left + ((time - begin) / (end - begin || 1)) * (width - left - 20);
  const height = lanes.length * LANE + 30;
  const svg = el("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "lanes",
    role: "img",
    "aria-label": say("Events"),
  });
  for (const tick of niceTicks(0, end - begin, 8)) {
    svg.append(el("line", { class: "grid", x1: x(begin + tick), x2: x(begin + tick), y1: 4, y2: height - 22 }));
    svg.append(
      el("text", { class: "tick", x: x(begin + tick), y: height - 6, "text-anchor": "middle" }, `${number(tick)} s`),
    );
  }
  lanes.forEach(([run, events], lane) => {
    const y = lane * LANE + LANE / 2 + 4;
    const side = sideOf(data.runs.find((one) => one.run === run)?.arm);
    const times = events.map((event) => event.time).filter(Number.isFinite);
    svg.append(el("text", { class: `lane ${side}`, x: left - 10, y: y + 4, "text-anchor": "end" }, run));
    svg.append(
      el("line", { class: `curve ${side}`, x1: x(Math.min(...times)), x2: x(Math.max(...times)), y1: y, y2: y }),
    );
    for (const event of events.filter(({ time }) => Number.isFinite(time))) {
      const said = [
        say(event.event.replace("_", " ")),
        event.step === undefined ? "" : say("step {step}", event),
        event.message ?? "",
      ]
        .filter(Boolean)
        .join(", ");
      const sign = EVENT_MARKS[event.event] ?? "|";
      svg.append(
        el(
          "text",
          { class: `mark ${side}`, x: x(event.time), y: y + 5, "text-anchor": "middle" },
          el("title", {}, `${clock(event.time)}: ${said}`),
          sign,
        ),
      );
    }
  });
  return svg;
}
