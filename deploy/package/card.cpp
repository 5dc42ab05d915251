#include "deploy/package/card.h"

#include <sstream>

#include "base/file.h"
#include "base/format.h"
#include "base/hub_cache.h"
#include "base/schema/gate_summary.h"

namespace specdec::deploy {

namespace {

constexpr size_t kMaxCardBytes = 4u << 20;

std::string with_interval(const Estimate& e) {
  return decimals(e.value) + " (" + decimals(e.ci.low) + " to " + decimals(e.ci.high) + ", " + std::to_string(e.n) +
         " requests)";
}

// Returns the target's repository on the hub: org/name for a directory "models--org--name/snapshots/…", "" for any
// other directory.
std::string hub_repository_of(const LaunchPlan& plan, const fs::path& target) {
  if (const auto hub = parse_hub_name(plan.target_reference)) return hub->repository();
  const std::string repository =
      fs::absolute(target).lexically_normal().parent_path().parent_path().filename().string();
  const size_t name = repository.find("--", 8);
  return repository.rfind("models--", 0) == 0 && name != std::string::npos
             ? repository.substr(8, name - 8) + "/" + repository.substr(name + 2)
             : "";
}

// Makes the text fit a table cell: replaces '|' and control characters by spaces.
std::string cell(std::string text) {
  for (char& c : text)
    if (c == '|' || static_cast<unsigned char>(c) < 0x20) c = ' ';
  return text;
}

}  // namespace

std::string card_licence(const std::string& readme) {
  std::istringstream lines(readme);
  std::string line, found;
  if (!std::getline(lines, line) || line.rfind("---", 0) != 0) return "";
  while (std::getline(lines, line) && line.rfind("---", 0) != 0) {
    if (line.ends_with('\r')) line.pop_back();
    for (const char* key : {"license:", "license_name:", "license_link:"})
      if (line.rfind(key, 0) == 0) found += line + "\n";
  }
  return found;
}

std::string model_card(const LaunchPlan& plan, const ValidationReport& report, const DraftBinding& binding,
                       const fs::path& target, const std::vector<DraftVariant>& variants) {
  const std::string readme =
      fs::exists(target / "README.md") ? read_file(target / "README.md", kMaxCardBytes, ErrorKind::kModel) : "";
  const std::string repository = hub_repository_of(plan, target), licence = card_licence(readme);
  std::string card = "---\n" + licence;
  if (!repository.empty())
    card += "base_model: " + repository + "\n" +
            // A pruned draft is a part of the target that was trained further; the hub calls this "finetune".
            (binding.kind.rfind("prune", 0) == 0 ? "base_model_relation: finetune\n" : "");
  card +=
      "library_name: transformers\npipeline_tag: text-generation\ntags:\n- speculative-decoding\n- draft-model\n- "
      "specdec\n---\n";
  const std::string fingerprint = "fingerprint `" + plan.target_id.substr(0, 12) + "`";
  const bool is_named = !repository.empty() || !is_placeholder_name(plan.name);
  card += "# Draft model of " + (is_named ? plan.name : "the model with " + fingerprint) +
          "\n\nIt drafts for one target in speculative decoding; the target verifies every token, so the text is the "
          "target's. By itself it is a\n"
          "weak language model. With another target it is refused (`specdec.json`), or accepted less.\n\n| | "
          "|\n|---|---|\n";
  const auto row = [&card](const std::string& name, const std::string& value) {
    card += "| " + name + " | " + cell(value) + " |\n";
  };
  row("target", (is_named ? (repository.empty() ? plan.name : repository) + ", " : "") + fingerprint);
  row("kind, loss", binding.kind + (binding.loss.empty() ? "" : ", " + binding.loss));
  row("verdict of the gate", gate_brief(report, "manifest.json of the package"));
  row("acceptance, Σ min(p, q)", with_interval(report.alpha) + " at temperature " + format("%g", report.temperature));
  row("greedy agreement", decimals(report.greedy_agreement));
  row("rolled out, K " + std::to_string(report.rollout.k),
      "acceptance length " + decimals(report.rollout.counts.length(), 2));
  if (report.has_speed)
    row("speed-up at batch 1, K " + std::to_string(report.best_k),
        with_interval(report.speedup) + " on " + report.device + ", " + report.dtype);
  for (const SegmentFigure& segment : report.segments) row("acceptance: " + segment.name, with_interval(segment.alpha));
  for (const DraftVariant& variant : variants)
    row("`../" + variant.directory() + "`",
        "weights differ by " + format("%.2g", 100 * variant.relative_error) + " % (rms); " +
            (variant.report.is_null()
                 ? "acceptance not measured"
                 : "acceptance " + with_interval(validation_report_from_json(variant.report, "").alpha)));
  if (licence.empty()) row("licence", "that of the target, whose files name none here");
  card += "\nMeasured by specdec " + report.tool_version + " on the data with digest `" +
          report.data_digest.substr(0, 12) + "`, K by batch:";
  card += " " + cell(schedule_line(plan.schedule)) + ".\n";
  card +=
      "\n## Serve it\n```sh\nspecdec serve PACKAGE        # or engines/vllm.sh, engines/sglang.sh, … of the "
      "package\n```\n";
  return card;
}

}  // namespace specdec::deploy
