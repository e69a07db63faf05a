// The kinds of pictures: report/parts/ has their data.
class Plot extends Chart {
  get log() { return this.spec.x.log; }
  legend() {
    return this.spec.series.filter((one) => !one.dots)
      .map((one) => ({ label: one.label, look: this.look(one), line: true }));
  }
  get visible() { return this.spec.series.filter((one) => !this.hidden.has(one.label)); }
  look(one) { return lookOf(one.label, this.spec.series.indexOf(one)); }

  extent() {
    const series = this.visible.length ? this.visible : this.spec.series;
    const found = spanOf(series.flatMap((one) => one.x.filter((_, n) => this.usable(one, n))), this.log);
    return found && this.spec.x.zero ? [Math.min(0, found[0]), found[1]] : found;
  }

  usable(one, n) {
    return one.y[n] !== null && (!this.spec.y.log || one.y[n] > 0) && (!this.log || one.x[n] > 0);
  }

  within(one, n) {
    return this.usable(one, n) && one.x[n] >= this.domain[0] && one.x[n] <= this.domain[1];
  }

  paint(svg, width) {
    const { y: axis } = this.spec;
    const height = clamp(width * 0.5, 220, 340);
    const values = this.visible.flatMap((one) => one.y.filter((_, n) => this.within(one, n)));
    const [low, high] = spanOf(values, axis.log) ?? [axis.log ? 0.1 : 0, 1];
    const room = axis.log ? (high / low) ** 0.04 : (high - (axis.zero ? Math.min(0, low) : low)) * 0.04;
    const range = axis.log ? [low / room, high * room] : [axis.zero ? Math.min(0, low) : low - room, high + room];
    const ticks = ticksOf(range, height / 50, axis.log);
    const left = 10 + Math.max(...ticks.map((value) => textWidth(brief(value))), 14);
    this.plot = { left, right: width - 14, top: 24, bottom: height - 38 };
    const { right, top, bottom } = this.plot;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.append(text(axis.label, 0, 12, { class: "quiet" }));
    const y = scaleOf(range, [bottom, top], axis.log);
    for (const value of ticks) {
      svg.append(element("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: "grid" }));
      svg.append(text(brief(value), left - 6, y(value) + 4, { "text-anchor": "end", class: "quiet" }));
    }
    const whole = this.spec.series.every((one) => one.x.every(Number.isInteger));
    const inner = this.paintAxis(svg, this.spec.x.label, this.log, whole);
    for (const one of this.visible) inner.append(this.line(one, y));
    for (const mark of this.spec.marks) {
      const place = this.x(mark.x);
      inner.append(element("line", { x1: place, x2: place, y1: top, y2: bottom, class: "mark-line" }));
      const side = place > (left + right) / 2 ? "end" : "start";
      inner.append(text(mark.label, place + (side === "end" ? -5 : 5), top + 10, { "text-anchor": side }));
    }
    return this.stopsAt(y);
  }

  line(one, y) {
    const look = this.look(one);
    const group = element("g", { class: `s${look.colour}`, "data-series": one.label });
    const known = one.x.map((_, n) => this.usable(one, n));
    let path = "";
    one.x.forEach((value, n) => {
      if (!known[n]) return;
      const [px, py] = [this.x(value).toFixed(1), y(one.y[n]).toFixed(1)];
      path += `${n && known[n - 1] ? "L" : "M"}${px} ${py}`;
      if (one.dots || one.x.length <= 40) {
        group.append(element("circle", { cx: px, cy: py, r: one.dots ? 2 : 3, class: "dot" }));
      }
    });
    if (!one.dots) group.append(element("path", { d: path, class: "series", "stroke-dasharray": look.dash }));
    return group;
  }

  // A stop at each x of the visible lines, with the nearest value of each.
  stopsAt(y) {
    const lines = this.visible.filter((one) => !one.dots)
      .map((one) => ({ one, points: one.x.map((_, n) => n).filter((n) => this.within(one, n)).sort((a, b) => one.x[a] - one.x[b]) }))
      .filter(({ points }) => points.length);
    const places = [...new Set(lines.flatMap(({ one, points }) => points.map((n) => one.x[n])))].sort((a, b) => a - b);
    const next = lines.map(() => 0);
    const { label } = this.spec.x;
    return places.map((at) => {
      const found = lines.map(({ one, points }, number) => {
        const away = (place) => Math.abs(one.x[points[place]] - at);
        while (next[number] + 1 < points.length && away(next[number] + 1) <= away(next[number])) next[number] += 1;
        const n = points[next[number]];
        return { label: one.label, x: one.x[n], y: one.y[n] };
      });
      const line = (point) =>
        `${point.label}: ${exact(point.y)}${point.x === at ? "" : ` (at ${exact(point.x)})`}`;
      const { top, bottom } = this.plot;
      const px = this.x(at);
      return {
        x: px, y: y(found[0].y),
        get words() { return [`${label}: ${exact(at)}`, ...found.map(line)].join("\n"); },
        shape: () => {
          const dots = found.map((point) => element("circle", { cx: this.x(point.x), cy: y(point.y), r: 4 }));
          return element("g", {}, element("line", { x1: px, x2: px, y1: top, y2: bottom }), ...dots);
        },
        distance: (x) => Math.abs(x - px),
      };
    });
  }
}

class Bars extends Chart {
  legend() { return this.spec.series.map((one, n) => ({ label: one.label, look: lookOf(one.label, n), line: false })); }

  get visible() { return this.spec.series.filter((one) => !this.hidden.has(one.label)); }

  sums(n) { return this.visible.reduce((sum, one) => sum + (one.values[n] ?? 0), 0); }

  extent() {
    const ends = this.visible.flatMap((one) => [...one.values, ...one.low, ...one.high]);
    const sums = this.spec.stacked ? this.spec.categories.map((_, n) => this.sums(n)) : [];
    return ends.some((value) => value !== null) ? spanOf([0, ...ends, ...sums, this.spec.reference?.x ?? 0], false) : null;
  }

  paint(svg, width) {
    const { categories, stacked, reference } = this.spec;
    const longest = Math.max(...categories.map(textWidth));
    const beside = width >= 560;
    const left = beside ? Math.min(longest + 10, width * 0.4) : 8;
    const bars = stacked ? 1 : Math.max(this.visible.length, 1);
    const thick = stacked || bars === 1 ? 20 : 15;
    const group = bars * thick + (beside ? 10 : 26);
    const top = reference ? 20 : 6;
    const bottom = top + categories.length * group;
    this.plot = { left, right: width - 54, top, bottom }; // the bars' values are beside them
    svg.setAttribute("viewBox", `0 0 ${width} ${bottom + 38}`);
    const inner = this.paintAxis(svg, this.spec.axis, false);
    const stops = [];
    categories.forEach((category, n) => {
      const y = top + n * group + (beside ? 5 : 19);
      svg.append(beside
        ? text(category, left - 8, y + (bars * thick) / 2 + 4, { "text-anchor": "end" })
        : text(category, left + 4, y - 5));
      stops.push(...this.row(svg, inner, n, y, thick));
    });
    svg.append(element("line", { x1: this.x(0), x2: this.x(0), y1: top, y2: bottom, class: "axis" }));
    if (reference) {
      const place = this.x(reference.x);
      inner.append(element("line", { x1: place, x2: place, y1: top, y2: bottom, class: "mark-line" }));
      svg.append(text(reference.label, place, 13, { "text-anchor": "middle" }));
    }
    return stops;
  }

  row(svg, inner, n, top, thick) {
    const { categories, stacked } = this.spec;
    const stops = [];
    let from = 0;
    this.visible.forEach((one, index) => {
      const value = one.values[n];
      if (value === null) return;
      const y = stacked ? top : top + index * thick;
      const [start, end] = [this.x(from), this.x(stacked ? from + value : value)].sort((a, b) => a - b);
      const bar = element("g", { "data-series": one.label });
      // With one series the categories have their own looks, as in the other pictures.
      const look = this.spec.series.length > 1 ? lookOf(one.label, this.spec.series.indexOf(one)) : lookOf(categories[n], n);
      bar.append(...this.box(start, y, end - start, thick - 2, look, this.id));
      const [low, high] = [one.low[n] ?? null, one.high[n] ?? null];
      if (low !== null && high !== null) {
        const [a, b, middle] = [this.x(low), this.x(high), y + thick / 2 - 1];
        bar.append(element("path", { d: `M${a} ${middle}H${b}M${a} ${middle - 4}v8M${b} ${middle - 4}v8`, class: "error" }));
      }
      inner.append(bar);
      const last = !stacked || index === this.visible.length - 1;
      if (last) {
        const shown = stacked ? from + value : value;
        const place = Math.max(this.x(shown), this.x(high ?? shown)) + 5;
        if (place <= this.plot.right + 6) svg.append(text(exact(shown), place, y + thick / 2 + 3, { class: "halo" }));
      }
      const range = low === null ? "" : `, from ${exact(low)} to ${exact(high)}`;
      const name = this.spec.series.length > 1 ? `${categories[n]}, ${one.label}` : categories[n];
      stops.push(this.boxStop(start, y, end - start, thick - 2, `${name}: ${exact(value)}${range}`));
      if (stacked) from += value;
    });
    return stops;
  }
}

class Timeline extends Chart {
  legend() { return this.spec.kinds.map((label, n) => ({ label, look: lookAt(n), line: false })); }

  spans(row) { return row.spans.filter((span) => !this.hidden.has(this.spec.kinds[span.kind])); }

  extent() {
    const spans = this.spec.rows.flatMap((row) => row.spans);
    return spanOf(spans.flatMap((span) => [span.start, span.end]), false);
  }

  paint(svg, width) {
    const thick = 18;
    const left = 10 + Math.max(...this.spec.rows.map((row) => textWidth(row.label)));
    const heights = this.spec.rows.map((row) => (1 + Math.max(0, ...row.spans.map((span) => span.lane))) * thick + 8);
    const bottom = 4 + heights.reduce((sum, height) => sum + height, 0);
    this.plot = { left, right: width - 14, top: 4, bottom };
    svg.setAttribute("viewBox", `0 0 ${width} ${bottom + 38}`);
    const inner = this.paintAxis(svg, this.spec.axis, false);
    const stops = [];
    let top = 8;
    this.spec.rows.forEach((row, n) => {
      svg.append(text(row.label, 0, top + 12));
      for (const span of this.spans(row)) stops.push(...this.span(inner, row, span, top + span.lane * thick, thick - 3));
      top += heights[n];
    });
    return stops;
  }

  span(inner, row, span, y, height) {
    const kind = this.spec.kinds[span.kind];
    const [start, end] = [this.x(span.start), this.x(span.end)];
    if (end < this.plot.left || start > this.plot.right) return [];
    const bar = element("g", { "data-series": kind });
    bar.append(...this.box(start, y, end - start, height, lookAt(span.kind), this.id));
    if (end - start > textWidth(span.name) + 6) bar.append(text(span.name, start + 4, y + 11, { class: "halo" }));
    inner.append(bar);
    const words = `${row.label}, ${kind}: ${span.name}\n${exact(span.start)} to ${exact(span.end)} ms (${exact(span.end - span.start)} ms)`;
    return [this.boxStop(start, y, end - start, height, words)];
  }
}
