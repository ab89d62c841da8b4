// How to make the experiment again, and what this file holds of it.

function provenance() {
  const source = data.provenance;
  const facts = [
    ["commit", source.commit],
    ["config hash", source.config_hash],
    ["task", source.task],
    ["engine", source.engine],
    ["samples of the engine", source.determinism],
    ["seeds", source.seeds.join(", ") || say("not recorded")],
    ["steps", source.steps ?? say("not recorded")],
    [
      "wall time, first to last event",
      source.seconds === null ? say("not recorded") : `${number(Math.round(source.seconds))} s`,
    ],
    [
      "margins, stated before the runs",
      Object.entries(source.margins)
        .map(([name, margin]) => `${name} ±${number(margin)}`)
        .join("; ") || say("not recorded"),
    ],
    ["planted faults", data.plants.join(", ") || say("none")],
    ["directory", data.directory || say("not recorded")],
    ["report format", data.schema_version],
  ].map(([name, value]) => [say(name), value]);
  const counted = Object.entries(data.counts).map(([name, count]) => [say("counted"), `${number(count)} ${say(name)}`]);
  const versions = Object.entries(source.versions).map(([name, version]) => [say("version"), `${name} ${version}`]);
  return [
    el("h2", {}, say("How to reproduce")),
    el("pre", { class: "text" }, source.commands.join("\n") || say("not recorded")),
    table([say("what"), say("value")], [...facts, ...counted, ...versions]),
    el("h3", {}, say("Samples in this file")),
    data.pairs.length
      ? table([say("pair"), say("steps with samples"), say("in this file")], data.pairs.map(heldCells))
      : el("p", {}, say("none")),
    el("h3", {}, say("Configuration")),
    el("pre", { class: "text" }, JSON.stringify(source.config, null, 1)),
  ];
}

function heldCells(pair) {
  const held = Array.from({ length: pair.steps }, (_, step) => step).filter((step) => packedSamples(pair.name, step));
  return [
    say("{design}, seed {seed}", pair),
    pair.steps,
    held.length === pair.steps ? say("all") : held.join(", ") || say("none"),
  ];
}
