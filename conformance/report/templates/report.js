(() => {
const data = JSON.parse(document.getElementById("data").textContent);
const N = data.names, OUT = data.outcomes;
const [NAME, FAMILY, DTYPE, VARIANT, LAYOUT, OUTCOME, SAMPLES, SKIPPED, FAILED, ARBITRATED, TOLERATED, MS, ORACLES, REASON, MEASURED] = Array(15).keys();
const MEASURES = new Map(data.measures.map((measure, at) => [measure.name, { ...measure, at }]));
const GROUPS = [...new Set(data.measures.map(measure => measure.group).filter(Boolean))];
const group = name => [...MEASURES.values()].filter(measure => measure.group === name);
const count = (row, measure) => row.r[MEASURED][measure.at][0];
const rows = data.rows.map((r, i) => ({ i, r, id: [N[r[NAME]], N[r[DTYPE]], N[r[VARIANT]], N[r[LAYOUT]]].join("::") }));
rows.forEach(row => { row.text = (row.id + " " + N[row.r[FAMILY]] + " " + N[row.r[ORACLES]] + " " + N[row.r[REASON]]).toLowerCase(); });
const many = part => new Set(rows.map(row => row.r[part])).size > 1;
const CHUNK = 150;

// Everything from outside is set as text: no string ever becomes markup.
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined && child !== false));
  return node;
}
const svgNode = (tag, attributes, text) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

// State lives in the fragment, so that a link shows what its sender saw.
const KEYS = ["q", "outcome", "family", "dtype", "variant", "layout", "oracle", "measure", "part", "arbitrated", "tolerated", "sort", "case"];
let state = {}, shown = [], drawn = 0, at = -1;
function readState() {
  state = {};
  const fragment = location.hash.slice(1);
  if (!fragment.includes("=")) return false;
  for (const [key, value] of new URLSearchParams(fragment)) if (KEYS.includes(key) && value) state[key] = value;
  return Object.keys(state).length > 0;
}
function writeState() {
  const parts = KEYS.filter(key => state[key]).map(key => key + "=" + encodeURIComponent(state[key]));
  try { history.replaceState(null, "", parts.length ? "#" + parts.join("&") : location.pathname + location.search); } catch { /* some viewers forbid it; the page works without */ }
}
function set(changes) { Object.assign(state, changes); delete state.case; writeState(); filter(); }

const SORTS = {
  name: row => row.id, outcome: row => row.r[OUTCOME], family: row => N[row.r[FAMILY]], samples: row => -row.r[SAMPLES],
  time: row => -row.r[MS],
};
for (const [name, measure] of MEASURES) SORTS["measure " + name] = row => -(count(row, measure) ?? -1);
function matches(row) {
  const r = row.r;
  if (state.case) return row.id === state.case;
  if (state.outcome && !state.outcome.split(",").includes(OUT[r[OUTCOME]])) return false;
  for (const [key, part] of [["family", FAMILY], ["dtype", DTYPE], ["variant", VARIANT], ["layout", LAYOUT]])
    if (state[key] && N[r[part]] !== state[key]) return false;
  if (state.oracle && !N[r[ORACLES]].split(", ").includes(state.oracle)) return false;
  const without = (state.measure || "").startsWith("-"), measure = MEASURES.get((state.measure || "").replace("-", ""));
  if (measure && Boolean(count(row, measure)) === without) return false;
  if (state.arbitrated && !r[ARBITRATED]) return false;
  if (state.tolerated && !r[TOLERATED]) return false;
  if (state.part && !Object.values(data.details[row.i]?.parts || {}).flat().some(([name]) => name === state.part)) return false;
  if (state.q) for (const word of state.q.toLowerCase().split(/\s+/)) if (!row.text.includes(word)) return false;
  return true;
}
function filter() {
  shown = rows.filter(matches);
  const [key, down] = [(state.sort || "").replace("-", ""), (state.sort || "").startsWith("-")];
  if (SORTS[key]) {
    const by = SORTS[key], sign = down ? -1 : 1;
    shown.sort((a, b) => { const x = by(a), y = by(b); return sign * (x < y ? -1 : x > y ? 1 : 0) || a.i - b.i; });
  }
  drawn = 0; at = -1;
  body.replaceChildren();
  draw();
  $("count").textContent = shown.length === rows.length ? `${rows.length.toLocaleString("en")} cases`
    : `${shown.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} cases${state.part ? " that used " + state.part + " on the CPU" : ""}`;
  reflect();
  if (state.case && shown.length === 1) toggle(body.querySelector("tr.row"), true);
}

const body = document.querySelector("#table tbody");
const COLUMNS = [
  ["outcome", "outcome", "", row => { const word = OUT[row.r[OUTCOME]]; return el("span", { class: "mark o-" + word }, word); }],
  ["op", "name", "name", row => breakable(N[row.r[NAME]])],
  ...(rows.some(row => N[row.r[FAMILY]]) ? [["family", "family", "wide-only", row => N[row.r[FAMILY]]]] : []),
  ...[["dtype", DTYPE], ["variant", VARIANT], ["layout", LAYOUT]].filter(([, part]) => many(part)).map(([label, part]) => [label, null, "", row => N[row.r[part]]]),
  ["samples", "samples", "num wide-only", row => row.r[SAMPLES] + (row.r[FAILED] ? `, ${row.r[FAILED]} differ` : "") + (row.r[ARBITRATED] ? `, ${row.r[ARBITRATED]} by float64` : "") + (row.r[TOLERATED] ? `, ${row.r[TOLERATED]} by tolerance` : "")],
  ...[...MEASURES.values()].filter(measure => measure.watched).map(measure => [measure.name, "measure " + measure.name, "num wide-only", row => counted(row, measure)]),
  ...GROUPS.map(name => [name + ": " + group(name)[0].unit, "measure " + group(name)[0].name, "num wide-only", row => shares(row, group(name))]),
  ...(rows.some(row => row.r[MS]) ? [["ms", "time", "num wide-only", row => row.r[MS].toLocaleString("en")]] : []),
  ["differs in", null, "why", row => el("span", {}, N[row.r[ORACLES]] || N[row.r[REASON]])],
];
function breakable(name) {
  const parts = name.split(/(?<=[._])/);
  return el("span", {}, ...parts.flatMap((part, i) => i ? [el("wbr"), part] : [part]));
}
function shares(row, measures) {
  const counts = measures.map(measure => count(row, measure) ?? 0), total = counts.reduce((a, b) => a + b, 0);
  if (!total) return "";
  const words = measures.map((measure, i) => `${counts[i]} ${measure.unit}`).join(", ");
  const bar = el("span", { class: "cbar", role: "img", title: words, "aria-label": words }, ...counts.map(() => el("i")));
  [...bar.children].forEach((part, i) => { part.style.width = (100 * counts[i] / total).toFixed(1) + "%"; });
  return el("span", { title: words }, bar, `${counts[0]}/${total}`);
}
function counted(row, measure) {
  const [count, most, before] = row.r[MEASURED][measure.at];
  if (count === null) return "";
  // The bar is this run's; the marks on its track are the baseline's count and the bound.
  const longest = Math.max(count, before ?? 0, most ?? 0, 1), at = value => (100 * value / longest).toFixed(1) + "%";
  const words = inWords(row, measure);
  const bar = el("span", { class: "kbar" + (most !== null && count > most ? " over" : ""), role: "img", title: words, "aria-label": words }, el("i"));
  bar.firstChild.style.width = at(count);
  for (const [value, name] of [[most, "most"], [before, "before"]])
    if (value !== null) { const tick = el("b", { class: name }); tick.style.left = at(value); bar.append(tick); }
  const change = before !== null && before !== count ? el("span", { class: before < count ? "up" : "down", title: "baseline " + before }, ` ${before < count ? "▲" : "▼"}${Math.abs(count - before)}`) : null;
  return el("span", {}, most === null && before === null ? null : bar, String(count), change);
}
function inWords(row, measure) {
  const [count, most, before] = row.r[MEASURED][measure.at];
  return `${count} ${measure.unit}` + (most === null ? "" : `, at most ${most} as torch CPU's ops and transfers`) + (before === null ? "" : `, baseline ${before}`);
}
function draw() {
  const stop = Math.min(drawn + CHUNK, shown.length), part = document.createDocumentFragment();
  for (; drawn < stop; drawn++) {
    const row = shown[drawn];
    const line = el("tr", { class: "row", tabindex: "-1", "aria-expanded": "false", onclick: event => { if (!getSelection().toString()) { mark(line); toggle(line); } } });
    line.row = row;
    for (const [, , style, cell] of COLUMNS) line.append(el("td", { class: style }, cell(row)));
    part.append(line);
  }
  body.append(part);
  $("more").textContent = drawn < shown.length ? `${(shown.length - drawn).toLocaleString("en")} more below` : "";
}
// Only what comes from below is drawn: a table that grew above the section that is read would push it away.
new IntersectionObserver(entries => { if (entries[0].isIntersecting && drawn < shown.length) draw(); }, { rootMargin: "-50% 0px 1200px 0px" }).observe($("more"));

function toggle(line, open) {
  const next = line.nextElementSibling, isOpen = next && next.classList.contains("detail");
  if (open === isOpen) return;
  line.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) next.remove(); else line.after(detail(line.row));
}
function rerun(row) {
  if (data.whole) return data.command;
  const r = row.r, quoted = text => /^[\w.,/:=-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'";
  const failing = (data.details[row.i]?.failures || []).map(f => f.sample + 1), most = Math.max(1, r[SAMPLES] + r[SKIPPED], ...failing);
  const op = N[r[NAME]].replace(/[[?*]/g, "[$&]");
  const more = data.table ? "" : ` --layout ${N[r[LAYOUT]]} --samples ${most}`;
  if (!data.variants) return `${data.command} --op ${quoted(op)}${N[r[DTYPE]] ? ` --dtype ${N[r[DTYPE]]}` : ""}`;
  return `${data.command} --op ${quoted(op)} --dtype ${N[r[DTYPE]]} --variant ${N[r[VARIANT]]}${more}`;
}
function detail(row) {
  const d = data.details[row.i] || { failures: [], parts: {} };
  const cell = el("td", { colspan: COLUMNS.length });
  for (const f of d.failures) cell.append(finding(f));
  if (N[row.r[REASON]]) cell.append(el("p", {}, N[row.r[REASON]]));
  if (row.r[ARBITRATED]) cell.append(el("p", { class: "quiet" }, `In ${row.r[ARBITRATED]} of ${row.r[SAMPLES]} samples the target differs from torch CPU by more than the tolerance and agrees with its answer in float64, to which torch CPU's own is no nearer.`));
  if (row.r[TOLERATED]) cell.append(el("p", { class: "quiet" }, `${row.r[TOLERATED]} of ${row.r[SAMPLES]} samples pass only by a tolerance that the target's profile declares.`));
  const named = calls => calls.length ? ": " + calls.map(([name, count]) => `${name} (${count})`).join(", ") : "";
  const said = [...MEASURES.values()].filter(measure => count(row, measure) !== null)
    .map(measure => inWords(row, measure) + (d.parts[measure.name] ? named(d.parts[measure.name]) : ""));
  if (said.length) cell.append(el("p", { class: "quiet" }, said.join("; ") + "."));
  cell.append(code(rerun(row)), el("p", { class: "quiet" }, el("a", { href: "#case=" + encodeURIComponent(row.id) }, "Link to this case")));
  return el("tr", { class: "detail" }, cell);
}
function finding(f) {
  const box = el("div", { class: "finding" });
  box.append(el("h4", {}, f.sentence), el("p", { class: "quiet" }, f.oracle, " of ", el("code", {}, f.where), f.detail ? ": " + f.detail : ""));
  if (f.call) box.append(el("p", { class: "call" }, `sample ${f.sample}: ${f.call}`));
  if (f.expected || f.actual) box.append(el("div", { class: "sides" }, side(data.reference, f.expected, f.layouts.expected), side("target", f.actual, f.layouts.actual)));
  if (f.values.length) {
    const table = el("table", { class: "values" }, el("tr", {}, ...["element", data.reference, "target"].map(word => el("th", {}, word))));
    for (const [index, want, got, bad] of f.values) table.append(el("tr", { class: bad ? "bad" : "" }, el("td", {}, index), el("td", {}, want), el("td", {}, got)));
    box.append(el("details", f.values.length <= 12 ? { open: "" } : {}, el("summary", {}, "values side by side"), el("div", { class: "scroll" }, table)));
  }
  if (f.script) box.append(el("details", { class: "script" }, el("summary", {}, "standalone script"), code(f.script, true)));
  return box;
}
function side(label, text, layout) {
  return el("div", {}, el("h5", {}, label), el("pre", {}, text), layout ? picture(layout) : null);
}
function code(text, script) {
  const button = el("button", { type: "button", class: script ? "copy-script" : "" }, "Copy");
  button.dataset.copy = "";
  return el("div", { class: "code" }, button, el("pre", {}, text));
}

// The storage as cells; those that the view reaches carry the number of the element that lies there.
function picture({ size, stride, offset }) {
  const total = size.reduce((a, b) => a * b, 1);
  if (!total || total > 400) return null;
  const where = [];
  const index = size.map(() => 0);
  for (let element = 0; element < total; element++) {
    const cell = offset + index.reduce((sum, value, dim) => sum + value * stride[dim], 0);
    (where[cell] ||= []).push(element);
    for (let dim = size.length - 1; dim >= 0 && ++index[dim] === size[dim]; dim--) index[dim] = 0;
  }
  const cells = where.length;
  if (cells > 256) return null;
  const per = 16, w = 26, h = 26, height = Math.ceil(cells / per) * h + 2;
  const width = Math.min(cells, per) * w + 2;
  const picture = svgNode("svg", { class: "storage", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `storage of ${cells} cells, size ${size}, stride ${stride}, offset ${offset}` });
  for (let cell = 0; cell < cells; cell++) {
    const x = 1 + (cell % per) * w, y = 1 + Math.floor(cell / per) * h, held = where[cell] || [];
    picture.append(svgNode("rect", { x, y, width: w - 2, height: h - 2, rx: 3, class: held.length > 1 ? "over" : held.length ? "in" : "" }));
    if (held.length) picture.append(svgNode("text", { x: x + w / 2 - 1, y: y + 12 }, held.length > 2 ? held[0] + "…" : held.join(",")));
    picture.append(svgNode("text", { x: x + w / 2 - 1, y: y + 21, class: "at" }, "@" + cell));
  }
  return picture;
}

// Controls
const heads = document.querySelector("#table thead tr");
for (const [label, sort, style] of COLUMNS) {
  const head = el("th", { scope: "col", class: style.replace("name", "") });
  head.append(sort ? el("button", { type: "button", onclick: () => set({ sort: state.sort === sort ? "-" + sort : sort }) }, label) : label);
  if (sort) head.dataset.sort = sort;
  heads.append(head);
}
const counts = {};
rows.forEach(row => { counts[row.r[OUTCOME]] = (counts[row.r[OUTCOME]] || 0) + 1; });
OUT.forEach((word, number) => {
  if (!counts[number]) return;
  const button = el("button", { type: "button", class: "mark o-" + word, onclick: () => {
    const on = new Set((state.outcome || "").split(",").filter(Boolean));
    if (on.has(word)) on.delete(word); else on.add(word);
    set({ outcome: [...on].join(",") });
  } }, word);
  button.dataset.word = word;
  $("outcomes").append(button);
});
function options(id, label, values) {
  const select = $(id);
  select.append(el("option", { value: "" }, label), ...values.map(([value, text]) => el("option", { value }, text)));
  if (values.length < 2) select.hidden = true;
  select.addEventListener("change", () => set({ [id]: select.value }));
}
const values = part => [...new Set(rows.map(row => N[row.r[part]]))].sort().map(name => [name, name]);
options("family", "any family", values(FAMILY));
options("dtype", "any dtype", values(DTYPE));
options("variant", "any variant", values(VARIANT));
options("layout", "any layout", values(LAYOUT));
options("oracle", "any oracle", [...new Set(rows.flatMap(row => N[row.r[ORACLES]].split(", ")))].filter(Boolean).sort().map(name => [name, name]));
options("measure", "any measure", [...MEASURES.values()].filter(({ watched, group }) => watched || group)
  .flatMap(({ name, unit, group }) => [[name, (group ? group + ": " : "") + "with " + unit], ["-" + name, (group ? group + ": " : "") + "without " + unit]]));
let typing;
$("q").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => set({ q: $("q").value }), 80); });
$("filters").addEventListener("submit", event => event.preventDefault());
$("clear").addEventListener("click", () => { state = {}; writeState(); filter(); });
function reflect() {
  if (document.activeElement !== $("q")) $("q").value = state.q || "";
  for (const id of ["family", "dtype", "variant", "layout", "oracle", "measure"]) $(id).value = state[id] || "";
  const on = (state.outcome || "").split(",").filter(Boolean);
  for (const button of $("outcomes").children) button.setAttribute("aria-pressed", String(!on.length || on.includes(button.dataset.word)));
  for (const head of heads.children) {
    const mine = head.dataset.sort && (state.sort || "").replace("-", "") === head.dataset.sort;
    if (mine) head.setAttribute("aria-sort", state.sort.startsWith("-") ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
  }
  $("clear").disabled = !Object.keys(state).length;
}

function mark(line) {
  body.querySelector("tr.at")?.classList.remove("at");
  line.classList.add("at");
  at = shown.indexOf(line.row);
  line.focus({ preventScroll: true });
}
function move(step) {
  const next = Math.max(0, Math.min(shown.length - 1, at + step));
  while (next >= drawn && drawn < shown.length) draw();
  const line = [...body.querySelectorAll("tr.row")][next];
  if (line) { mark(line); line.scrollIntoView({ block: "nearest" }); }
}
document.addEventListener("keydown", event => {
  const typed = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "Escape") { if (typed) event.target.blur(); else if (Object.keys(state).length) { state = {}; writeState(); filter(); } return; }
  if (typed || event.ctrlKey || event.metaKey || event.altKey) return;
  const line = body.querySelector("tr.at");
  if (event.key === "/") { event.preventDefault(); $("q").focus(); $("q").select(); }
  else if (event.key === "j" || (event.key === "ArrowDown" && line)) { event.preventDefault(); move(1); }
  else if (event.key === "k" || (event.key === "ArrowUp" && line)) { event.preventDefault(); move(-1); }
  else if (event.key === "Enter" && line && event.target === line) { event.preventDefault(); toggle(line); }
  else if (event.key === "c" && line) { const button = line.nextElementSibling?.querySelector(".copy-script"); if (button) copy(button); }
});

addEventListener("beforeprint", () => { while (drawn < Math.min(shown.length, 5000)) draw(); });
addEventListener("hashchange", () => { if (readState()) { filter(); $("cases").scrollIntoView(); } });
const linked = readState();
filter();
if (linked) $("cases").scrollIntoView({ behavior: "instant" });
})();
