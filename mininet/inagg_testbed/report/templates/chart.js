// What all pictures of a report share: looks, scales, the tip, and a horizontal axis with a cursor that zooms.
const COLOURS = 6;
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "14 4", "5 2 2 2 2 2"];
const spoken = document.getElementById("spoken");
const tip = document.getElementById("tip");
let ids = 0;

function element(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const text = (words, x, y, attributes = {}) => element("text", { x, y, ...attributes }, words);
const exact = (value) => value.toLocaleString("en", { maximumSignificantDigits: Math.abs(value) < 1000 ? 4 : 9 });
const brief = (value) =>
  Number(value.toPrecision(9)).toLocaleString("en", { notation: "compact", maximumSignificantDigits: 5 });
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const textWidth = (words) => 6.6 * words.length;

// Where a colour comes again, it has another dash and hatch.
const lookAt = (index) => {
  const turned = index + Math.floor(index / COLOURS);
  return { colour: index % COLOURS, dash: DASHES[turned % DASHES.length], hatch: turned };
};

// A label of a run has one look in all pictures of the page. Labels of parts have looks by their place in a picture.
const looks = new Map();
const lookOf = (label, place) => lookAt(looks.get(label) ?? place);
function keepLooks(labels) {
  for (const label of labels) if (!looks.has(label)) looks.set(label, looks.size);
}

function scaleOf([low, high], [from, to], log) {
  const map = log ? Math.log10 : (value) => value;
  const [a, b] = [map(low), map(high)];
  const scale = (value) => from + ((map(value) - a) / (b - a)) * (to - from);
  scale.invert = (place) => {
    const value = a + ((place - from) / (to - from)) * (b - a);
    return log ? 10 ** value : value;
  };
  return scale;
}

// whole: no ticks between whole numbers.
function ticksOf([low, high], count, log, whole = false) {
  const found = [];
  if (log && high / low >= 8) {
    const decades = Math.log10(high / low);
    const factors = decades <= 1.5 ? [1, 2, 3, 5] : decades <= 3 ? [1, 3] : [1];
    const every = Math.max(1, Math.ceil(decades / count));
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += every) {
      found.push(...factors.map((factor) => factor * 10 ** power));
    }
    return found.filter((value) => value >= low && value <= high);
  }
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const nice = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const step = whole ? Math.max(nice, 1) : nice;
  for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n += 1) found.push(n * step);
  return found;
}

// [least, greatest] of the values, with room around a single one.
function spanOf(values, log) {
  const known = values.filter((value) => value !== null && Number.isFinite(value) && (!log || value > 0));
  if (!known.length) return null;
  let low = Infinity, high = -Infinity;
  for (const value of known) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low < high) return [low, high];
  return log ? [low / 1.5, low * 1.5] : [low - (Math.abs(low) || 1) * 0.1, low + (Math.abs(low) || 1) * 0.1];
}

function showTip(words, x, y) {
  tip.textContent = words;
  tip.hidden = false;
  const width = tip.offsetWidth;
  tip.style.left = `${clamp(x + 14, 4, Math.max(4, document.documentElement.clientWidth - width - 4)) + window.scrollX}px`;
  const below = y + 16 + tip.offsetHeight < window.innerHeight;
  tip.style.top = `${(below ? y + 16 : Math.max(0, y - tip.offsetHeight - 10)) + window.scrollY}px`;
}

const hideTip = () => { tip.hidden = true; };

// What all pictures share: a horizontal axis that zooms, a legend, a cursor that goes from stop to stop.
// A kind of picture has: legend() [{label, look, line}], extent() of its horizontal axis, and paint(svg, width), which draws,
// sets `plot` {left, right, top, bottom}, and returns the stops {x, y, words, shape}.
class Chart {
  constructor(holder, spec) {
    Object.assign(this, { holder, spec, hidden: new Set(), zoomed: null, at: null, id: `chart${ids++}`, width: 0 });
    this.canvas = document.createElement("div");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "group");
    this.canvas.setAttribute("aria-label", `${holder.dataset.title}: picture. Arrow keys read its values.`);
    this.makeLegend();
    holder.append(this.canvas);
    this.listen();
    new ResizeObserver(() => {
      if (Math.abs(holder.clientWidth - this.width) > 1) this.draw();
    }).observe(holder);
    this.draw();
  }

  makeLegend() {
    const entries = this.legend();
    const keys = document.createElement("div");
    keys.className = "legend";
    for (const { label, look, line } of entries.length > 1 ? entries : []) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = `s${look.colour}`;
      button.setAttribute("aria-pressed", "true");
      const sample = element("svg", { viewBox: "0 0 28 12", "aria-hidden": "true" });
      if (line) {
        sample.append(element("path", { d: "M0 6H28", class: "series", "stroke-dasharray": look.dash }));
      } else {
        sample.append(...this.box(0, 0, 28, 12, look, `${this.id}key`));
      }
      button.append(sample, label);
      button.addEventListener("click", () => {
        const off = this.hidden.delete(label) ? false : Boolean(this.hidden.add(label));
        button.setAttribute("aria-pressed", String(!off));
        this.draw();
      });
      keys.append(button);
    }
    this.reset = document.createElement("button");
    Object.assign(this.reset, { type: "button", textContent: "See all", hidden: true });
    this.reset.addEventListener("click", () => { this.zoom(null); this.canvas.focus(); });
    keys.append(this.reset);
    this.holder.append(keys);
  }

  // A rectangle in a look's colour, hatched so that it can be told from others without the colour.
  box(x, y, width, height, look, id) {
    const shape = { x, y, width: Math.max(width, 0.5), height };
    const parts = [element("rect", { ...shape, class: `fill s${look.colour}` })];
    const hatches = [null, "M0 8L8 0", "M0 0L8 8", "M0 4H8", "M4 0V8", "M0 4H8M4 0V8"];
    const path = hatches[look.hatch % hatches.length];
    if (path) {
      const name = `${id}-hatch${look.hatch % hatches.length}`;
      const hatch = element("path", { d: path, class: "hatch" });
      parts.push(
        element("defs", {}, element("pattern", { id: name, width: 8, height: 8, patternUnits: "userSpaceOnUse" }, hatch)),
        element("rect", { ...shape, fill: `url(#${name})` }),
      );
    }
    return parts;
  }

  draw() {
    this.width = this.holder.clientWidth;
    const width = Math.max(this.width, 240);
    const all = this.extent();
    const svg = element("svg", { role: "img", "aria-label": this.holder.dataset.title });
    this.svg = svg;
    this.stops = [];
    this.at = null;
    hideTip();
    if (!all) {
      svg.setAttribute("viewBox", `0 0 ${width} 60`);
      svg.append(text("no values", 8, 34, { class: "quiet" }));
    } else {
      this.domain = this.zoomed ?? all;
      this.stops = this.paint(svg, width);
    }
    this.cursor = element("g", { class: "cursor" });
    svg.append(this.cursor);
    this.canvas.replaceChildren(svg);
    this.reset.hidden = !this.zoomed;
  }

  // The horizontal axis, below `plot`.
  paintAxis(svg, label, log, whole = false) {
    const { left, right, top, bottom } = this.plot;
    this.x = scaleOf(this.domain, [left, right], log);
    for (const value of ticksOf(this.domain, (right - left) / 70, log, whole)) {
      const place = this.x(value);
      svg.append(element("line", { x1: place, x2: place, y1: top, y2: bottom, class: "grid" }));
      svg.append(text(brief(value), place, bottom + 15, { "text-anchor": "middle", class: "quiet" }));
    }
    svg.append(element("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }));
    svg.append(text(label, right, bottom + 31, { "text-anchor": "end", class: "quiet" }));
    const clip = element("clipPath", { id: this.id });
    clip.append(element("rect", { x: left - 4, y: top - 4, width: right - left + 8, height: bottom - top + 8 }));
    svg.append(clip);
    const inner = element("g", { "clip-path": `url(#${this.id})` });
    svg.append(inner);
    return inner;
  }

  zoom(domain) {
    this.zoomed = domain;
    this.draw();
  }

  zoomBy(factor) {
    if (!this.stops.length && !this.zoomed) return;
    const { left, right } = this.plot;
    const middle = clamp(this.at?.x ?? (left + right) / 2, left, right);
    const ends = [left, right].map((end) => middle + (end - middle) * factor);
    const all = scaleOf(this.extent(), [0, 1], this.log);
    const [from, to] = ends.map((end) => all(this.x.invert(end)));
    const start = clamp(from, 0, 1 - (to - from));
    this.zoom(to - from > 0.999 ? null : [all.invert(start), all.invert(start + to - from)]);
  }

  visit(stop, point) {
    this.at = stop ?? null;
    this.cursor.replaceChildren(...(stop ? [stop.shape()] : []));
    if (!stop) return hideTip();
    const frame = this.svg.getBoundingClientRect();
    const ratio = frame.width / this.svg.viewBox.baseVal.width;
    showTip(stop.words, point ? point.clientX : frame.left + stop.x * ratio, point ? point.clientY : frame.top + stop.y * ratio);
  }

  // The place of a pointer, in the units of the drawing.
  place(event) {
    const frame = this.svg.getBoundingClientRect();
    const ratio = this.svg.viewBox.baseVal.width / frame.width;
    return [(event.clientX - frame.left) * ratio, (event.clientY - frame.top) * ratio];
  }

  listen() {
    let from = null, band = null;
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.stops.length) return;
      [from] = this.place(event);
      band = element("rect", { class: "zoom", y: this.plot.top, height: this.plot.bottom - this.plot.top });
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.stops.length) return;
      const [x, y] = this.place(event);
      this.visit(this.nearest(x, y), event);
      if (from === null || Math.abs(x - from) < 5) return;
      const ends = [from, x].map((end) => clamp(end, this.plot.left, this.plot.right)).sort((a, b) => a - b);
      band.setAttribute("x", ends[0]);
      band.setAttribute("width", ends[1] - ends[0]);
      this.svg.append(band);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const ends = [from, this.place(event)[0]].map((end) => clamp(end, this.plot.left, this.plot.right));
      from = null;
      band.remove();
      ends.sort((a, b) => a - b);
      if (ends[1] - ends[0] > 8) this.zoom(ends.map((end) => this.x.invert(end)));
    });
    canvas.addEventListener("pointercancel", () => { from = null; band?.remove(); });
    canvas.addEventListener("pointerleave", () => this.visit(null));
    canvas.addEventListener("dblclick", () => this.zoom(null));
    canvas.addEventListener("blur", () => this.visit(null));
    canvas.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const last = this.stops.length - 1;
    const now = this.stops.indexOf(this.at);
    const places = {
      ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now < 0 ? last : now - 1, ArrowUp: now < 0 ? last : now - 1,
      PageDown: now + 10, PageUp: now - 10, Home: 0, End: last,
    };
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in places && last >= 0) {
      this.visit(this.stops[clamp(places[event.key], 0, last)]);
      spoken.textContent = this.at.words;
    } else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
    else if (event.key === "-") this.zoomBy(2);
    else if (event.key === "0" || event.key === "Escape") this.zoom(null);
    else return;
    event.preventDefault();
  }

  nearest(x, y) {
    let best = null, least = Infinity;
    for (const stop of this.stops) {
      const away = stop.distance(x, y);
      if (away < least) [best, least] = [stop, away];
    }
    return best;
  }

  // A stop at a box: `words` when the cursor is on it.
  boxStop(x, y, width, height, words) {
    const { left, right } = this.plot;
    const [from, to] = [clamp(x, left, right), clamp(x + width, left, right)];
    return {
      x: (from + to) / 2, y: y + height, words,
      shape: () => element("rect", { x: from, y, width: to - from, height }),
      distance: (px, py) => Math.max(0, y - py, py - y - height) * 1e4 + Math.max(0, from - px, px - to),
    };
  }
}
