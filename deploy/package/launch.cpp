#include "deploy/package/launch.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/schema/gate_summary.h"

namespace specdec::deploy {

namespace {

std::string own_dtype(const LaunchPlan& plan) {
  return plan.checkpoint_dtype.empty() ? plan.dtype : plan.checkpoint_dtype;
}

std::string engine_dtype(const LaunchPlan& plan) {
  const std::string dtype = own_dtype(plan);
  if (dtype == "fp32") return "float32";
  if (dtype == "bf16") return "bfloat16";
  if (dtype == "fp16") return "float16";
  return "auto";
}

std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// Returns the schedule's batch-size ranges in the form that engines take: neighbouring ranges with the same K are
// merged.
ScheduleRanges engine_ranges(const LaunchPlan& plan) {
  ScheduleRanges ranges;
  for (const auto& range : ranges_of(plan.schedule))
    if (!ranges.empty() && ranges.back()[2] == range[2])
      ranges.back()[1] = range[1];
    else
      ranges.push_back(range);
  return ranges;
}

bool starts_plain(const LaunchPlan& plan) {
  return plan.verdict != Verdict::kPass && plan.tried_k > 0 && plan.obstacle.empty();
}
// Returns the plan that would result if the gate had passed with the K that it tried. Launch files without drafting use
// this plan in a comment that says how to draft anyway.
LaunchPlan forced(LaunchPlan plan) {
  plan.schedule = {{1, 256, plan.tried_k}};
  plan.verdict = Verdict::kPass;
  return plan;
}

// Returns the gate's result for this pair as comment lines. `how` is one line that says what to change in order to
// draft although the gate did not pass.
std::string gate_comment(const LaunchPlan& plan, const std::string& how) {
  std::string text = plan.gate.empty() ? "" : "# Gate: " + plan.gate + "\n";
  text += "# Schedule: " + schedule_line(plan.schedule) + "\n";
  if (!plan.obstacle.empty()) text += "# " + plan.obstacle + ", so this starts without the draft.\n";
  if (starts_plain(plan))
    text += "# The gate did not pass, so this starts without the draft. To draft nevertheless, " + how + "\n";
  return text;
}

std::string script_head(const LaunchPlan& plan, const std::string& engine, const std::string& example,
                        const std::string& how) {
  return "#!/usr/bin/env bash\n# Serves this package with " + engine + ". Arguments are handed on: " + example + "\n" +
         gate_comment(plan, how) +
         "set -euo pipefail\npackage=$(cd \"$(dirname \"${BASH_SOURCE[0]}\")/..\" && pwd)\ntarget=" +
         (plan.target_reference.empty() ? "$package/target" : shell_quoted(plan.target_reference)) + "\n";
}

// The name of a kind of draft in each engine's settings.
struct KindInEngines {
  DraftKind kind;
  bool is_head;  // the draft is an EAGLE-3 head
  const char *vllm, *sglang, *tensorrt_llm, *tensorrt_llm_1_2, *llama_cpp;
};
constexpr KindInEngines kInEngines[] = {
    {DraftKind::kModel, false, "draft_model", "STANDALONE", "Draft_Target", "DraftTarget", "draft-simple"},
    {DraftKind::kEagle3, true, "eagle3", "EAGLE3", "Eagle3", "Eagle", "draft-eagle3"},
};
const KindInEngines& in_engines(const LaunchPlan& plan) {
  const auto* const found = std::ranges::find(kInEngines, plan.kind, &KindInEngines::kind);
  if (found == std::end(kInEngines))
    throw Error(ErrorKind::kModel, std::string("no launch file is written for ") + name_of(plan.kind));
  return *found;
}

// Returns script lines that set the variable `draft` to the directory of the validated draft, or of the quantised
// variant that the environment variable DRAFT names.
std::string choose_draft(const LaunchPlan& plan) {
  if (plan.variants.empty()) return "draft=$package/draft\n";
  std::string formats, cases;
  for (const std::string& format : plan.variants)
    formats += (formats.empty() ? "" : " or ") + format, cases += "|" + format;
  return "case ${DRAFT:-} in  # DRAFT=" + plan.variants[0] +
         ": a smaller, less exact draft\n  '') draft=$package/draft ;;\n  " + cases.substr(1) +
         ") draft=$package/draft-$DRAFT ;;\n  *) echo \"DRAFT=$DRAFT: expected " + formats +
         "\" >&2; exit 2 ;;\nesac\n";
}

// Returns vLLM's --speculative-config. vLLM requires that the first range starts at batch size 1 and that every K is at
// most num_speculative_tokens. For batches beyond the last range, vLLM uses the last K.
Json vllm_config(const LaunchPlan& plan, const std::string& draft) {
  Json config = {{"method", in_engines(plan).vllm},
                 {"model", draft},
                 {"num_speculative_tokens", plan.max_k()},
                 {"draft_sample_method", plan.greedy ? "greedy" : "probabilistic"},
                 {"rejection_sample_method", plan.verify == "block" ? "block" : "standard"}};
  if (const auto ranges = engine_ranges(plan); ranges.size() > 1)
    config["num_speculative_tokens_per_batch_size"] = ranges;
  return config;
}

// Returns the advice "add --speculative-config '…'". The same words suit a script, which passes its arguments on to
// vLLM, and a manifest, which lists vLLM's arguments.
std::string vllm_how(const LaunchPlan& plan, const std::string& draft) {
  return "add --speculative-config " + shell_quoted(canonical_json(vllm_config(forced(plan), draft)));
}

std::string vllm(const LaunchPlan& plan) {
  std::string text = script_head(plan, "vLLM", "engines/vllm.sh --port 8000", vllm_how(plan, "PACKAGE/draft"));
  std::string speculation;
  if (plan.max_k() > 0) {
    // The script inserts the package's path into JSON, so it escapes quotes and backslashes in the path.
    text += choose_draft(plan) + "draft=$(printf '%s' \"$draft\" | sed 's/[\\\\\"]/\\\\&/g')\n";
    std::string config = canonical_json(vllm_config(plan, "DRAFT")), escaped;
    for (char c : config) escaped += c == '"' ? std::string("\\\"") : std::string(1, c);
    escaped.replace(escaped.find("DRAFT"), 5, "$draft");
    speculation = " \\\n  --speculative-config \"" + escaped + "\"";
  }
  return text + "exec vllm serve \"$target\" --served-model-name " + shell_quoted(plan.name) + " --dtype " +
         engine_dtype(plan) + speculation + " \"$@\"\n";
}

bool has_sglang_schedule(const LaunchPlan& plan) {
  return in_engines(plan).is_head && plan.max_k() > 0 && engine_ranges(plan).size() > 1;
}

// Returns SGLang's flags for speculation.
// - With a top-k of 1, the number of draft tokens is the number of steps plus one.
// - Only EAGLE heads get block verification and a K per batch size. With a separate draft model (STANDALONE), SGLang
//   0.5.23 refuses to start with block verification and ignores the K per batch size.
// - A head with a reduced vocabulary gets SGLang's default verification, which is exact. Block verification needs
//   rejection sampling, which SGLang refuses for such a head.
std::string sglang_flags(const LaunchPlan& plan, const std::string& draft) {
  std::string text =
      std::string("--speculative-algorithm ") + in_engines(plan).sglang + " --speculative-draft-model-path " + draft;
  text += " --speculative-num-steps " + std::to_string(plan.max_k()) +
          " --speculative-eagle-topk 1 --speculative-num-draft-tokens " + std::to_string(plan.max_k() + 1);
  const bool samples = in_engines(plan).is_head && !plan.head.reduced_vocabulary;
  if (samples && !plan.greedy) text += " --speculative-use-rejection-sampling";
  if (samples && plan.verify == "block") text += " --speculative-use-block-verification";
  return text;
}

std::string sglang(const LaunchPlan& plan) {
  std::string text = script_head(plan, "SGLang", "engines/sglang.sh --port 30000",
                                 "add " + sglang_flags(forced(plan), "PACKAGE/draft"));
  if (plan.max_k() > 0) text += choose_draft(plan);
  text += "exec python -m sglang.launch_server --model-path \"$target\" --served-model-name " +
          shell_quoted(plan.name) + " --dtype " + engine_dtype(plan) + " --enable-metrics";
  if (plan.max_k() > 0) text += " \\\n  " + sglang_flags(plan, "\"$draft\"");
  if (has_sglang_schedule(plan))
    text += " \\\n  --speculative-adaptive --speculative-adaptive-config \"$package/engines/sglang-schedule.json\"";
  return text + " \"$@\"\n";
}

// Returns the file for --speculative-adaptive-config. Each key is the batch size from which its entry applies. An entry
// with a single candidate fixes K.
std::string sglang_schedule(const LaunchPlan& plan) {
  Json root = Json::object();
  for (const auto& [low, high, k] : engine_ranges(plan))
    root[std::to_string(low)] = {{"candidate_steps", {k}}, {"warmup_batches", 0}};
  return root.dump(2) + "\n";
}

// Returns the speculation settings for TensorRT-LLM 1.2 or 1.3.
// - draft_len_schedule in 1.3: a key is the last batch size of a range; larger batches than the last key are not
//   drafted.
// - draft_len_schedule in 1.2: a key is the first batch size of a range; the last key's K applies to all larger
//   batches.
// - Both: the first entry must equal max_draft_len.
// - decoding_type: a union tag in 1.3, a class name in 1.2.
std::string tensorrt_llm_speculation(const LaunchPlan& plan, bool v1_2) {
  std::string text = in_engines(plan).is_head ? "" : "disable_overlap_scheduler: true\n";
  text += std::string("speculative_config:\n  decoding_type: ") +
          (v1_2 ? in_engines(plan).tensorrt_llm_1_2 : in_engines(plan).tensorrt_llm) +
          "\n  speculative_model: draft\n  max_draft_len: " + std::to_string(plan.max_k()) + "\n";
  // The head's config names the layer whose input is read; eagle3_layers_to_capture names the layer whose output is
  // read. The input of a layer is the output of the layer before it, so 1 is subtracted.
  if (in_engines(plan).is_head && !plan.head.taps.empty()) {
    std::string layers;
    for (const int64_t tap : plan.head.taps) layers += (layers.empty() ? "" : ", ") + std::to_string(tap - 1);
    text += "  eagle3_layers_to_capture: [" + layers + "]\n";
  }
  const ScheduleRanges ranges = engine_ranges(plan);
  if (ranges.size() == 1 || ranges[0][2] != plan.max_k()) return text;
  text += "  draft_len_schedule:\n";
  for (const auto& [low, high, k] : ranges)
    if (v1_2 || k > 0) text += "    " + std::to_string(v1_2 ? low : high) + ": " + std::to_string(k) + "\n";
  return text;
}

// Puts "# " before every line.
std::string commented(const std::string& lines) {
  std::string text;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    text += "# " + lines.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return text;
}

std::string tensorrt_llm(const LaunchPlan& plan, bool v1_2) {
  const std::string target = plan.target_reference.empty() ? "target" : plan.target_reference;
  std::string text =
      std::string("# TensorRT-LLM ") + (v1_2 ? "1.2" : "1.3") + ", from the package's directory: trtllm-serve " +
      shell_quoted(target) +
      (v1_2 ? " --extra_llm_api_options engines/tensorrt-llm-1.2.yaml" : " --config engines/tensorrt-llm.yaml") + "\n" +
      "# Its counters, which specdec monitor reads, are at http://HOST:8000/prometheus/metrics.\n" +
      gate_comment(plan, "remove the # before the last lines.") + "dtype: " + engine_dtype(plan) +
      "\nreturn_perf_metrics: true\n";
  if (plan.max_k() > 0) text += tensorrt_llm_speculation(plan, v1_2);
  if (starts_plain(plan)) text += commented(tensorrt_llm_speculation(forced(plan), v1_2));
  return text;
}

// Returns a comment line for a head whose config names the target layers that it reads: the line says which layers
// llama.cpp's converter must print. Older converters ignore the config and take the default layers.
std::string llama_cpp_taps(const LaunchPlan& plan) {
  if (!in_engines(plan).is_head || plan.head.taps.empty() || plan.max_k() == 0) return "";
  std::string taps;
  for (const int64_t layer : plan.head.taps) taps += (taps.empty() ? "" : ", ") + std::to_string(layer);
  return "# The converter must print target_layers = [" + taps + "] for the draft: older ones take other layers.\n";
}

// Returns the script's function that writes a model as GGUF, unless an earlier start has. Each start writes a file of
// its own name.
std::string llama_cpp_export(const LaunchPlan& plan) {
  return "gguf=${GGUF_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/specdec/gguf}/" + plan.target_id.substr(0, 12) + "-" +
         plan.draft_id.substr(0, 12) +
         "\nmkdir -p \"$gguf\"\nwrite() {\n  [ -e \"$gguf/$2.gguf\" ] && return\n"
         "  \"${SPECDEC:-specdec}\" export --gguf \"$gguf/$2.$$.gguf\" --type \"$3\" \"$1\" >&2\n"
         "  mv \"$gguf/$2.$$.gguf\" \"$gguf/$2.gguf\"\n}\n";
}

// Returns script lines that set `draft_gguf` to the EAGLE-3 head as GGUF. Only llama.cpp's converter writes heads, and
// it reads their target.
std::string llama_cpp_head(const LaunchPlan& plan) {
  const std::string own = own_dtype(plan), type = own == "bf16" ? "bf16" : own == "fp32" ? "f32" : "f16";
  return llama_cpp_taps(plan) +
         "# specdec does not write EAGLE-3 heads as GGUF. llama.cpp's converter does, and needs Python packages:\n"
         "# pip install -r \"$LLAMA_CPP/requirements.txt\"\n"
         "draft_type=${DRAFT_TYPE:-" +
         type +
         "}  # or q8_0\ndraft_gguf=$gguf/draft-$draft_type.gguf\nif [ ! -e \"$draft_gguf\" ]; then\n"
         "  python3 \"${LLAMA_CPP:?set LLAMA_CPP to a checkout of llama.cpp, for "
         "convert_hf_to_gguf.py}/convert_hf_to_gguf.py\" \"$package/draft\" \\\n"
         "    --outtype \"$draft_type\" --outfile \"$draft_gguf.$$.partial\" --target-model-dir \"$target\"\n"
         "  mv \"$draft_gguf.$$.partial\" \"$draft_gguf\"\nfi\n";
}

std::string llama_cpp(const LaunchPlan& plan) {
  const auto flags = [&](int k) {
    return std::string("--spec-type ") + in_engines(plan).llama_cpp + " --spec-draft-n-max " + std::to_string(k) +
           " --spec-draft-n-min 1 -ngld all";
  };
  const bool is_head = in_engines(plan).is_head, drafts = plan.max_k() > 0,
             has_draft = !plan.draft_gguf.empty() || (plan.has_gguf && !is_head),
             has_target = !plan.target_gguf.empty() || (plan.has_gguf && plan.target_reference.empty());
  // A reference may name the GGUF file itself.
  const std::string own_target = plan.target_gguf.empty()                   ? "$package/gguf/target.gguf"
                                 : plan.target_reference.ends_with(".gguf") ? "$target"
                                                                            : "$target/" + plan.target_gguf,
                    own_draft = plan.draft_gguf.empty() ? "gguf/draft.gguf" : "draft/" + plan.draft_gguf;
  const std::string how = has_draft ? "add -md PACKAGE/" + own_draft + " "
                          : is_head ? "convert PACKAGE/draft with convert_hf_to_gguf.py --target-model-dir TARGET and "
                                      "add -md FILE "
                                    : "run specdec export --gguf FILE PACKAGE/draft and add -md FILE ";
  std::string text =
      script_head(plan, "llama-server",
                  std::string(is_head && drafts ? "LLAMA_CPP=~/llama.cpp " : "") + "engines/llama.cpp.sh --port 8080",
                  how + flags(plan.tried_k));
  const bool writes_draft = drafts && !has_draft && !is_head;
  if (!has_target || (drafts && !has_draft)) text += llama_cpp_export(plan);
  text += "# TARGET_GGUF names a GGUF of this very target that is to be served instead, such as a quantised one.\n";
  text += has_target ? "target_gguf=${TARGET_GGUF:-" + own_target + "}\n"
                     : "[ -n \"${TARGET_GGUF:-}\" ] || write \"$target\" target auto\n"
                       "target_gguf=${TARGET_GGUF:-$gguf/target.gguf}\n";
  if (drafts && has_draft) text += "draft_gguf=$package/" + own_draft + "\n";
  if (drafts && is_head) text += llama_cpp_head(plan);
  if (writes_draft)
    text +=
        "draft_type=${DRAFT_TYPE:-auto}  # or q8_0, q4_0\n"
        "write \"$package/draft\" \"draft-$draft_type\" \"$draft_type\"\n"
        "draft_gguf=$gguf/draft-$draft_type.gguf\n";
  text += "exec llama-server -m \"$target_gguf\" --alias " + shell_quoted(plan.name) + " --metrics";
  if (drafts) text += " \\\n  -md \"$draft_gguf\" " + flags(plan.max_k());
  return text + " \"$@\"\n";
}

// Turns the text into a name as RFC 1123 demands it: at most 63 lower-case letters, digits and '-', with a letter or
// digit at both ends.
std::string kubernetes_name(const std::string& text) {
  std::string name;
  for (char c : text.substr(0, 63))
    name += std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(static_cast<unsigned char>(c)))
                                                        : '-';
  const size_t first = name.find_first_not_of('-');
  return first == std::string::npos ? "model" : name.substr(first, name.find_last_not_of('-') + 1 - first);
}

// Returns a YAML single-quoted scalar, because YAML reads an unquoted 1.5 or true as a number or boolean.
std::string yaml_quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

// Returns the KServe manifest. It passes the speculative config through VLLM_ADDITIONAL_ARGS, because
// spec.speculator.config holds only plain strings and numbers and so cannot hold a schedule.
std::string kserve(const LaunchPlan& plan) {
  std::string arguments = "--dtype " + engine_dtype(plan);
  if (plan.max_k() > 0)
    arguments += " --speculative-config '" + canonical_json(vllm_config(plan, "/mnt/package/draft")) + "'";
  return "# KServe with vLLM. Put the package into the claim specdec-packages under PACKAGE (its directory name) and "
         "replace both words.\n" +
         gate_comment(plan, vllm_how(plan, "/mnt/package/draft") + " to VLLM_ADDITIONAL_ARGS, every ' in it doubled.") +
         "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\nmetadata:\n  name: " +
         yaml_quoted(kubernetes_name(plan.name)) + "\nspec:\n  model:\n    name: " + yaml_quoted(plan.name) +
         "\n    uri: " +
         (plan.target_reference.empty() ? "pvc://specdec-packages/PACKAGE/target" : "pvc://specdec-packages/TARGET") +
         "\n  template:\n    containers:\n      - name: main\n        env:\n          - name: VLLM_ADDITIONAL_ARGS\n   "
         "         value: " +
         yaml_quoted(arguments) +
         "\n        volumeMounts:\n          - {name: package, mountPath: /mnt/package, subPath: PACKAGE, readOnly: "
         "true}\n    volumes:\n      - name: package\n"
         "        persistentVolumeClaim: {claimName: specdec-packages, readOnly: true}\n";
}

// Returns Helm values for the vLLM production stack (helm install NAME vllm/vllm-stack -f FILE). The package is in a
// persistent volume claim, as for KServe.
std::string helm(const LaunchPlan& plan) {
  std::string text =
      "# Helm values of vllm/vllm-stack. Put the package into the claim specdec-packages under PACKAGE (its directory "
      "name), replace that\n"
      "# word, and size the requests.\n" +
      gate_comment(plan, vllm_how(plan, "/mnt/package/draft") + " to extraArgs, as two entries.") +
      "servingEngineSpec:\n  modelSpec:\n    - name: " + yaml_quoted(kubernetes_name(plan.name)) +
      "\n      repository: vllm/vllm-openai\n      tag: v0.33.0\n      modelURL: " +
      yaml_quoted(plan.target_reference.empty() ? "/mnt/package/target" : plan.target_reference) +
      "\n      replicaCount: 1\n      requestCPU: 4\n      requestMemory: 32Gi\n      requestGPU: 1\n      "
      "vllmConfig:\n        dtype: " +
      engine_dtype(plan) + "\n        extraArgs:\n          - --served-model-name\n          - " +
      yaml_quoted(plan.name) + "\n";
  if (plan.max_k() > 0)
    text += "          - --speculative-config\n          - " +
            yaml_quoted(canonical_json(vllm_config(plan, "/mnt/package/draft"))) + "\n";
  return text +
         "      extraVolumes:\n        - name: package\n          persistentVolumeClaim: {claimName: specdec-packages, "
         "readOnly: true}\n"
         "      extraVolumeMounts:\n        - {name: package, mountPath: /mnt/package, subPath: PACKAGE, readOnly: "
         "true}\n";
}

std::string specdec_toml(const LaunchPlan& plan) {
  std::string text =
      "# specdec --config engines/specdec.toml serve .     (from the package's directory)\n" +
      gate_comment(plan, "write k = \"auto\" and max-k = " + std::to_string(plan.tried_k) + " in place of k = 0.") +
      "# The schedule is where the server starts: its own controller chooses K up to max-k from measured "
      "costs.\n[serve]\n";
  text += plan.max_k() > 0
              ? "k = \"auto\"\nmax-k = " + std::to_string(plan.max_k()) + "\nverify = \"" + plan.verify + "\"\n"
              : "k = 0\n";
  if (plan.dtype == "fp32" || plan.dtype == "bf16" || plan.dtype == "fp16") text += "dtype = \"" + plan.dtype + "\"\n";
  return text;
}

}  // namespace

int LaunchPlan::max_k() const {
  if (!obstacle.empty()) return 0;
  int k = 0;
  for (const ScheduleRow& row : schedule) k = std::max(k, row.k);
  return k;
}

std::string checkpoint_dtype(const Json& config) {
  const Json& inner = config.contains("text_config") ? config["text_config"] : config;
  if (config.contains("quantization_config") || inner.contains("quantization_config")) return "auto";
  for (const Json* part : {&inner, &config})
    for (const char* key : {"dtype", "torch_dtype"}) {
      const Json value = part->is_object() ? part->value(key, Json()) : Json();
      if (value == "float32") return "fp32";
      if (value == "bfloat16") return "bf16";
      if (value == "float16") return "fp16";
    }
  return "auto";
}

LaunchPlan launch_plan(const ValidationReport& report, const std::string& name, const std::string& target_reference) {
  LaunchPlan plan;
  plan.name = name;
  plan.target_reference = target_reference;
  plan.target_id = report.target.id;
  plan.draft_id = report.draft.id;
  plan.dtype = report.dtype;
  plan.verify = report.rollout.verify.empty() ? "token" : report.rollout.verify;
  plan.greedy = report.temperature == 0;
  plan.schedule = report.schedule;
  const int tried = std::max(0, report.best_k > 0 ? report.best_k : report.rollout.k);
  if (plan.schedule.empty()) plan.schedule = {{1, 256, tried}};
  plan.schedule[0].low = 1;
  plan.verdict = report.verdict;
  plan.gate = gate_brief(report, "manifest.json");
  // Segment names come from traffic and may hold U+0085 or U+2028, at which some YAML parsers end a comment.
  for (char& c : plan.gate)
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  if (report.verdict == Verdict::kPass) return plan;
  plan.tried_k = tried;
  for (ScheduleRow& row : plan.schedule) {
    // Reports of earlier specdec versions have a schedule without measured figures, so the figures come from other
    // fields of the report.
    if (row.figure_k == 0 && row.k > 0 && row.low == 1 && report.has_speed)
      row = {row.low, row.high, 0, true, report.best_k, report.speedup.value, report.speedup.ci};
    row.k = 0;
  }
  return plan;
}

const std::vector<std::string>& known_engines() {
  static const std::vector<std::string> kEngines = {"specdec",   "vllm",   "sglang", "tensorrt-llm",
                                                    "llama.cpp", "kserve", "helm"};
  return kEngines;
}

void require_known_engines(const std::vector<std::string>& engines) {
  for (const std::string& engine : engines) {
    if (std::find(known_engines().begin(), known_engines().end(), engine) != known_engines().end()) continue;
    std::string all;
    for (const std::string& known : known_engines()) all += (all.empty() ? "" : ", ") + known;
    throw Error(ErrorKind::kUsage, "--engines: '" + engine + "': expected some of " + all);
  }
}

std::map<std::string, std::string> launch_files(const LaunchPlan& given, const std::vector<std::string>& engines) {
  require_known_engines(engines);
  std::map<std::string, std::string> files;
  for (const std::string& engine : engines) {
    LaunchPlan plan = given;
    if (in_engines(plan).is_head) plan.obstacle = head_obstacle(engine, plan.head);
    if (engine == "specdec") {
      files["specdec.toml"] = specdec_toml(plan);
    } else if (engine == "vllm") {
      files["vllm.sh"] = vllm(plan);
    } else if (engine == "sglang") {
      files["sglang.sh"] = sglang(plan);
      if (has_sglang_schedule(plan)) files["sglang-schedule.json"] = sglang_schedule(plan);
    } else if (engine == "tensorrt-llm") {
      files["tensorrt-llm.yaml"] = tensorrt_llm(plan, false);
      files["tensorrt-llm-1.2.yaml"] = tensorrt_llm(plan, true);
    } else if (engine == "llama.cpp") {
      files["llama.cpp.sh"] = llama_cpp(plan);
    } else if (engine == "kserve") {
      files["kserve.yaml"] = kserve(plan);
    } else if (engine == "helm") {
      files["helm-values.yaml"] = helm(plan);
    }
  }
  return files;
}

}  // namespace specdec::deploy
