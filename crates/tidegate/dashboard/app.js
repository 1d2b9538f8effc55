// The page: one stream, one set of panels for each part that it tells of.
//
// It only shows. What comes from the server is put into the document as text, never as markup.
"use strict";

const KINDS = {
  healthy: ["Healthy", "✓", "good"],
  starting: ["Starting", "…", "calm"],
  degrading: ["Degrading", "◐", "warn"],
  out_of_quota: ["Out of quota", "◒", "warn"],
  shedding: ["Shedding", "▲", "bad"],
  dark: ["Dark", "◌", "calm"],
  lame_duck: ["Lame duck", "◼", "warn"],
  overrun: ["Overrun", "▼", "bad"],
  gone: ["Gone", "✕", "bad"],
  failed: ["Cannot be looked at", "✕", "bad"],
  unknown: ["Unknown", "?", "calm"],
};
const LEVELS = ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"];
const EVENTS_MAX = 400;
const LISTED_MAX = 40;

/** Where the router is: whatever the page's own path is, this script lies beside it. */
const ROOT = document.currentScript.src;
const at = (path) => new URL(path, ROOT).href;

let span = 300;
const views = [];

// --- the document -----------------------------------------------------------------------------

const $ = (selector, within = document) => within.querySelector(selector);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** A short piece of the line that a row stands for. */
function swatch(color, dash) {
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  const line = document.createElementNS(ns, "line");
  for (const [k, v] of Object.entries({ viewBox: "0 0 24 8", class: "swatch", "aria-hidden": "true" })) {
    svg.setAttribute(k, v);
  }
  const drawn = { x1: 0, x2: 24, y1: 4, y2: 4, stroke: color, "stroke-width": 3 };
  if (dash.length) drawn["stroke-dasharray"] = dash.join(" ");
  for (const [k, v] of Object.entries(drawn)) line.setAttribute(k, v);
  svg.append(line);
  return svg;
}

/** A table of texts. The first column is a heading, others are numbers unless they say so. */
function table(caption, heads, rows) {
  const cells = (tag, row) => row.map((cell, n) => {
    const { text, mark, words, strong } = typeof cell === "object" && cell ? cell : { text: cell };
    const made = element(n === 0 ? "th" : tag, {
      scope: n === 0 && tag === "td" ? "row" : tag === "th" ? "col" : null,
      class: [n > 0 && !words ? "number" : "", strong ? "strong" : ""].join(" ").trim() || null,
    });
    if (mark) made.append(mark);
    made.append(String(text ?? "–"));
    return made;
  });
  return element("table", {},
    element("caption", { class: "hidden" }, caption),
    element("thead", {}, element("tr", {}, ...cells("th", heads))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...cells("td", row)))));
}

const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });

/** The same with its day, where that is not today. */
const moment = (ms) => (new Date(ms).toDateString() === new Date().toDateString() ? "" :
  `${new Date(ms).toLocaleDateString()} `) + clock(ms);

function ago(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const percent = (share) => (share === null || share === undefined ? "–" : brief(share * 100) + " %");
const cpus = (n) => brief(n);

// --- panels -----------------------------------------------------------------------------------

const after = (name) => name.slice(name.indexOf(".") + 1);
const level = (name, n, kind) => ({
  column: `${kind}.${name}`,
  label: kind === "admitted" ? `${name} admitted` : `${name} rejected`,
  color: `--l${n + 1}`,
  dash: kind === "admitted" ? [] : [3, 4],
  width: kind === "admitted" ? 2 : 1.5,
});

/** In the order in which an operator asks. */
const PANELS = [
  {
    key: "work", title: "Offered, admitted, goodput", unit: "/s",
    lines: () => [
      { column: "offered", label: "offered", color: "--c2", dash: [7, 4] },
      { column: "admitted", label: "admitted", color: "--c1", dash: [] },
      { column: "good", label: "goodput", color: "--c3", dash: [], fill: true, width: 2.5 },
      { column: "capacity", label: "capacity", color: "--ink", dash: [2, 4], width: 1.5 },
    ],
    now: ({ work }) => `goodput ${brief(work.good, "/s")} of ${brief(work.offered, "/s")}`,
    note: ({ work }) => work.capacity_cpus === null || work.capacity_cpus === undefined ? "" :
      `Capacity is ${cpus(work.capacity_cpus)} of ${cpus(work.usable_cpus)} CPUs` +
      (work.cost_ms ? `, at ${brief(work.cost_ms, "ms")} of CPU a request. ` : ". ") +
      `Offered: ${cpus(work.offered_cpus)} CPUs.`,
  },
  {
    key: "levels", title: "By criticality", unit: "/s",
    lines: () => LEVELS.flatMap((name, n) => ["admitted", "rejected"].map((k) => level(name, n, k))),
    now: ({ levels }) => {
      const highest = levels.find((l) => l.degraded);
      return highest ? `degraded answers up to ${highest.criticality}` : "";
    },
    own: (view) => table("Requests a second by criticality",
      ["criticality", "let in", "refused", "good", "served"],
      view.snapshot.levels.map((l, n) => [
        { text: l.criticality, mark: swatch(css(`--l${n + 1}`), []) },
        brief(l.admitted), brief(l.rejected), brief(l.good),
        l.admitted + l.rejected > 0 ? percent(Math.min(1, l.good / (l.admitted + l.rejected))) : "–",
      ])),
    hint: "Requests a second; dashed: refused.",
  },
  {
    key: "latency", title: "Latency of admitted", unit: "ms",
    lines: () => [
      { column: "p99", label: "p99", color: "--c5", dash: [] },
      { column: "p90", label: "p90", color: "--c2", dash: [7, 4] },
      { column: "p50", label: "p50", color: "--c1", dash: [2, 3] },
    ],
    now: ({ latency }) => `p99 ${brief(latency.p99_ms, "ms")}`,
  },
  {
    key: "signals", title: "Utilization signals", unit: "×",
    thresholds: (view) => view.snapshot.thresholds,
    lines: (view) => view.series.named("signal.").slice(0, 8)
      .map((column) => ({ column, label: after(column) })),
    now: ({ signals }) => {
      const decides = signals.find((s) => s.decides);
      return decides ? `${decides.name} decides, ${brief(decides.ratio, "×")} its target` : "";
    },
    own: (view) => table("Signals, what they should not exceed, and where shedding begins",
      ["signal", "value", "target", "ratio", ...view.snapshot.thresholds.map((t) => short(t.criticality))],
      view.snapshot.signals.map((s) => [
        { text: s.name + (s.leading ? "" : " (confirms)"), mark: view.mark("signals", `signal.${s.name}`), strong: s.decides },
        brief(s.value), brief(s.target), { text: brief(s.ratio), strong: s.decides },
        ...view.snapshot.thresholds.map((t) => brief(t.ratio * s.target)),
      ])),
    hint: "Ratio of each signal to its target. Red lines: where each criticality may be shed.",
  },
  {
    key: "rejections", title: "Rejections by reason and place", unit: "/s",
    lines: (view) => view.series.named("reason.").slice(0, 8)
      .map((column) => ({ column, label: after(column) })),
    now: ({ work }) => `${brief(work.rejected, "/s")} rejected`,
    own: (view) => table("Rejections a second", ["reason", { text: "place", words: true }, "a second", "in all"],
      view.snapshot.rejections.map((r) => [
        { text: r.reason, mark: view.mark("rejections", `reason.${r.reason} ${r.place}`) },
        { text: r.place, words: true }, brief(r.rate), brief(r.total),
      ])),
  },
  {
    key: "customers", title: "Customers", unit: "", about: "CPU-seconds per second",
    lines: (view) => view.series.named("used.").slice(0, 8)
      .map((column) => ({ column, label: after(column) })),
    now: ({ customers_left_out: more }) => (more ? `and ${more} more` : ""),
    floor: 0.1,
    own: (view) => table("CPU-seconds per second by customer",
      ["customer", "used", "wanted", "granted", "limit"],
      view.snapshot.customers.map((c) => [
        { text: c.name, mark: view.mark("customers", `used.${c.name}`) },
        cpus(c.used), { text: cpus(c.wanted), strong: c.wanted > c.used * 1.001 },
        c.granted === null ? "–" : cpus(c.granted), c.limit === null ? "none" : cpus(c.limit),
      ])),
  },
  {
    key: "overs", title: "Who was over, and when", chart: false,
    // A quota server's own: tasks do not know of the whole fleet.
    when: ({ overs }) => Array.isArray(overs),
    now: ({ overs }) => `${overs.filter((o) => o.ended_ms === null).length} over now`,
    none: (view) => view.snapshot.overs.length ? null : "Nobody was over since the server began to lead.",
    own: (view) => table("Times that customers asked for more than their limits",
      ["customer", "from", "to", "CPUs wanted", { text: "in words", words: true }],
      view.snapshot.overs.map((o) => [
        { text: o.customer, strong: o.ended_ms === null }, moment(o.began_ms),
        o.ended_ms === null ? "goes on" : moment(o.ended_ms), cpus(o.wanted_max),
        { text: o.sentence, words: true },
      ])),
  },
  {
    key: "retries", title: "Retries", unit: "×",
    lines: () => [{ column: "amplification", label: "amplification", color: "--c5", dash: [] }],
    now: ({ retries, state }) => `${brief(retries.amplification, "×")}` +
      (state.dont_retry ? ", says don't retry" : ""),
    own: (view) => {
      const { attempts } = view.snapshot.retries;
      const all = attempts.reduce((sum, n) => sum + n, 0);
      const rows = ["first", "second", "third or later"].map((name, n) =>
        [`${name} attempt`, brief(attempts[n], "/s"), all > 0 ? percent(attempts[n] / all) : "–"]);
      rows.push(["attempts for each first", brief(view.snapshot.retries.amplification, "×"), ""]);
      for (const c of view.snapshot.clients) {
        rows.push([`budget left for ${c.service}`, brief(c.budget_left), `${brief(c.retries, "/s")} retried`]);
      }
      return table("Attempts", ["", "now", "share"], rows);
    },
  },
  {
    key: "throttle", title: "Client throttle", unit: "",
    lines: (view) => view.series.named("throttle.").slice(0, 8)
      .map((column) => ({ column, label: after(column) })),
    now: ({ clients }) => (clients.length ? `${clients.length} asked` : ""),
    none: (view) => view.snapshot.clients.length ? null :
      "This process asks no service through a client that was given to the page.",
    own: (view) => table("How likely a request is held back",
      ["service", ...LEVELS.map(short), "asked"],
      view.snapshot.clients.map((c) => [
        { text: c.service, mark: view.mark("throttle", `throttle.${c.service}`) },
        ...LEVELS.map((name) => percent(c.throttle.find((t) => t.criticality === name)?.probability)),
        brief(c.requests, "/s"),
      ])),
  },
  {
    key: "backends", title: "Backends", chart: false,
    none: (view) => view.snapshot.backends.length ? null :
      "No balancer was given to the page.",
    now: ({ backends }) => {
      const serving = backends.filter((b) => b.state === "serving").length;
      return backends.length ? `${serving} of ${backends.length} serve` : "";
    },
    own: (view) => table("Backends", ["endpoint", { text: "service", words: true }, "share", "load", "active", { text: "state", words: true }],
      view.snapshot.backends.slice(0, 40).map((b) => [
        b.endpoint, { text: b.service, words: true }, percent(b.share), percent(b.load),
        brief(b.active), { text: b.state, words: true, strong: b.state !== "serving" },
      ])),
  },
  {
    key: "quota", title: "Quota server", chart: false,
    none: (view) => view.snapshot.quota.server ? null : view.snapshot.quota.sentence || "No quota server",
    now: ({ quota }) => (quota.server ? "" : "limits are local"),
    own: (view) => table("Quota server", ["server", { text: "leader", words: true }, "stale"], [[
      view.snapshot.quota.server, { text: view.snapshot.quota.leader, words: true },
      brief(view.snapshot.quota.stale_s, "s"),
    ]]),
  },
  { key: "decisions", title: "Last decisions", chart: false, wide: true, decisions: true, now: () => "" },
];

function short(criticality) {
  return { CRITICAL_PLUS: "CRIT+", CRITICAL: "CRIT", SHEDDABLE_PLUS: "SHED+", SHEDDABLE: "SHED" }[criticality] || criticality;
}

/** Lowest, highest and present number of each line: what the canvas shows, in words. */
function spread(view, panel, lines, from) {
  const start = view.series.times.findIndex((at) => at >= from);
  const rows = lines.map((line, n) => {
    const all = view.series.column(line.column).slice(Math.max(0, start)).filter((v) => v !== null);
    const mark = swatch(line.color ? css(line.color) : palette()[n % 8], line.dash || DASHES[n % 8]);
    const latest = view.series.column(line.column).at(-1);
    return [{ text: line.label, mark }, brief(latest), all.length ? brief(Math.min(...all)) : "–",
      all.length ? brief(Math.max(...all)) : "–"];
  });
  return table(panel.title, [panel.about || panel.unit || "", "now", "lowest", "highest"], rows);
}

// --- one part ---------------------------------------------------------------------------------

class View {
  constructor(part) {
    this.part = part;
    this.series = new Series();
    this.snapshot = null;
    this.events = [];
    this.known = new Set();
    this.listed = new Map();
    this.filter = "all";
    this.panels = new Map();
    this.heard = 0;
    this.root = $("#part").content.firstElementChild.cloneNode(true);
    this.root.dataset.part = part;
    // Names of parts may have blanks, ids may not.
    this.prefix = views.length ? `part-${views.length}-` : "";
    this.build();
  }

  /** All panels that this part has by what is known of it: some have more than others. */
  build() {
    for (const panel of PANELS) {
      const wanted = !panel.when || (this.snapshot && panel.when(this.snapshot));
      const shown = this.panels.get(panel.key);
      if (wanted && !shown) this.buildPanel(panel);
      if (!wanted && shown) {
        shown.made.remove();
        this.panels.delete(panel.key);
      }
    }
  }

  buildPanel(panel) {
    const made = $("#panel").content.firstElementChild.cloneNode(true);
    made.dataset.panel = panel.key;
    const title = `${this.prefix}${panel.key}-title`;
    $("h2", made).id = title;
    setText($("h2", made), panel.title);
    made.setAttribute("aria-labelledby", title);
    made.setAttribute("tabindex", "0");
    if (panel.wide) made.classList.add("wide");
    const shown = { made, panel, chart: null };
    if (panel.decisions) this.buildDecisions(made);
    else if (panel.chart === false) $(".chart", made).remove();
    else {
      const { unit, floor } = panel;
      const thresholds = panel.thresholds ? () => panel.thresholds(this) : undefined;
      shown.chart = new Chart($(".chart", made), { unit, floor, thresholds });
    }
    const next = PANELS.slice(PANELS.indexOf(panel) + 1).find(({ key }) => this.panels.has(key));
    this.panels.set(panel.key, shown);
    $(".grid", this.root).insertBefore(made, next ? this.panels.get(next.key).made : null);
  }

  buildDecisions(made) {
    $(".chart", made).remove();
    if (!views.length) made.id = "decisions";
    const choices = element("div", { class: "choices", role: "group", "aria-label": "Which decisions" });
    for (const [key, label] of [["all", "All"], ["changes", "Changes"], ["refusals", "Refusals"]]) {
      const button = element("button", { type: "button", "aria-pressed": String(key === "all") }, label);
      button.addEventListener("click", () => {
        this.filter = key;
        for (const other of choices.children) other.setAttribute("aria-pressed", String(other === button));
        this.list();
      });
      choices.append(button);
    }
    $("header", made).append(choices);
    this.decisions = element("ol", { class: "decisions" });
    $(".table", made).append(this.decisions);
    this.decisions.addEventListener("keydown", (event) => {
      const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const row = step && event.target.closest("li")?.[step];
      if (row) {
        event.preventDefault();
        $("button", row)?.focus();
      }
    });
  }

  /** What a line of a chart looks like, for the row that stands for it. */
  mark(key, column) {
    const lines = PANELS.find((p) => p.key === key).lines(this);
    const n = lines.findIndex((line) => line.column === column);
    if (n < 0) return null;
    const line = lines[n];
    return swatch(line.color ? css(line.color) : palette()[n % 8], line.dash || DASHES[n % 8]);
  }

  take({ snapshot, series, events }) {
    if (this.snapshot && this.snapshot.began_ms !== snapshot.began_ms) {
      const text = "The server was started anew";
      this.note({ id: `began-${snapshot.began_ms}`, at_ms: snapshot.began_ms, change: true, kind: "began", text, local: true });
    }
    this.snapshot = snapshot;
    this.build();
    this.heard = Date.now();
    this.series.add(series);
    for (const event of events) this.note(event);
    this.events.sort((a, b) => a.at_ms - b.at_ms);
    while (this.events.length > EVENTS_MAX) {
      const refusal = this.events.findIndex((event) => !event.change);
      const [gone] = this.events.splice(Math.max(0, refusal), 1);
      this.known.delete(gone.id);
    }
    away();
    if (this === views[0]) head(this);
    this.show();
    document.body.dataset.updates = Number(document.body.dataset.updates || 0) + 1;
  }

  note(event) {
    if (this.known.has(event.id)) return;
    this.known.add(event.id);
    this.events.push(event);
  }

  show() {
    const { snapshot, root } = this;
    const [name, glyph, mood] = KINDS[snapshot.state.kind] || KINDS.unknown;
    const state = $(".state", root);
    state.dataset.mood = mood;
    state.dataset.kind = snapshot.state.kind;
    setText($(".mark", state), glyph);
    setText($(".kind", state), (snapshot.parts.length > 1 ? `${snapshot.part}: ` : "") + name);
    setText($(".sentence", state), snapshot.state.sentence);
    // The time runs by the server's clock.
    setText($(".since", state), `since ${clock(snapshot.state.since_ms)}, ${ago(snapshot.at_ms - snapshot.state.since_ms)}` +
      (snapshot.state.dont_retry ? "; tells callers not to retry" : ""));
    this.figures($(".figures", state));
    const to = this.series.times.at(-1) || Date.now() / 1000;
    const from = to - span;
    const marks = this.events.filter((event) => event.change);
    for (const shown of this.panels.values()) this.draw(shown, from, to, marks);
    this.list();
  }

  figures(list) {
    const { work, latency } = this.snapshot;
    const rows = [
      ["Offered", brief(work.offered), "/s"],
      ["Admitted", brief(work.admitted), "/s"],
      ["Goodput", brief(work.good), "/s"],
      ["Capacity", brief(work.capacity), "/s"],
      ["Rejected", brief(work.rejected), "/s"],
      ["p99", brief(latency.p99_ms), "ms"],
      ["In flight", brief(work.inflight), ""],
      ["Cost", brief(work.cost_ms), "ms CPU"],
    ];
    list.replaceChildren(...rows.map(([name, value, unit]) => element("div", {},
      element("dt", {}, name),
      element("dd", {}, value, unit && value !== "–" ? element("small", {}, ` ${unit}`) : null))));
  }

  draw({ made, panel, chart }, from, to, marks) {
    setText($(".now", made), panel.now(this.snapshot));
    if (panel.decisions) return;
    const none = panel.none?.(this);
    const lines = panel.lines?.(this) || [];
    const box = $(".chart", made);
    if (box) box.hidden = Boolean(none) || !lines.length;
    const content = none ? element("p", { class: "quiet none" }, none) :
      panel.own ? panel.own(this) : spread(this, panel, lines, from);
    const about = panel.note?.(this.snapshot) || panel.hint;
    const notes = !none && about ? [element("p", { class: "quiet note" }, about)] : [];
    $(".table", made).replaceChildren(content, ...notes);
    if (chart && !none && lines.length) {
      chart.options.floor = Math.max(panel.floor || 1, highest(panel, from));
      chart.draw(this.series, lines, from, to, marks);
    }
    made.dataset.filled = "true";
  }

  /** The last decisions, newest first. Rows stay where they are known, so that focus does too. */
  list() {
    // Of both, so that a storm of refusals does not hide what began it.
    const some = (change) => this.filter === (change ? "refusals" : "changes") ? [] :
      this.events.filter((event) => event.change === change).slice(-LISTED_MAX);
    const wanted = [...some(true), ...some(false)].sort((a, b) => b.at_ms - a.at_ms);
    const ids = new Set(wanted.map((event) => event.id));
    for (const [id, row] of this.listed) {
      if (!ids.has(id)) {
        row.remove();
        this.listed.delete(id);
      }
    }
    let before = null;
    for (const event of wanted) {
      let row = this.listed.get(event.id);
      if (!row) {
        row = this.row(event);
        this.listed.set(event.id, row);
      }
      const next = before ? before.nextElementSibling : this.decisions.firstElementChild;
      if (next !== row) this.decisions.insertBefore(row, next);
      before = row;
    }
    $(".none", this.decisions)?.remove();
    if (!wanted.length) {
      this.decisions.append(element("li", { class: "quiet none" }, "Nothing was refused, and nothing has changed."));
    }
    const made = this.panels.get("decisions").made;
    made.dataset.filled = "true";
    const count = (of) => this.events.filter(of).length;
    const changes = count((event) => event.change);
    const refused = count((event) => event.kind === "refused");
    const others = this.events.length - changes - refused;
    const ended = others ? `, ${others} that ended otherwise` : "";
    setText($(".now", made), `${changes} changes, ${refused} refusals in the sample${ended}`);
  }

  row(event) {
    const parts = [
      element("time", { datetime: new Date(event.at_ms).toISOString() }, clock(event.at_ms)),
      element("span", { class: event.change ? "tag change" : "tag" }, event.change ? "change" : event.criticality || "refused"),
      element("span", { class: "what" }, event.text),
    ];
    if (event.local) return element("li", {}, element("p", {}, ...parts));
    const button = element("button", { type: "button", "aria-haspopup": "dialog", "data-id": event.id }, ...parts);
    button.addEventListener("click", () => explain(event));
    return element("li", {}, button);
  }

  recolour() {
    for (const { chart } of this.panels.values()) chart?.recolour();
    if (this.snapshot) this.show();
  }
}

/** The highest number of a panel over all parts, so that their charts can be compared. */
function highest(panel, from) {
  if (views.length < 2) return 0;
  let top = 0;
  for (const view of views) {
    if (!view.snapshot) continue;
    const start = Math.max(0, view.series.times.findIndex((at) => at >= from));
    for (const line of panel.lines(view)) {
      for (const value of view.series.column(line.column).slice(start)) top = Math.max(top, value || 0);
    }
  }
  return top;
}

// --- all parts --------------------------------------------------------------------------------

const only = new URLSearchParams(location.search).get("part");

function add(part) {
  const view = new View(part);
  views.push(view);
  $("#parts").append(view.root);
  document.body.classList.toggle("compare", views.length > 1);
  return view;
}

/** What stands above all parts is about the first. */
function head({ snapshot }) {
  setText($("#service"), snapshot.service || "tidegate");
  const others = snapshot.parts.length > 1 ? `parts ${snapshot.parts.join(", ")}; ` : "";
  setText($("#about"), `${others}tidegate ${snapshot.version}, up ${ago(snapshot.at_ms - snapshot.began_ms)}`);
  document.title = `${KINDS[snapshot.state.kind]?.[1] || ""} ${snapshot.service || "tidegate"}`;
}

/**
 * The stream of all parts. There is one, however many parts there are: a browser opens six
 * connections to a host for all of its pages together.
 */
const feed = {
  source: null,
  again: 0,
  asked: 0,
  heard: 0,

  connect() {
    this.source?.close();
    clearTimeout(this.again);
    this.asked = Date.now();
    const query = only === null ? "parts=all" : `part=${encodeURIComponent(only)}`;
    this.source = new EventSource(at(`api/stream?${query}`));
    this.source.onmessage = (message) => {
      this.heard = Date.now();
      const update = JSON.parse(message.data);
      const { part } = update.snapshot;
      (views.find((view) => view.part === part) || add(part)).take(update);
    };
    this.source.onerror = () => {
      away();
      // A browser gives up on what is no stream, such as an error of a proxy in between.
      if (this.source.readyState === EventSource.CLOSED) {
        clearTimeout(this.again);
        this.again = setTimeout(() => this.connect(), 1000);
      }
    };
  },
};

/** A server says something every second; who is silent for so long is away, whatever the connection says. */
const SILENT_MS = 5000;

/** Says so while a server does not answer. */
function away() {
  if (Date.now() - Math.max(feed.heard, feed.asked) > SILENT_MS) feed.connect();
  const quiet = feed.heard && Date.now() - feed.heard > SILENT_MS;
  const gone = feed.source.readyState !== EventSource.OPEN || quiet;
  const banner = $("#away");
  if (banner.hidden === gone) banner.hidden = !gone;
  if (gone) setText($("time", banner), feed.heard ? clock(feed.heard) : "never");
  document.body.classList.toggle("stale", gone);
}

setInterval(away, 1000);

async function explain(event) {
  const dialog = $("#explanation");
  setText($("#explanation-title"), event.text);
  setText($("#explanation-about"), `decision ${event.id}, ${clock(event.at_ms)}`);
  const facts = $("#explanation-facts");
  const changes = $("#explanation-changes");
  facts.replaceChildren();
  changes.replaceChildren();
  if (!dialog.open) dialog.showModal();
  try {
    const answer = await fetch(at(`api/explain/${encodeURIComponent(event.id)}`));
    if (!answer.ok) {
      facts.append(element("dt", {}, "Not known"), element("dd", {}, await answer.text()));
      return;
    }
    const explained = await answer.json();
    setText($("#explanation-title"), explained.title);
    for (const { about, text } of explained.facts) facts.append(element("dt", {}, about), element("dd", {}, text));
    changes.append(...explained.would_change.map((text) => element("li", {}, text)));
  } catch {
    facts.append(element("dt", {}, "Not known"), element("dd", {}, "The server does not answer."));
  }
}

// --- keys, theme, span ------------------------------------------------------------------------

function setSpan(seconds) {
  span = seconds;
  for (const button of document.querySelectorAll("[data-span]")) {
    button.setAttribute("aria-pressed", String(Number(button.dataset.span) === seconds));
  }
  for (const view of views) if (view.snapshot) view.show();
}

function recolour() {
  applyTheme();
  for (const view of views) view.recolour();
}

function toggleTheme() {
  chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("theme", chosenTheme);
  } catch {
    // It holds until the page is closed.
  }
  recolour();
}

function movePanel(step) {
  const panels = [...document.querySelectorAll(".panel")];
  const at = panels.indexOf(document.activeElement?.closest(".panel"));
  const next = panels[Math.min(panels.length - 1, Math.max(0, at + step))];
  next?.focus({ preventScroll: true });
  next?.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("dialog[open]")) return;
  const keys = {
    j: () => movePanel(1),
    k: () => movePanel(-1),
    d: () => ($(".decisions button") || $("#decisions"))?.focus(),
    t: toggleTheme,
    1: () => setSpan(60),
    5: () => setSpan(300),
    0: () => setSpan(900),
    "?": () => $("#keys").showModal(),
  };
  if (keys[event.key]) {
    event.preventDefault();
    keys[event.key]();
  }
});

for (const button of document.querySelectorAll("[data-span]")) {
  button.addEventListener("click", () => setSpan(Number(button.dataset.span)));
}
$("#theme").addEventListener("click", toggleTheme);
$("#help").addEventListener("click", () => $("#keys").showModal());
// A click beside a dialog closes it.
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}
prefersDark.addEventListener("change", recolour);
feed.connect();
