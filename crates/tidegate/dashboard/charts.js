// Charts: lines over the last minutes, thresholds and events drawn in.
//
// Colours are those of Okabe and Ito, which people with any kind of colour blindness tell apart;
// and as there are those who see none, lines differ by their dashes as well. A chart shows nothing
// that is not in the table below it.
"use strict";

const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [1, 5], [14, 5], [5, 2, 1, 2, 1, 2], [3, 6]];

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const palette = () => ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7", "--c8"].map(css);

/** A number as people read it: three digits. */
function brief(n, unit = "") {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  const size = Math.abs(n);
  let text;
  if (size >= 1e6) text = trim((n / 1e6).toPrecision(3)) + "M";
  else if (size >= 1e4) text = trim((n / 1e3).toPrecision(3)) + "k";
  else if (size >= 100) text = Math.round(n).toString();
  else if (size === 0) text = "0";
  else if (size < 0.001) text = "<0.001";
  else text = trim(n.toPrecision(3));
  return unit ? `${text} ${unit}` : text;
}

function trim(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** One chart in `box`. `lines`: [{column, label, color?, fill?}]. */
class Chart {
  constructor(box, options) {
    this.box = box;
    this.options = options;
    this.columns = "";
    this.plot = null;
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(box);
  }

  resize() {
    const width = Math.floor(this.box.clientWidth);
    if (this.plot && width > 0 && width !== this.plot.width) {
      this.plot.setSize({ width, height: this.height(width) });
    }
  }

  height(width) {
    return width < 420 ? 150 : 180;
  }

  /** Draws `lines` of `series`, from `from` to `to` in seconds. */
  draw(series, lines, from, to, marks) {
    this.marks = marks;
    const names = lines.map((line) => line.column + "|" + line.label).join("\n");
    const data = [series.times, ...lines.map((line) => series.column(line.column))];
    this.range = [from, to];
    if (!this.plot || names !== this.columns) {
      this.columns = names;
      this.make(data, lines);
    } else {
      this.plot.setData(data, false);
      this.plot.setScale("x", { min: from, max: to });
    }
  }

  /** To the second where seconds can be seen. */
  time(at) {
    const text = new Date(at * 1000).toLocaleTimeString([], { hour12: false });
    return this.range[1] - this.range[0] > 400 ? text.slice(0, 5) : text;
  }

  /** After a change of theme. */
  recolour() {
    this.columns = "";
  }

  make(data, lines) {
    if (this.plot) this.plot.destroy();
    this.box.replaceChildren();
    const width = Math.max(200, Math.floor(this.box.clientWidth));
    const colors = palette();
    const [ink, rule] = [css("--quiet"), css("--rule")];
    const font = "11px " + css("--sans");
    const axis = { stroke: ink, font, grid: { stroke: rule, width: 1 }, ticks: { show: false } };
    const { unit = "", thresholds } = this.options;
    const fit = (_, low, high) => {
      const floor = this.options.floor || 1;
      let top = Math.max(floor, Number.isFinite(high) ? high : floor);
      for (const t of thresholds ? thresholds() : []) top = Math.max(top, t.ratio * 1.1);
      return [0, top * 1.08];
    };
    this.plot = new uPlot({
      width,
      height: this.height(width),
      padding: [10, 12, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, sync: { key: "all" } },
      scales: { x: { time: true, range: () => this.range }, y: { range: fit } },
      axes: [
        { ...axis, space: 72, size: 26, values: (_, all) => all.map((at) => this.time(at)) },
        { ...axis, size: 48, space: 28, values: (_, all) => all.map((n) => brief(n, unit)) },
      ],
      series: [{}, ...lines.map((line, n) => ({
        label: line.label,
        stroke: line.color ? css(line.color) : colors[n % colors.length],
        width: line.width || 2,
        dash: line.dash || DASHES[n % DASHES.length],
        fill: line.fill ? css(line.color || "--c1") + "1f" : undefined,
        points: { show: false },
        spanGaps: false,
      }))],
      hooks: { draw: [(plot) => this.marksOn(plot, ink)] },
    }, data, this.box);
    this.plot.root.setAttribute("aria-hidden", "true");
  }

  /** Thresholds across, events downwards. */
  marksOn(plot, ink) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.font = `${10 * devicePixelRatio}px ${css("--sans")}`;
    for (const t of this.options.thresholds ? this.options.thresholds() : []) {
      const y = Math.round(plot.valToPos(t.ratio, "y", true)) + 0.5;
      if (y < bbox.top || y > bbox.top + bbox.height) continue;
      ctx.strokeStyle = css("--bad");
      ctx.globalAlpha = 0.55;
      ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
    }
    ctx.strokeStyle = ink;
    ctx.setLineDash([1 * devicePixelRatio, 3 * devicePixelRatio]);
    let last = -Infinity;
    for (const mark of this.marks || []) {
      const x = Math.round(plot.valToPos(mark.at_ms / 1000, "x", true)) + 0.5;
      // Those that come at once are one line.
      if (x < bbox.left || x > bbox.left + bbox.width || x - last < 6 * devicePixelRatio) continue;
      last = x;
      ctx.globalAlpha = mark.kind === "degrade" ? 0.3 : 0.7;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }
}

/** Fifteen minutes of columns, in the order of time. */
class Series {
  constructor() {
    this.times = [];
    this.columns = new Map();
  }

  /** Takes rows in. Those of a server that was started anew go behind what is known. */
  add({ columns, rows }) {
    if (!rows.length) return;
    const first = rows[0][0] / 1000;
    // What the server still remembers is taken from it, whatever was here.
    let keep = this.times.length;
    while (keep > 0 && this.times[keep - 1] >= first) keep -= 1;
    this.cut(0, keep);
    // A gap is a gap, and not a line across it.
    const last = this.times[this.times.length - 1];
    if (last !== undefined && first - last > 2.5) this.push(last + 1, [], []);
    for (const [at, numbers] of rows) this.push(at / 1000, columns, numbers);
    const newest = this.times[this.times.length - 1];
    let old = 0;
    while (this.times[old] < newest - 910) old += 1;
    if (old > 0) this.cut(old, this.times.length);
  }

  cut(from, to) {
    this.times = this.times.slice(from, to);
    for (const [name, all] of this.columns) this.columns.set(name, all.slice(from, to));
  }

  push(at, names, numbers) {
    this.times.push(at);
    names.forEach((name, n) => {
      if (!this.columns.has(name)) {
        this.columns.set(name, new Array(this.times.length - 1).fill(null));
      }
      this.columns.get(name).push(numbers[n] ?? null);
    });
    for (const all of this.columns.values()) {
      if (all.length < this.times.length) all.push(null);
    }
  }

  column(name) {
    return this.columns.get(name) || new Array(this.times.length).fill(null);
  }

  named(prefix) {
    return [...this.columns.keys()].filter((name) => name.startsWith(prefix));
  }
}
