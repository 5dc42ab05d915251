"use strict";
// Draws every element with data-chart from the JSON block "charts". Colours come from the style sheet, so that dark mode and
// print follow it. Texts of the JSON block reach the page only as text of a canvas or of a text node.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = v => v == null ? "–" : v !== 0 && Math.abs(v) < 0.01 ? v.toPrecision(2) : Math.abs(v) >= 100 ? v.toFixed(0) : Math.abs(v) >= 10 ? v.toFixed(1) : v.toFixed(3);
  const height = 300;
  const font = size => size + "px system-ui, sans-serif";
  const tones = { good: ["--good", "--good-back"], bad: ["--bad", "--bad-back"], open: ["--open", "--open-back"], plain: ["--s0", "--s0-back"] };
  // Times are shown in UTC, as in the tables.
  const utc = (seconds, from, to) => seconds == null ? "–" : new Date(seconds * 1000).toISOString().slice(from, to).replace("T", " ");
  const minute = seconds => utc(seconds, 0, 16);
  const inkOf = (series, i) => colour("--s" + (series.colour ?? i) % 6);
  let drawn = [];

  // Draws intervals as vertical lines with caps, and the labelled horizontal rule.
  const overlay = (spec, offsets) => u => {
    const ctx = u.ctx, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    spec.series.forEach((s, i) => {
      if (!s.low.length || !u.series[i + 1].show) return;
      ctx.strokeStyle = spec.kind === "bars" ? colour("--ink") : inkOf(s, i);
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath();
      spec.x.forEach((x, j) => {
        if (s.low[j] == null || s.high[j] == null) return;
        const px = u.valToPos(x, "x", true) + offsets(i) * ratio, low = u.valToPos(s.low[j], "y", true), high = u.valToPos(s.high[j], "y", true), cap = 4 * ratio;
        ctx.moveTo(px, low); ctx.lineTo(px, high);
        ctx.moveTo(px - cap, low); ctx.lineTo(px + cap, low);
        ctx.moveTo(px - cap, high); ctx.lineTo(px + cap, high);
      });
      ctx.stroke();
    });
    (spec.marks ?? []).forEach(mark => {
      const x = u.valToPos(mark.from, "x", true);
      ctx.strokeStyle = colour(tones[mark.tone][0]);
      ctx.lineWidth = ratio;
      ctx.setLineDash([2 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, u.bbox.top);
      ctx.lineTo(x, u.bbox.top + u.bbox.height);
      ctx.stroke();
    });
    if (spec.rule) {
      const y = u.valToPos(spec.rule.y, "y", true);
      ctx.strokeStyle = ctx.fillStyle = colour("--soft");
      ctx.lineWidth = ratio;
      ctx.setLineDash([5 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(u.bbox.left, y);
      ctx.lineTo(u.bbox.left + u.bbox.width, y);
      ctx.stroke();
      ctx.font = font(11.5 * ratio);
      const wide = ctx.measureText(spec.rule.name).width, left = u.bbox.left + u.bbox.width - wide - 6 * ratio;
      const top = y + (spec.rule.below ? 2 : -17) * ratio;
      ctx.fillStyle = colour("--card");
      ctx.fillRect(left - 3 * ratio, top, wide + 6 * ratio, 15 * ratio);
      ctx.fillStyle = colour("--soft");
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      ctx.fillText(spec.rule.name, left, top + 12 * ratio);
    }
    ctx.restore();
  };

  // Draws each stretch of a lane as a bar with its name, if the name fits, and each moment as a diamond.
  const lanes = spec => u => {
    const ctx = u.ctx, ratio = devicePixelRatio || 1, half = 10 * ratio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left - half, u.bbox.top, u.bbox.width + 2 * half, u.bbox.height);
    ctx.clip();
    ctx.font = font(11.5 * ratio);
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.lineWidth = ratio;
    spec.lanes.forEach((lane, i) => lane.stretches.forEach(stretch => {
      const y = u.valToPos(i, "y", true), left = u.valToPos(stretch.from, "x", true), right = u.valToPos(stretch.to, "x", true);
      const [ink, back] = tones[stretch.tone].map(colour);
      ctx.beginPath();
      if (stretch.from === stretch.to) {
        const r = half * 0.6;
        ctx.moveTo(left, y - r); ctx.lineTo(left + r, y); ctx.lineTo(left, y + r); ctx.lineTo(left - r, y);
        ctx.closePath();
        ctx.fillStyle = ink;
        ctx.fill();
        return;
      }
      ctx.rect(left, y - half, Math.max(right - left, 2 * ratio), 2 * half);
      ctx.fillStyle = back;
      ctx.strokeStyle = ink;
      ctx.fill();
      ctx.stroke();
      if (ctx.measureText(stretch.name).width + 8 * ratio > right - left) return;
      ctx.fillStyle = ink;
      ctx.fillText(stretch.name, left + 4 * ratio, y + 0.5 * ratio);
    }));
    ctx.restore();
  };
  // Returns what the lanes show at a time. A moment counts within `near` seconds.
  const saidAt = (spec, time, near) => minute(time) + " UTC" + spec.lanes.map(lane => {
    const there = lane.stretches.filter(s => s.from === s.to ? Math.abs(s.from - time) <= near : s.from - near / 2 <= time && time < s.to + near / 2);
    return there.length ? " · " + lane.name + ": " + there.map(s => s.name).join(", ") : "";
  }).join("");

  const axisStyle = () => ({ stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 }, font: font(12), labelFont: font(12) });
  const tick = v => v == null ? "" : v !== 0 && Math.abs(v) < 1e-3 ? String(Number(v.toPrecision(3)).toExponential()) : String(+v.toPrecision(6));
  // The space of a y axis: its widest label, 10 px to the frame, and at least as much as most charts need.
  const sideOf = (u, labels) => Math.max(50, 10 + 7 * Math.max(0, ...(labels ?? []).map(label => label.length)));
  const tzDate = seconds => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC");
  // The axes of all time charts begin at the same place, so that a time stands below itself.
  const timeAxis = () => ({ ...axisStyle(), size: 30, space: 92, values: (u, splits, i, space, step) => splits.map(v => step >= 86400 ? utc(v, 0, 10) : utc(v, 5, 16)) });
  const timeSpan = spec => [spec.xMin ?? spec.x[0], spec.xMax ?? spec.x[spec.x.length - 1]];
  const timeSide = 76;

  const drawLanes = (element, spec) => {
    const count = spec.lanes.length, said = document.createElement("p");
    const hint = "Point at the chart to see what was when.";
    said.className = "said";
    said.textContent = hint;
    const u = new uPlot({
      width: element.clientWidth, height: count * 30 + 40, tzDate,
      legend: { show: false },
      cursor: { points: { show: false }, drag: { x: false, y: false }, y: false, sync: { key: "time" } },
      scales: { x: { time: true, range: () => timeSpan(spec) }, y: { dir: -1, range: () => [-0.5, count - 0.5] } },
      axes: [timeAxis(), { ...axisStyle(), grid: { show: false }, ticks: { show: false }, size: timeSide, splits: () => spec.lanes.map((lane, i) => i), values: () => spec.lanes.map(lane => lane.name) }],
      series: [{}, { show: true, paths: () => null, points: { show: false } }],
      hooks: {
        draw: [lanes(spec)],
        setCursor: [u => {
          const [from, to] = timeSpan(spec), at = u.cursor.left;
          said.textContent = at == null || at < 0 ? hint : saidAt(spec, u.posToVal(at, "x"), (to - from) / u.over.clientWidth * 5);
        }],
      },
    }, [timeSpan(spec), [null, null]], element);
    element.appendChild(said);
    return { destroy: () => { u.destroy(); said.remove(); } };
  };

  const draw = (element, spec) => {
    if (spec.kind === "lanes") return drawLanes(element, spec);
    const bars = spec.kind === "bars", width = element.clientWidth, named = spec.xNames.length > 0;
    const edge = bars ? (spec.x.length > 1 ? (spec.x[1] - spec.x[0]) * 0.6 : 0.6) : (spec.x.length > 1 ? (spec.x[spec.x.length - 1] - spec.x[0]) * 0.04 : 0.5);
    const range = [spec.yMin, spec.yMax], name = v => spec.xNames[spec.x.indexOf(v)] ?? "";
    const axis = axisStyle();
    // Each point has a label of its own if they all are whole numbers and far enough apart.
    const gaps = spec.x.slice(1).map((x, i) => x - spec.x[i]), extent = spec.x[spec.x.length - 1] - spec.x[0];
    const integers = spec.x.every(Number.isInteger) && gaps.every(gap => gap / extent * (width - 70) >= 7 * (2 + String(spec.x[spec.x.length - 1]).length));
    const short = text => text.length > 16 ? text.slice(0, 15) + "…" : text;
    // Names that would overlap are rotated.
    const slant = named && spec.xNames.reduce((n, t) => n + short(t).length + 3, 0) * 7 > width - 70;
    const whiskers = spec.series.map((s, i) => i).filter(i => spec.series[i].low.some(v => v != null));
    const options = {
      width, height, tzDate,
      legend: { show: spec.series.length > 1 || !bars },
      cursor: { points: { show: !bars }, drag: { x: false, y: false }, sync: spec.time ? { key: "time" } : undefined },
      scales: { x: spec.time ? { time: true, range: () => timeSpan(spec) } : { time: false, range: () => [spec.x[0] - edge, spec.x[spec.x.length - 1] + edge] }, y: { range: () => range } },
      axes: [
        spec.time ? timeAxis() : { ...axis, label: spec.xLabel, labelSize: 18, size: slant ? 74 : 34, rotate: slant ? -40 : 0,
          splits: named || integers ? () => spec.x : undefined, values: named ? (u, v) => v.map(x => short(name(x))) : undefined },
        { ...axis, label: spec.yLabel, labelSize: 18, size: spec.time ? timeSide - 18 : sideOf, values: (u, v) => v.map(tick) },
      ],
      series: [{ label: spec.xLabel || "x", value: (u, v) => v == null ? "" : spec.time ? minute(v) : named ? name(v) : String(v) }].concat(spec.series.map((s, i) => ({
        label: s.name,
        stroke: inkOf(s, i),
        fill: bars ? inkOf(s, i) + "99" : undefined,
        width: bars ? 1 : 2,
        dash: s.dashed ? [6, 4] : undefined,
        paths: bars ? uPlot.paths.bars({ size: [0.7, 80] }) : undefined,
        points: { show: !bars && spec.x.length <= 64, size: 7, fill: colour("--card") },
        spanGaps: true,
        value: (u, v, si, j) => j == null ? "" : number(v) + (s.low.length && s.low[j] != null ? " [" + number(s.low[j]) + ", " + number(s.high[j]) + "]" : ""),
      }))),
      // Whiskers of several curves are drawn side by side.
      hooks: { draw: [overlay(spec, i => (whiskers.indexOf(i) - (whiskers.length - 1) / 2) * 5)] },
    };
    return new uPlot(options, [spec.x].concat(spec.series.map(s => s.y)), element);
  };

  const redraw = () => {
    drawn.forEach(u => u.destroy());
    drawn = [];
    document.querySelectorAll("[data-chart]").forEach(element => drawn.push(draw(element, charts[Number(element.dataset.chart)])));
  };
  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(redraw, 120); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  matchMedia("print").addEventListener("change", redraw);
  redraw();
})();
