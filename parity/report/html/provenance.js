// How to make the experiment again, and what this file holds of it.

function provenance() {
  const source = data.provenance;
  const facts = [
    [say("commit"), source.commit],
    [say("config hash"), source.config_hash],
    [say("task"), source.task],
    [say("engine"), source.engine],
    [say("seeds of the engine"), source.determinism],
    [say("seeds"), source.seeds.join(", ") || say("not recorded")],
    [say("steps"), source.steps ?? say("not recorded")],
    [
      say("wall time, first to last event"),
      source.seconds === null ? say("not recorded") : `${number(Math.round(source.seconds))} s`,
    ],
    [
      data.margin_time,
      Object.entries(source.margins)
        .map(([name, margin]) => `${name} ±${number(margin)}`)
        .join("; ") || say("not recorded"),
    ],
    [say("planted faults"), data.plants.join(", ") || say("none")],
    [say("directory"), data.directory || say("not recorded")],
    [say("report format"), data.schema_version],
  ];
  const counted = Object.entries(data.counts).map(([name, count]) => [say("counted"), `${number(count)} ${say(name)}`]);
  const versions = Object.entries(source.versions).map(([name, version]) => [say("version"), `${name} ${version}`]);
  return [
    el("h2", {}, say("How to reproduce")),
    el("pre", { class: "text", tabindex: 0 }, source.commands.join("\n") || say("not recorded")),
    table([say("what"), say("value")], [...facts, ...counted, ...versions]),
    el("h3", {}, say("Samples in this file")),
    data.pairs.length
      ? table([say("pair"), say("steps with samples"), say("in this file")], data.pairs.map(heldCells))
      : el("p", {}, say("none")),
    el("h3", {}, say("Configuration")),
    el("pre", { class: "text", tabindex: 0 }, JSON.stringify(source.config, null, 1)),
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
