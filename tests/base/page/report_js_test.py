"""Runs the script of the pages with charts in node, with a uPlot and a canvas that only record what they are given.

python3 report_js_test.py REPORT_JS

Skips without node."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

# Imitates what the script uses of a browser and of uPlot. The frame of each chart is 231 pixels high, as in the lowest
# charts of a page.
BROWSER = r"""
const made = [], drawn = [], element = {clientWidth: 500}, size = text => ({width: 6.5 * text.length});
const ctx = new Proxy({}, {
  get: (t, name) => name === "measureText" ? size : name in t ? t[name] : (...args) => drawn.push([name, ...args]),
  set: (t, name, value) => { t[name] = value; return true; },
});
class uPlot {
  constructor(options) {
    const bbox = {left: 70, top: 20, width: 400, height: 231};
    Object.assign(this, {options, ctx, bbox, series: options.series});
    made.push(this);
  }
  valToPos(v, axis) {
    const [low, high] = this.options.scales[axis].range();
    return axis === "y" ? 20 + 231 * (high - v) / (high - low) : 70 + 400 * (v - low) / (high - low);
  }
  destroy() {}
}
uPlot.paths = {bars: () => null};
const addEventListener = () => {}, devicePixelRatio = 1, matchMedia = () => ({addEventListener});
const getComputedStyle = () => ({getPropertyValue: () => "#000"});
const document = {
  documentElement: {},
  getElementById: () => ({textContent: JSON.stringify(CHARTS)}),
  querySelectorAll: () => CHARTS.map((c, i) => ({...element, dataset: {chart: i}})),
};
"""

RUN = r"""
console.log(JSON.stringify(made.map((u, i) => {
  const axis = u.options.axes[1], labels = axis.values(u, CHARTS[i].splits ?? []);
  drawn.length = 0;
  u.options.hooks.draw.forEach(f => f(u));
  const all = name => drawn.filter(d => d[0] === name);
  return {labels, size: typeof axis.size === "function" ? axis.size(u, labels) : axis.size,
    range: u.options.scales.y.range(), boxes: all("fillRect"), texts: all("fillText")};
})));
"""


def chart(splits, y, low, high, rule=None):
    spec = {"kind": "lines", "xLabel": "step", "yLabel": "rate", "x": [1, 2], "xNames": [], "yMin": low, "yMax": high}
    series = [{"name": "s", "y": y, "low": [], "high": [], "dashed": False}]
    return spec | {"series": series, "splits": splits} | ({"rule": rule} if rule else {})


def main():
    node = shutil.which("node")
    if not node:
        print("SKIPPED: no node, which runs the script of the pages")
        return 77
    charts = [
        chart([4.5e-5, 5e-5, 5.5e-5], [4.5e-5, 5.5e-5], 4.4e-5, 5.6e-5),
        chart([0.00125, 0.0013], [0.00125, 0.0013], 0.0012, 0.0014),
        chart([-123456, 0], [-123456, 0], -130000, 6000),
        chart([0, 1], [0, 1], 0, 1, {"y": 0.95, "name": "floor 0.95", "below": True}),
        chart([0, 1], [0, 1], 0, 1, {"y": 0.6, "name": "floor 0.60", "below": False}),
    ]
    program = f"const CHARTS = {json.dumps(charts)};\n{BROWSER}\n{Path(sys.argv[1]).read_text()}\n{RUN}"
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        sys.exit(f"node: {done.stderr}")
    failed = []
    for given, seen in zip(charts, json.loads(done.stdout), strict=True):
        # Digits of 12 px system fonts are less than 7 px wide; the ticks take 10 px more.
        if seen["size"] < 10 + 6.7 * max(map(len, seen["labels"])):
            failed.append(f"labels {seen['labels']} do not fit on {seen['size']} px")
        if seen["range"] != [given["yMin"], given["yMax"]]:
            failed.append(f"the frame is {seen['range']}, the page says {given['yMin']} to {given['yMax']}")
        for _, left, top, width, height in seen["boxes"]:
            if not (70 <= left and left + width <= 470 and 20 <= top and top + height <= 251):
                failed.append(f"the label of the rule {given['rule']} leaves the frame: {seen['boxes']}")
        if len(seen["texts"]) != ("rule" in given):
            failed.append(f"labels of rules: {seen['texts']}")
    for line in failed:
        print("FAILED:", line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
