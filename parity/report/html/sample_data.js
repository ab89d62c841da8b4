// Samples of one step of a pair, unpacked when they are first looked at.

const unpacked = new Map();

function packedSamples(pair, step) {
  return document.getElementById(`samples-${pair}-${step}`);
}

async function samplesOf(pair, step) {
  const key = `${pair}-${step}`;
  if (!unpacked.has(key)) {
    const bytes = Uint8Array.from(atob(packedSamples(pair, step).textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    unpacked.set(key, arrange(JSON.parse(await new Response(stream).text())));
  }
  return unpacked.get(key);
}

// Columns to groups: [{group, baseline: [sample], experiment: [sample]}], in the order of groups. In a column of
// prompts, 0 repeats the one before; a column that the experiment lacks is the baseline's.
function arrange(step) {
  const groups = new Map();
  for (const side of ["baseline", "experiment"]) {
    for (const own of step[side]) {
      const alone = step.baseline.length === 1 && step.experiment.length === 1;
      const columns = side === "experiment" && alone ? { ...step.baseline[0], ...own } : own;
      let prompt, promptIds;
      columns.row.forEach((row, at) => {
        prompt = columns.prompt[at] === 0 ? prompt : columns.prompt[at];
        promptIds = columns.prompt_ids[at] === 0 ? promptIds : columns.prompt_ids[at];
        const names = Object.keys(columns).filter((name) => Array.isArray(columns[name]));
        const sample = Object.fromEntries(names.map((name) => [name, columns[name][at]]));
        Object.assign(sample, { file: columns.file, prompt, prompt_ids: promptIds });
        sample.differs = step.differs[`${sample.group_index}/${sample.index}`] ?? null;
        const group = groups.get(sample.group_index) ?? { group: sample.group_index, baseline: [], experiment: [] };
        group[side].push(sample);
        groups.set(sample.group_index, group);
      });
    }
  }
  return { cut: step.cut, requests: step.requests, groups: [...groups.values()].sort((one, two) => one.group - two.group) };
}
