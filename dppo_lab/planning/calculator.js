"use strict";
// The formulas of dppo_lab/planning/{work,costs,model}.py, for whoever changes an input. Tests compare their figures.
const TINY = 1e-12;
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Probabilities that 0, 1, ... of `size` completions are right. */
function chances(size, rate) {
  const found = [];
  let ways = 1;
  for (let right = 0; right <= size; right++) {
    found.push(ways * rate ** right * (1 - rate) ** (size - right));
    ways = (ways * (size - right)) / (right + 1);
  }
  return found;
}

/** Prompts by kind and by right ones among `earlier` completions, and what such a history expects. */
function seen(kinds, earlier) {
  const share = kinds.map((kind) => chances(earlier, kind.pass_rate).map((chance) => kind.share * chance));
  const mean = [], worth = [];
  for (let w = 0; w <= earlier; w++) {
    const total = Math.max(sum(share.map((of) => of[w])), 2.2250738585072014e-308);
    const expected = sum(kinds.map((kind, c) => kind.pass_rate * share[c][w])) / total;
    const square = sum(kinds.map((kind, c) => kind.pass_rate ** 2 * share[c][w])) / total;
    const spread = Math.max(square - expected ** 2, 0);
    mean.push(expected);
    worth.push(spread <= TINY ? Infinity : (expected * (1 - expected)) / spread);
  }
  return { share, mean, worth };
}

/** Advantages of a right (0) or wrong (1) completion, by history w and right ones j of its group. */
function advantage(outcome, w, j, size, prompts, option, scaled) {
  if (option.baseline !== "history" && size === 1) return 0;
  const others = Math.max(size - 1, 1);
  const siblings = Math.min(Math.max((outcome === 0 ? j - 1 : j) / others, 0), 1);
  let mix = 1;
  if (option.baseline === "history") {
    mix = prompts.worth[w] === Infinity ? 0 : (size - 1) / (size - 1 + prompts.worth[w] + TINY);
  }
  let found = (outcome === 0 ? 1 : 0) - (mix * siblings + (1 - mix) * prompts.mean[w]);
  if (Math.abs(found) < TINY) found = 0;
  if (scaled === "group" && option.baseline === "group") {
    const deviation = Math.sqrt((j * (size - j)) / (size * others));
    if (deviation > 0) found /= deviation;
  }
  return found;
}

/** Probabilities proportional to scores for cells of `count` equal units, as dppo.pruning.inclusion_probabilities; the
 * floor of a unit rises from `least` at score 0 through `floor` at the mean score (dppo.pruning.Budget.floors). */
function probabilities(count, score, rate, floor, lowest) {
  if (!rate || !count.length) return count.map(() => 1);
  const most = Math.min(floor, (1 - rate) / 2), least = lowest === null ? most : Math.min(lowest, most);
  const budget = (1 - rate) * sum(count), mean = sum(count.map((n, i) => n * score[i])) / sum(count);
  const floors = score.map((s) => (mean > 0 ? Math.min(least + (most - least) * (s / mean), 1) : least));
  const sized = sum(count.map((n, i) => (score[i] > 0 ? n : 0))), unsized = sum(count) - sized;
  if (budget - least * unsized >= sized) {
    return score.map((s) => (s > 0 ? 1 : Math.max((budget - sized) / unsized, least)));
  }
  const at = (log) => score.map((s, i) => (s > 0 ? Math.min(Math.max(Math.exp(Math.min(log + Math.log(s), 0)), floors[i]), 1) : least));
  const logs = score.filter((s) => s > 0).map(Math.log);
  let low = Math.log(least) - Math.max(...logs), high = -Math.min(...logs);
  for (let turn = 0; turn < 100; turn++) {
    const middle = (low + high) / 2;
    if (sum(at(middle).map((q, i) => q * count[i])) < budget) low = middle;
    else high = middle;
  }
  return at(high);
}

/** Every sort of group of a step under an option. */
function cellsOf(input, option) {
  const { kinds, step } = input;
  const size = option.group || step.generations;
  const remembers = option.prompt_rate > 0 || option.baseline === "history";
  const prompts = seen(kinds, remembers ? step.generations : 0);
  const total = (step.prompts * step.generations) / size;
  const square = (outcome, c, w, j) => {
    const tokens = outcome === 0 ? kinds[c].right_tokens : kinds[c].wrong_tokens;
    return advantage(outcome, w, j, size, prompts, option, step.scaled) ** 2 * tokens ** step.token_power;
  };
  const chance = kinds.map((kind) => chances(size, kind.pass_rate));
  const count = prompts.mean.map((_, w) => total * sum(kinds.map((_, c) => prompts.share[c][w])));
  const value = prompts.mean.map((_, w) => {
    const moment = sum(kinds.map((_, c) => prompts.share[c][w] * sum(chance[c].map((p, j) =>
      p * (j * square(0, c, w, j) + (size - j) * square(1, c, w, j))))));
    return (total * moment) / count[w];
  });
  const there = count.map((n, w) => w).filter((w) => count[w] > TINY * sum(count));
  const drawn = probabilities(there.map((w) => count[w]), there.map((w) => Math.sqrt(value[w])), option.prompt_rate, step.floor, null);
  const prob = count.map(() => 1);
  there.forEach((w, place) => (prob[w] = drawn[place]));
  const cells = [];
  kinds.forEach((kind, c) => prompts.mean.forEach((_, w) => chance[c].forEach((p, j) => {
    const groups = total * prompts.share[c][w] * prob[w] * p;
    if (groups <= TINY * total) return;
    cells.push({
      groups,
      members: [j, size - j],
      tokens: [kind.right_tokens, kind.wrong_tokens],
      score: [0, 1].map((outcome) => Math.sqrt(square(outcome, c, w, j)) / prob[w]),
    });
  })));
  return cells;
}

/** Tokens of the longest of `count`: straight between the doublings of a curve. */
function longestOf(curve, count) {
  const place = Math.min(Math.log2(Math.max(count, 1)), curve.length - 1), before = Math.floor(place);
  const after = Math.min(before + 1, curve.length - 1);
  return curve[before] + (curve[after] - curve[before]) * (place - before);
}

/** What is kept of completions that a plan looked at token by token: straight between the rates of its grid. */
function keptAt(option) {
  const grid = option.kept || [], place = grid.findIndex(([rate]) => rate >= option.completion_rate);
  if (place < 0) return grid.length ? grid[grid.length - 1][1] : { forwarded: 1, reached: 1, scored: 1, noise: 1 };
  if (!place) return grid[0][1];
  const [[from, before], [to, after]] = grid.slice(place - 1, place + 1), part = (option.completion_rate - from) / (to - from);
  return Object.fromEntries(Object.keys(after).map((name) => [name, before[name] + (after[name] - before[name]) * part]));
}

/** What a step does under an option, on average. */
function workOf(input, option) {
  const { step } = input, cells = cellsOf(input, option), kept = keptAt(option);
  const byToken = (option.kept || []).length > 1;
  const units = cells.flatMap((cell) => [0, 1].map((o) => ({ cell, o, count: cell.groups * cell.members[o], score: cell.score[o] })));
  const live = units.filter((unit) => (step.every || unit.score > 0) && unit.cell.members[unit.o] > 0);
  const drawn = probabilities(live.map((u) => u.count), live.map((u) => u.score), byToken ? 0 : option.completion_rate,
    step.floor, step.least);
  units.forEach((unit) => (unit.prob = option.forwarded === "all" ? 1 : 0));
  live.forEach((unit, place) => (unit.prob = drawn[place]));
  const groups = sum(cells.map((cell) => cell.groups)), completions = sum(units.map((u) => u.count));
  const whole = sum(units.map((u) => u.count * u.prob)), trained = whole * kept.reached;
  const generated = sum(units.map((u) => u.count * u.cell.tokens[u.o]));
  const tokens = sum(units.map((u) => u.count * u.prob * u.cell.tokens[u.o])), scored = tokens * kept.scored;
  let forwarded;
  if (option.layout === "padded") {
    forwarded = whole * (longestOf(input.longest_prompt, groups * step.shares) +
      longestOf(input.longest_completion, completions * step.shares));
  } else {
    const trunks = sum(cells.map((cell, i) => cell.groups *
      (1 - (1 - units[2 * i].prob * kept.reached) ** cell.members[0] * (1 - units[2 * i + 1].prob * kept.reached) ** cell.members[1])));
    forwarded = tokens * kept.forwarded + trunks * (input.prompt_tokens - 1);
  }
  const moment = sum(live.map((u) => (u.count * u.score ** 2) / u.prob)) * kept.noise;
  return { completions: completions / step.passes, generated: generated / step.passes, trained, forwarded, scored, moment };
}

/** Everything a table shows of an input: work, noise, seconds and hours of every option. */
function compute(input) {
  const whole = (scaled) => workOf({ ...input, step: { ...input.step, scaled } },
    { baseline: "group", layout: "rows", forwarded: "all", completion_rate: 0, prompt_rate: 0 }).moment;
  const share = input.costs.processes / input.gpus;
  const secondsOf = (work, option) => ({
    rollout: input.costs.rollout_fixed + share * input.costs.rollout_token * work.generated,
    update: input.costs.update_fixed +
      share * (option.layout === "padded" ? input.costs.padded_token * work.forwarded
        : input.costs.row_token * work.forwarded + (input.costs.head_token || 0) * work.scored),
    rest: share * input.costs.completion * work.completions + input.costs.rest,
  });
  const total = (seconds) => seconds.rollout + seconds.update + seconds.rest;
  const rows = input.options.map((option) => {
    const work = workOf(input, option), all = whole(option.baseline === "group" ? input.step.scaled : "none");
    const noiseOf = (made) => (all > 0 ? made.moment / all : 1);
    const noise = noiseOf(work), seconds = secondsOf(work, option);
    const first = option.prompt_rate ? Math.min(input.first_epoch, input.steps) : 0;
    const phases = [[input.steps - first, work, seconds]];
    if (first) {
      const before = { ...option, prompt_rate: 0 }, early = workOf(input, before);
      phases.push([first, early, secondsOf(early, before)]);
    }
    const over = (each) => sum(phases.map(([steps, made, spent]) => steps * each(made, total(spent))));
    const hours = over((made, spent) => spent) / 3600;
    return { name: option.name, work, noise, seconds, per_step: total(seconds), hours,
      equal_hours: over((made, spent) => noiseOf(made) * spent) / 3600,
      completions: over((made) => noiseOf(made) * made.completions),
      tokens: over((made) => noiseOf(made) * (made.generated + made.forwarded)),
      price: hours * input.gpus * input.price, kilowatt_hours: (hours * input.gpus * input.watts) / 1000 };
  });
  rows.forEach((row) => (row.speedup = rows[0].per_step / row.per_step));
  return rows;
}

// -- the page --------------------------------------------------------------------------------------------------------

const plan = JSON.parse(document.getElementById("plan").textContent);
const field = (id) => document.getElementById(id);
const numbers = () => Array.from(document.querySelectorAll("input[data-default]"));

/** The input of the page as it stands; null where a field is out of its range, which the page says. */
function read() {
  const wrong = numbers().filter((input) => input.value === "" || !input.checkValidity());
  numbers().forEach((input) => input.setAttribute("aria-invalid", wrong.includes(input)));
  const value = (id) => Number(field(id).value), { workload, costs } = plan.figures;
  const shares = workload.kinds.map((_, c) => value(`share_${c}`));
  field("problem").textContent = wrong.length
    ? `${wrong.map((input) => input.labels[0].textContent).join(", ")}: out of range, so nothing is computed.`
    : sum(shares) > 0 ? "" : "Shares of prompts are all 0, so nothing is computed.";
  if (field("problem").textContent) return null;
  const factor = value("length");
  return {
    kinds: workload.kinds.map((kind, c) => ({ share: shares[c] / sum(shares), pass_rate: value(`rate_${c}`),
      right_tokens: kind.right_tokens * factor, wrong_tokens: kind.wrong_tokens * factor })).filter((kind) => kind.share > 0),
    prompt_tokens: value("prompt_tokens"),
    longest_prompt: workload.longest_prompt.map((tokens) => (tokens * value("prompt_tokens")) / workload.prompt_tokens),
    longest_completion: workload.longest_completion.map((tokens) => tokens * factor),
    step: { ...plan.step, prompts: value("prompts"), generations: value("generations") },
    costs: { ...costs, rollout_token: costs.rollout_token / value("decoding"), row_token: costs.row_token / value("training"),
      padded_token: costs.padded_token / value("training"), head_token: (costs.head_token || 0) / value("training") },
    options: plan.rows.map((row) => ({ ...row.option,
      kept: value("generations") === plan.step.generations ? row.kept : [],
      completion_rate: row.option.completion_rate ? value("completion_rate") : 0,
      prompt_rate: row.option.prompt_rate ? value("prompt_rate") : 0 })),
    gpus: value("gpus"), price: value("price"), watts: value("watts"),
    steps: value("steps"), first_epoch: value("first_epoch"),
  };
}

const shown = (number) => number >= 99.95 ? Math.round(number).toLocaleString("en") : number >= 0.095 ? number.toFixed(2)
  : number === 0 ? "0" : number.toPrecision(2);

/** An element of SVG or HTML with attributes and text. */
function element(name, attributes, text, parent, space = "http://www.w3.org/2000/svg") {
  const made = document.createElementNS(space, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

function drawTable(rows, input) {
  const body = field("rows"), html = "http://www.w3.org/1999/xhtml";
  body.replaceChildren();
  rows.forEach((row, place) => {
    const line = element("tr", {}, null, body, html);
    element("th", { scope: "row" }, nameOf(input.options[place], row.name), line, html);
    [row.per_step, row.seconds.rollout, row.seconds.update, row.seconds.rest, row.speedup, row.noise, row.hours,
      row.equal_hours, row.completions / 1e3, row.tokens / 1e6, row.price, row.kilowatt_hours].forEach((value) => element("td", {}, shown(value), line, html));
  });
}

/** The name of an option at the rates of the page. */
function nameOf(option, name) {
  const { completion_rate: completion, prompt_rate: prompt } = option;
  if (option.baseline === "history" || (!completion && !prompt)) return name;
  if (completion && prompt) return `both ${prompt}, ${completion}`;
  return completion ? `completions ${completion}` : `prompts ${prompt}`;
}

function drawChart(rows, input) {
  const chart = field("chart"), width = Math.max(chart.clientWidth, 280), label = width < 560 ? 0 : 190, line = label ? 34 : 50;
  const largest = Math.max(...rows.map((row) => Math.max(row.per_step, row.per_step * row.noise))) || 1;
  const scale = (width - label - 70) / largest, height = rows.length * line + 8;
  chart.replaceChildren();
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Seconds of a step" }, null, chart);
  rows.forEach((row, place) => {
    const top = place * line + (label ? 4 : 20), name = nameOf(input.options[place], row.name);
    element("text", { x: label ? label - 8 : 0, y: label ? top + 17 : top - 5, class: "name", "text-anchor": label ? "end" : "start" }, name, svg);
    let x = label;
    ["rollout", "update", "rest"].forEach((phase) => {
      const wide = row.seconds[phase] * scale;
      element("rect", { x, y: top, width: wide, height: 22, class: phase }, null, svg);
      x += wide;
    });
    const equal = label + row.per_step * row.noise * scale;
    element("line", { x1: equal, x2: equal, y1: top - 3, y2: top + 25, class: "equal" }, null, svg);
    const beside = equal < x + 66 ? Math.max(x, equal) : x; // where the mark would cross the words, behind it
    element("text", { x: beside + 6, y: top + 16, class: "value" }, `${shown(row.per_step)} s`, svg);
  });
}

function follow() {
  const input = read();
  if (input === null) return;
  const rows = compute(input);
  drawTable(rows, input);
  drawChart(rows, input);
}

window.dppoPlan = { compute, read, probabilities };
document.addEventListener("input", follow);
window.addEventListener("resize", follow);
field("reset").addEventListener("click", () => {
  numbers().forEach((input) => (input.value = input.dataset.default));
  follow();
});
follow();
