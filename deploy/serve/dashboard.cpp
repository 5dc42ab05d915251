// GET /dashboard: one self-contained page that polls /metrics and draws; nothing is loaded from elsewhere.
#include "deploy/serve/api.h"

namespace specdec::deploy {

namespace {

constexpr char kPage[] = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>specdec</title>
<style>
:root{color-scheme:light dark;--line:#8884;--a:#2563eb;--b:#d97706;--soft:#727987}
body{font:15px/1.45 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.25rem;margin:0}h2{font-size:1rem;margin:0 0 .5rem;font-weight:600}
#info,#age{color:var(--soft);font-size:.85rem;overflow-wrap:anywhere}
#tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.75rem;margin:1.25rem 0}
.tile,section{border:1px solid var(--line);border-radius:.5rem;padding:.75rem 1rem}
.tile b{display:block;font-size:1.5rem;font-variant-numeric:tabular-nums}.tile span{color:var(--soft);font-size:.85rem}
section{margin-bottom:1rem}svg{width:100%;height:9rem;display:block}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}td,th{text-align:right;padding:.2rem .5rem;border-bottom:1px solid var(--line);font-weight:400}
th{color:var(--soft);font-size:.85rem}.bar{background:var(--a);height:.6rem;border-radius:.2rem;min-width:1px}td.wide{width:40%}
</style></head><body>
<h1>specdec</h1><div id="info"></div><div id="age">waiting for the first figures</div>
<div id="tiles"></div>
<section><h2>Acceptance by position</h2><table><thead><tr><th>position</th><th>steps that reached it</th><th>accepted / reached</th><th>overlap</th><th></th></tr></thead><tbody id="positions"></tbody></table></section>
<section><h2>Tokens a second</h2><svg id="speed" viewBox="0 0 600 120" preserveAspectRatio="none" role="img" aria-label="tokens a second over time"></svg></section>
<section><h2>Acceptance, accepted / drafted</h2><svg id="acceptance" viewBox="0 0 600 120" preserveAspectRatio="none" role="img" aria-label="acceptance over time"></svg></section>
<script>
"use strict";
const P = "specdec:", D = P + "spec_decode_", KEEP = 300;
const history = [];
let last = null;
const $ = id => document.getElementById(id);
function parse(text) {
  const series = new Map();
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const m = /^([^{ ]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!m) continue;
    const labels = {};
    for (const l of (m[2] || "").matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)) labels[l[1]] = l[2];
    if (!series.has(m[1])) series.set(m[1], []);
    series.get(m[1]).push({labels, value: Number(m[3])});
  }
  return series;
}
const one = (s, name) => (s.get(name) || [{value: 0}])[0].value;
const at = (s, name) => { const out = []; for (const x of s.get(name) || []) out[Number(x.labels.position)] = x.value; return out; };
const number = (x, digits) => Number.isFinite(x) ? x.toFixed(digits) : "–";
function cell(row, text) { const td = document.createElement("td"); td.textContent = text; row.appendChild(td); return td; }
function tiles(list) {
  $("tiles").replaceChildren(...list.map(([label, value]) => {
    const tile = document.createElement("div"), b = document.createElement("b"), span = document.createElement("span");
    tile.className = "tile"; b.textContent = value; span.textContent = label; tile.append(b, span); return tile;
  }));
}
function positions(s) {
  const reached = at(s, D + "num_reached_tokens_per_pos_total"), accepted = at(s, D + "num_accepted_tokens_per_pos_total");
  const overlap = at(s, D + "overlap_sum_per_pos_total");
  $("positions").replaceChildren(...reached.map((n, i) => {
    const row = document.createElement("tr"), share = (accepted[i] || 0) / n;
    cell(row, i); cell(row, n); cell(row, number(share, 3)); cell(row, number((overlap[i] || 0) / n, 3));
    const wide = cell(row, ""), bar = document.createElement("div");
    wide.className = "wide"; bar.className = "bar"; bar.style.width = 100 * (n ? share : 0) + "%"; wide.appendChild(bar);
    return row;
  }));
}
function chart(id, key, colour, top) {
  const points = history.filter(h => Number.isFinite(h[key]));
  const high = top || Math.max(1e-9, ...points.map(h => h[key]));
  const ns = "http://www.w3.org/2000/svg", line = document.createElementNS(ns, "polyline");
  line.setAttribute("points", points.map((h, i) => (600 * i / Math.max(1, KEEP - 1)).toFixed(1) + "," + (116 - 112 * h[key] / high).toFixed(1)).join(" "));
  line.setAttribute("fill", "none"); line.setAttribute("stroke", colour); line.setAttribute("stroke-width", "2");
  line.setAttribute("vector-effect", "non-scaling-stroke");
  $(id).replaceChildren(line);
}
async function poll() {
  try {
    const reply = await fetch("/metrics", {cache: "no-store"});
    if (!reply.ok) throw new Error(reply.status);
    const s = parse(await reply.text()), now = performance.now() / 1000;
    const info = (s.get(P + "info") || [{labels: {}}])[0].labels;
    $("info").textContent = ["target", "draft", "package"].filter(k => info[k]).map(k => k + " " + info[k].slice(0, 12)).join(" · ");
    const cur = {now, tokens: one(s, P + "generation_tokens_total"), drafted: one(s, D + "num_draft_tokens_total"),
                 accepted: one(s, D + "num_accepted_tokens_total"), steps: one(s, D + "num_drafts_total")};
    if (last && cur.tokens >= last.tokens) {
      history.push({speed: (cur.tokens - last.tokens) / (now - last.now),
                    acceptance: cur.drafted > last.drafted ? (cur.accepted - last.accepted) / (cur.drafted - last.drafted) : NaN});
      if (history.length > KEEP) history.shift();
    }
    last = cur;
    const newest = history[history.length - 1] || {};
    tiles([["tokens a second", number(newest.speed, 1)], ["acceptance length", number(1 + cur.accepted / cur.steps, 2)],
           ["accepted / drafted", number(cur.accepted / cur.drafted, 3)], ["K", number(one(s, D + "k"), 1)],
           ["running", one(s, P + "num_requests_running")], ["waiting", one(s, P + "num_requests_waiting")],
           ["connections", one(s, P + "connections")]]);
    positions(s); chart("speed", "speed", "var(--a)"); chart("acceptance", "acceptance", "var(--b)", 1);
    $("age").textContent = "updated " + new Date().toLocaleTimeString();
  } catch (error) { $("age").textContent = "no figures: " + error.message; }
  setTimeout(poll, 1000);
}
poll();
</script></body></html>
)html";

}  // namespace

const char* dashboard_html() { return kPage; }

}  // namespace specdec::deploy
