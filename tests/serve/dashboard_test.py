"""Runs the dashboard's script in node on snapshots of /metrics. A few lines of JavaScript replace the browser.

python3 dashboard_test.py DASHBOARD_HTML

Skips without node."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

# A minimal replacement of the browser: the elements that the script creates, and a clock that the test advances.
BROWSER = r"""
class Node {
  constructor(tag) { Object.assign(this, {tag, attributes: {}, children: [], style: {}, clientWidth: 380}); }
  append(...children) { this.children.push(...children); }
  replaceChildren(...children) { this.children = children; }
  setAttribute(name, value) { this.attributes[name] = value; }
  set textContent(text) { this.children = [text]; }
  set className(name) { this.attributes.class = name; }
  get textContent() { return this.children.map(c => c instanceof Node ? c.textContent : String(c)).join(" "); }
  all() { return this.children.filter(c => c instanceof Node).flatMap(c => [c, ...c.all()]); }
  querySelectorAll(tag) { return this.all().filter(e => e.tag === tag); }
  querySelector(name) { return this.all().find(e => "." + e.attributes.class === name); }
}
const elements = {}, waiting = [];
let seconds = 1000, metrics = "";
Date.now = () => 1000 * seconds;
Object.assign(globalThis, {Node, addEventListener() {}, setTimeout: f => waiting.push(f), clearTimeout() {},
  fetch: async () => ({ok: true, text: async () => metrics}),
  document: {createElement: tag => new Node(tag), createElementNS: (space, tag) => new Node(tag),
    getElementById: id => elements[id] ??= new Node(id)}});
const settle = () => new Promise(resolve => setImmediate(resolve));
const said = c => (c instanceof Node ? c.textContent : String(c)).replace(/ +/g, " ").trim();
const texts = id => (elements[id]?.children ?? []).map(said);
"""

# Runs the dashboard's script on each snapshot in PAGES, one second apart, and prints what the page shows each time.
RUN = r"""
(async () => {
  const views = [];
  for (const page of PAGES) {
    metrics = page;
    ++seconds;
    if (views.length) waiting.shift()(); else start();
    for (let i = 0; i < 5; ++i) await settle();
    const [since, age] = ["since", "age"].map(id => texts(id).join(""));
    views.push({tiles: texts("tiles"), cards: texts("cards"), since, age});
  }
  console.log(JSON.stringify(views));
})();
"""

failures = 0


def expect(is_true, what):
    global failures
    if not is_true:
        failures += 1
        print("FAILED:", what)


def metrics(steps):
    """Returns /metrics of a server after `steps` steps, each with two drafted tokens, one of which was accepted."""
    lines = [
        f"specdec:steps_total {steps}",
        f"specdec:generation_tokens_total {2 * steps}",
        f"specdec:spec_decode_num_drafts_total {steps}",
        f"specdec:spec_decode_num_draft_tokens_total {2 * steps}",
        f"specdec:spec_decode_num_accepted_tokens_total {steps}",
        f'specdec:spec_decode_num_reached_tokens_per_pos_total{{position="0"}} {steps}',
        f'specdec:spec_decode_num_accepted_tokens_per_pos_total{{position="0"}} {steps}',
        f'specdec:spec_decode_overlap_sum_per_pos_total{{position="0"}} {0.75 * steps}',
    ]
    for bound, share in (("0.1", 0.5), ("0.2", 1), ("+Inf", 1)):
        lines.append(f'specdec:time_to_first_token_seconds_bucket{{le="{bound}"}} {int(share * steps)}')
    return "\n".join(lines) + "\n"


def shown(node, script, pages):
    program = f"const PAGES = {json.dumps(pages)};\n{BROWSER}\nfunction start() {{\n{script}\n}}\n{RUN}"
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        sys.exit(f"node: {done.stderr}")
    return json.loads(done.stdout)


def main():
    node = shutil.which("node")
    if not node:
        print("SKIPPED: no node, which runs the dashboard's script")
        return 77
    script = re.search(r"<script>(.*?)</script>", Path(sys.argv[1]).read_text(), re.S)[1]

    # A page that is opened after all answers shows totals, and keeps showing them while no step is made.
    for view in shown(node, script, [metrics(60)] * 4):
        expect(view["age"].startswith("live"), view["age"])
        expect(view["since"] == "totals since the server's start", view["since"])
        expect(view["tiles"][0].endswith("120 tokens in all"), view["tiles"][0])
        expect(view["tiles"][2] == "acceptance 75.0 % 2.00 tokens per step", view["tiles"][2])
        expect("nothing drafted" not in str(view["tiles"]), view["tiles"])
        expect(view["tiles"][5].startswith("first token 100 ms"), view["tiles"][5])
        card = next(c for c in view["cards"] if c.startswith("Acceptance by position"))
        expect("overlap accepted" in card and "collecting" not in card and "nothing" not in card, card)

    # Once steps are made again, the figures are those of the chosen time span.
    views = shown(node, script, [metrics(60), metrics(64), metrics(68), metrics(72)])
    expect(views[0]["since"] != "" and views[-1]["since"] == "", [v["since"] for v in views])
    expect(views[-1]["tiles"][0] == "tokens per second 8 4 steps/s", views[-1]["tiles"][0])

    # Before the first answer the page shows no totals.
    view = shown(node, script, [metrics(0)])[0]
    expect(view["since"] == "" and "nothing drafted" in view["tiles"][2], view)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
