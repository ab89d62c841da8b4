// The requests of one step as bars from sent to answered, one lane a request, each side on the same scale of seconds.

const LANES_SHOWN = 256;
const [REQUEST_HEIGHT, REQUEST_WIDTH, REQUEST_LEFT] = [4, 1000, 60];

function requestLines(requests, pair) {
  const timed = requests.map((side) =>
    side
      .map(([group, sent, received, attempt, status, n, arm]) => ({ group, sent, received, attempt, status, n, arm }))
      .filter(({ sent, received }) => Number.isFinite(sent) && Number.isFinite(received))
      .sort((one, two) => one.sent - two.sent),
  );
  if (!timed.some((side) => side.length)) return null;
  const spans = timed.map((side) => Math.max(0, ...side.map(({ received }) => received - side[0].sent)));
  const longest = Math.max(...spans);
  const arms = Object.keys(data.designs[pair.design] ?? {});
  const retried = timed.flat().filter(({ attempt, status }) => attempt > 1 || status !== 200).length;
  const counts = timed.map((side) => side.length).filter(Boolean);
  const summary = say("requests of this step: {counts}, {retried} tried again or refused", {
    counts: counts.join(" + "),
    retried,
  });
  return el(
    "details",
    { class: "requests" },
    el("summary", {}, summary),
    el(
      "p",
      { class: "note" },
      say("Each bar is a request from sent to answered; when its first token came is not recorded."),
    ),
    timed.map((side, at) => {
      if (!side.length) return null;
      const told = say("{arm}: {count} requests in {seconds} s", {
        arm: pair.runs.length === 1 ? pair.runs[0] : (arms[at] ?? ""),
        count: side.length,
        seconds: number(spans[at]),
      });
      const drawn = requestChart(side, at ? "experiment" : "baseline", longest);
      return [
        el("p", { class: "note" }, told),
        el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": told }, drawn),
      ];
    }),
  );
}

function requestChart(side, kind, longest) {
  const shown = side.slice(0, LANES_SHOWN);
  const height = shown.length * REQUEST_HEIGHT + 24;
  const x = (seconds) => REQUEST_LEFT + (seconds / (longest || 1)) * (REQUEST_WIDTH - REQUEST_LEFT - 20);
  const label = say("requests over time");
  const svg = el("svg", {
    viewBox: `0 0 ${REQUEST_WIDTH} ${height}`,
    class: "lanes",
    role: "img",
    "aria-label": label,
  });
  for (const tick of niceTicks(0, longest, 8)) {
    svg.append(el("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: height - 18 }));
    svg.append(
      el("text", { class: "tick", x: x(tick), y: height - 4, "text-anchor": "middle" }, `${number(tick)} s`),
    );
  }
  shown.forEach((request, lane) => {
    const [begin, end] = [request.sent - side[0].sent, request.received - side[0].sent];
    const arm = request.arm ? sideOf(request.arm) : kind;
    const again = request.attempt > 1 || request.status !== 200;
    const told = say("group {group}: {n} samples, attempt {attempt}, status {status}, {seconds} s", {
      ...request,
      seconds: number(end - begin),
    });
    const place = { x: x(begin), y: lane * REQUEST_HEIGHT, width: Math.max(1, x(end) - x(begin)), height: 3 };
    svg.append(el("rect", { class: `request ${arm} ${again ? "again" : ""}`, ...place }, el("title", {}, told)));
  });
  if (side.length > shown.length) {
    const more = say("{count} more", { count: side.length - shown.length });
    svg.append(el("text", { class: "tick", x: 0, y: height - 4 }, more));
  }
  return svg;
}
