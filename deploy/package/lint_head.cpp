// Checks EAGLE-3 heads, in the plain layout and that of the speculators library.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/small_float.h"
#include "deploy/package/head_support.h"
#include "deploy/package/lint_draft.h"

namespace specdec::deploy {

namespace {

constexpr const char* kLayerIds = "eagle_aux_hidden_state_layer_ids";

// Reads `count` numbers, starting with element `first`, of a tensor of dtype BF16, F16 or F32.
std::vector<float> read_floats(const SafetensorsDirectory& tensors, const std::string& name, uint64_t first,
                               size_t count) {
  const TensorEntry& entry = tensors.entry(name);
  const size_t width = static_cast<size_t>(dtype_bytes(entry.dtype));
  std::vector<std::byte> bytes(count * width);
  tensors.file_of(name).read(entry.offset + first * width, bytes);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    if (width == 4) {
      std::memcpy(&values[i], bytes.data() + i * width, width);
      continue;
    }
    uint16_t half;
    std::memcpy(&half, bytes.data() + i * width, width);
    values[i] = entry.dtype == "BF16" ? bf16_to_float(half) : fp16_to_float(half);
  }
  return values;
}

bool has_floats(const TensorEntry& entry) {
  return entry.dtype == "BF16" || entry.dtype == "F16" || entry.dtype == "F32";
}

class HeadLinter {
 public:
  HeadLinter(DraftLint& lint, const SafetensorsDirectory& tensors)
      : lint_(lint), tensors_(tensors), config_(lint.config) {}

  void run() {
    engines();
    keys();
    if (lint_.is_speculators_layout) speculators();
    shapes();
    vocabulary_map();
    embedding();
    initial_head();
    if (uses_taps()) auxiliary_layers();
  }

 private:
  void add(bool fatal, const char* rule, const std::string& text) { lint_.add(fatal, rule, text); }
  int64_t number(const char* key, int64_t fallback) const { return lint_.number(key, fallback); }
  bool flag(const char* key, bool fallback) const { return lint_.flag(key, fallback); }
  Json eagle_config() const {
    const Json eagle = config_.value("eagle_config", Json::object());
    return eagle.is_object() ? eagle : Json::object();
  }
  // Every engine reads norm_before_fc under eagle_config first, then at the top level.
  bool norm_before_fc() const {
    return json_bool(eagle_config(), "norm_before_fc", flag("norm_before_fc", false), lint_.file, ErrorKind::kModel);
  }
  // Returns false for a head that reads the target's last hidden state instead of states from several layers.
  bool uses_taps() const {
    return json_bool(eagle_config(), "use_aux_hidden_state", true, lint_.file, ErrorKind::kModel);
  }
  bool has_qwen3_layer() const {
    if (lint_.layers_config().value("model_type", Json()) == "qwen3") return true;
    return config_.contains("architectures") &&
           canonical_json(config_["architectures"]).find("Qwen3For") != std::string::npos;
  }
  int64_t taps() const {
    if (config_.contains("num_aux_hidden_states")) return lint_.number_in(config_, "num_aux_hidden_states", 3);
    const Json ids = eagle_config().value(kLayerIds, Json());
    return ids.is_array() && !ids.empty() ? static_cast<int64_t>(ids.size()) : 3;
  }
  int64_t draft_vocab() const { return lint_.number_in(config_, "draft_vocab_size", number("vocab_size", 1)); }
  int64_t target_hidden() const { return lint_.target_number("hidden_size"); }

  // Warns about each engine that cannot serve the head with this target.
  void engines() {
    const Json type = lint_.target_config.value("model_type", Json());
    for (const std::string& engine : head_engines())
      if (const std::string why = tap_obstacle(engine, type.is_string() ? type.get<std::string>() : ""); !why.empty())
        add(false, "target-support", why + ": serve it with another engine, or distil a small model");
  }

  void keys() {
    const Json& layers = lint_.layers_config();
    if (layers.value("num_hidden_layers", Json(1)) != 1)
      add(true, "layers",
          "num_hidden_layers " + canonical_json(layers["num_hidden_layers"]) +
              ", expected 1: beyond the first layer vLLM and SGLang fuse different norms");
    if (lint_.is_speculators_layout)
      add(false, "format", "speculators format: vLLM alone reads it; for SGLang write the plain layout");
    else if (!config_.contains("norm_before_residual"))
      add(false, "norm-before-residual",
          "norm_before_residual: write false: trainers and engines differ in the default");
    else if (flag("norm_before_residual", false))
      add(true, "norm-before-residual",
          "norm_before_residual true: implemented in vLLM only; in SGLang the head computes something else");
    if (flag("tie_word_embeddings", false))
      add(true, "tensors", "tie_word_embeddings true: SGLang uses the embedding as the head");
    if (!lint_.is_speculators_layout && !config_.contains("draft_vocab_size"))
      add(true, "vocab-map", "draft_vocab_size: missing: SGLang reads it always");
    if (!lint_.is_speculators_layout && config_.contains("architectures") &&
        canonical_json(config_["architectures"]).find("Eagle3") == std::string::npos)
      add(false, "architectures",
          "architectures " + canonical_json(config_["architectures"]) +
              ": vLLM renames it for the method eagle3, SGLang would load a plain Llama: write "
              "LlamaForCausalLMEagle3");
    if (!uses_taps())
      add(false, "fc-input",
          "use_aux_hidden_state false: vLLM and SGLang give the head the target's last hidden state and need no fc; "
          "specdec itself does not run such a head");
    if (has_qwen3_layer())
      add(false, "format", "a Qwen3 layer (q_norm, k_norm): vLLM alone loads it; SGLang and specdec do not");
    if (flag("use_aux_norm", false))
      add(false, "tensors", "use_aux_norm: SGLang alone reads it; vLLM and specdec know fc_norm");
  }

  void speculators() {
    if (!config_.contains("norm_before_residual"))
      add(true, "norm-before-residual",
          "norm_before_residual: missing: vLLM takes true for an EAGLE-3 head of this format: write what was trained");
    if (!config_.contains("transformer_layer_config")) add(true, "format", "transformer_layer_config: missing");
    const Json& inner = json_object(config_, "speculators_config", 64, lint_.file, ErrorKind::kModel);
    const Json methods = inner.value("proposal_methods", Json::array());
    if (!methods.is_array() || methods.empty() || !methods[0].is_object() || !methods[0].contains("speculative_tokens"))
      add(true, "format",
          "speculators_config.proposal_methods[0].speculative_tokens: missing: vLLM takes the K from it");
    const Json verifier = inner.value("verifier", Json::object());
    const Json name = verifier.is_object() ? verifier.value("name_or_path", Json()) : Json();
    if (!name.is_string() || name.get<std::string>().find('/') == std::string::npos ||
        name.get<std::string>()[0] == '/' || fs::exists(name.get<std::string>()))
      add(false, "format",
          "speculators_config.verifier.name_or_path " + canonical_json(name) +
              " is no repository of the hub: vLLM refuses to serve the directory by itself; give --model and "
              "--speculative-config");
  }

  // Returns "midlayer." or "layers.0.", whichever the head uses. vLLM and SGLang accept both.
  std::string layer_prefix() const {
    return tensors_.contains("layers.0.self_attn.q_proj.weight") ? "layers.0." : "midlayer.";
  }

  void shapes() {
    const int64_t hidden = number("hidden_size", 1), theirs = target_hidden(), heads = number("num_attention_heads", 1),
                  groups = number("num_key_value_heads", heads), vocab = number("vocab_size", 1);
    const int64_t size = number("head_dim", std::max<int64_t>(1, hidden / heads)),
                  mlp = number("intermediate_size", 4 * hidden);
    const std::string at = layer_prefix();
    TensorShapes required = {{"norm.weight", {hidden}}}, optional = {{"fc.weight", {}},
                                                                     {"fc.bias", {hidden}},
                                                                     {"d2t", {}},
                                                                     {"t2d", {vocab}},
                                                                     {"embed_tokens.weight", {vocab, hidden}}};
    DraftLint::add_layer(required, at,
                         {.hidden = hidden, .input = 2 * hidden, .mlp = mlp, .q = heads * size, .kv = groups * size});
    required[at + "input_layernorm.weight"] = required[at + "hidden_norm.weight"] = {hidden};
    if (has_qwen3_layer())
      for (const char* part : {"q", "k"}) required[at + "self_attn." + part + "_norm.weight"] = {size};
    if (uses_taps() && norm_before_fc()) required["input_norm.weight"] = {taps() * theirs};
    if (flag("fc_norm", false) || flag("use_aux_norm", false)) tap_norms(theirs, required);
    if (draft_vocab() != vocab) required["d2t"] = {draft_vocab()};
    // lm_head.weight is optional if the head proposes the whole vocabulary, because the head can then use the target's
    // lm_head.
    (draft_vocab() == vocab ? optional : required)["lm_head.weight"] = {draft_vocab(), hidden};
    lint_.compare_tensors(
        tensors_, required, optional,
        lint_.is_speculators_layout ? "vLLM refuses the head" : "vLLM refuses the head, SGLang ignores it silently",
        true);
    missing_lm_head();
    if (draft_vocab() == vocab && tensors_.contains("d2t"))
      add(false, "vocab-map", "d2t: the head has the whole vocabulary, so vLLM has no place for it: leave it out");
    if (uses_taps()) input_of_fc(hidden, theirs);
  }

  // SGLang used to name the norms of the three target layers that the head reads aux_norm_low, _mid and _high, and
  // still accepts these names.
  void tap_norms(int64_t width, TensorShapes& required) {
    const bool old = tensors_.contains("aux_norm_low.weight");
    const char* const legacy[] = {"aux_norm_low", "aux_norm_mid", "aux_norm_high"};
    for (int64_t i = 0; i < taps(); ++i)
      required[(old && i < 3 ? legacy[i] : "fc_norm." + std::to_string(i)) + std::string(".weight")] = {width};
    if (old)
      add(false, "tensors",
          "aux_norm_low, _mid and _high: SGLang alone reads these names; others know fc_norm.0 to .2");
  }

  void missing_lm_head() {
    if (tensors_.contains("lm_head.weight") || draft_vocab() != number("vocab_size", 1)) return;
    const bool is_null = config_.contains("draft_vocab_size") && config_["draft_vocab_size"].is_null();
    add(false, "tensors",
        std::string("lm_head.weight: missing: vLLM takes the target's") +
            (is_null ? ", and so does SGLang" : "; SGLang keeps a random one unless draft_vocab_size is null") +
            "; specdec itself needs it");
  }

  void input_of_fc(int64_t hidden, int64_t theirs) {
    const TensorShape fc = tensors_.contains("fc.weight") ? tensors_.entry("fc.weight").shape : TensorShape{};
    if (fc != TensorShape{hidden, taps() * theirs})
      add(true, "fc-input",
          "fc.weight: " + (fc.empty() ? std::string("missing") : "shape " + text_of(fc)) + ", expected " +
              text_of({hidden, taps() * theirs}) + ": " + std::to_string(taps()) + " layers of the target, " +
              std::to_string(theirs) + " each");
    if (taps() == 1 && theirs == hidden)
      add(true, "fc-input", "one tapped layer of the target's width: SGLang leaves fc out");
  }

  template <class T>
  std::vector<T> read(const std::string& name) const {
    std::vector<T> values(tensors_.entry(name).bytes / sizeof(T));
    tensors_.read(name, std::as_writable_bytes(std::span(values)));
    return values;
  }

  // Row i of the head's lm_head stands for the target's token i + d2t[i].
  void vocabulary_map() {
    if (!tensors_.contains("d2t")) return;
    if (tensors_.entry("d2t").dtype != "I64")
      return add(true, "vocab-map", "d2t: " + tensors_.entry("d2t").dtype + ", expected I64");
    const std::vector<int64_t> offsets = read<int64_t>("d2t");
    const int64_t vocab = number("vocab_size", 1);
    std::vector<int64_t> kept;
    std::vector<bool> seen(static_cast<size_t>(std::min<int64_t>(vocab, int64_t{1} << 28)));
    for (size_t i = 0; i < offsets.size(); ++i) {
      const int64_t row = static_cast<int64_t>(i), id = row + std::clamp<int64_t>(offsets[i], -row - 1, vocab);
      if (id < 0 || id >= static_cast<int64_t>(seen.size()) || seen[static_cast<size_t>(id)])
        return add(true, "vocab-map",
                   "d2t[" + std::to_string(i) + "] = " + std::to_string(offsets[i]) +
                       ": expected offsets that give different ids below " + std::to_string(vocab));
      seen[static_cast<size_t>(id)] = true;
      kept.push_back(id);
    }
    if (!std::is_sorted(kept.begin(), kept.end())) {
      add(false, "vocab-map",
          "d2t: the ids do not ascend: vLLM, SGLang and llama.cpp take any order; specdec itself does not");
      std::sort(kept.begin(), kept.end());
    }
    if (tensors_.contains("t2d")) {
      if (tensors_.entry("t2d").dtype != "BOOL")
        return add(true, "vocab-map", "t2d: " + tensors_.entry("t2d").dtype + ", expected BOOL");
      const std::vector<uint8_t> marks = read<uint8_t>("t2d");
      std::vector<int64_t> marked;
      for (size_t i = 0; i < marks.size(); ++i)
        if (marks[i]) marked.push_back(static_cast<int64_t>(i));
      if (marked != kept) return add(true, "vocab-map", "t2d marks other ids than i + d2t[i] gives");
    }
    for (const int64_t id : special_tokens())
      if (!std::binary_search(kept.begin(), kept.end(), id))
        add(false, "vocab-map",
            "special token " + std::to_string(id) +
                " is not among the kept ids: the end of an answer is never drafted");
  }

  std::vector<int64_t> special_tokens() const {
    const Json ids = lint_.target_config.value("eos_token_id", Json());
    std::vector<int64_t> out;
    for (const Json& id : ids.is_array() ? ids : Json::array({ids}))
      if (id.is_number_integer()) out.push_back(id.get<int64_t>());
    return out;
  }

  enum class Likeness { kEqual, kRounded, kOther };

  // Compares the head's copy of the target's embedding with the target's, value by value.
  Likeness likeness(const std::string& ours, const SafetensorsDirectory& target, const std::string& theirs) const {
    if (!target.contains(theirs)) return Likeness::kOther;
    const TensorEntry &a = tensors_.entry(ours), &b = target.entry(theirs);
    if (a.shape != b.shape || !has_floats(a) || !has_floats(b)) return Likeness::kOther;
    // kRounding: largest relative error of rounding to bf16. kSmallest: largest error of rounding to fp16 near 0.
    constexpr float kRounding = 0x1p-8f, kSmallest = 1e-6f;
    const uint64_t count = a.bytes / static_cast<uint64_t>(dtype_bytes(a.dtype));
    bool equal = a.dtype == b.dtype;
    for (uint64_t at = 0; at < count; at += 1u << 20) {
      const size_t n = std::min<uint64_t>(1u << 20, count - at);
      const std::vector<float> x = read_floats(tensors_, ours, at, n), y = read_floats(target, theirs, at, n);
      for (size_t i = 0; i < n; ++i) {
        if (x[i] == y[i]) continue;
        if (std::abs(x[i] - y[i]) > kRounding * std::abs(y[i]) + kSmallest) return Likeness::kOther;
        if (a.dtype == b.dtype) return Likeness::kOther;
        equal = false;
      }
    }
    return equal ? Likeness::kEqual : Likeness::kRounded;
  }

  void embedding() {
    const bool same_width = number("hidden_size", 1) == target_hidden();
    if (!tensors_.contains("embed_tokens.weight")) {
      if (!same_width)
        add(true, "embedding",
            "embed_tokens.weight: missing, and the target's has " + std::to_string(target_hidden()) + " columns, not " +
                std::to_string(number("hidden_size", 1)));
      return;
    }
    const Likeness likeness_of =
        likeness("embed_tokens.weight", SafetensorsDirectory(lint_.target), "model.embed_tokens.weight");
    if (likeness_of == Likeness::kRounded)
      add(false, "embedding",
          "embed_tokens.weight: the target's in another dtype: vLLM uses this copy, SGLang the target's; specdec "
          "itself takes it only if no value was rounded: leave it out");
    if (likeness_of == Likeness::kOther)
      add(same_width, "embedding",
          "embed_tokens.weight: not the target's: vLLM uses it, SGLang replaces it by the target's: leave it out");
  }

  // Warns about an lm_head that was never trained: the standard deviation of its weights still equals initializer_range
  // within a fraction of a per cent.
  void initial_head() {
    if (!tensors_.contains("lm_head.weight")) return;
    const TensorEntry& entry = tensors_.entry("lm_head.weight");
    if (!has_floats(entry)) return;
    const size_t count =
        std::min<uint64_t>(entry.bytes / static_cast<uint64_t>(dtype_bytes(entry.dtype)), uint64_t{1} << 20);
    if (count < 10000) return;
    double sum = 0, squares = 0, fourth = 0;
    for (const float value : read_floats(tensors_, "lm_head.weight", 0, count))
      sum += value, squares += double{value} * value, fourth += std::pow(double{value}, 4);
    const double n = static_cast<double>(count), mean = sum / n, variance = squares / n - mean * mean,
                 kurtosis = fourth / n / (variance * variance);
    const double wanted = lint_.layers_config().value("initializer_range", Json(0.02)).is_number()
                              ? lint_.layers_config().value("initializer_range", 0.02)
                              : 0.02;
    if (std::abs(std::sqrt(variance) / wanted - 1) < 0.005 && std::abs(mean) < 0.01 * wanted &&
        std::abs(kurtosis - 3) < 0.05)
      add(false, "tensors",
          "lm_head.weight: normal with deviation " + canonical_json(wanted) +
              ": looks as if it was never trained (acceptance length 1.00)");
  }

  // Checks the ids of the target's N layers from which the head takes hidden states. vLLM uses the top-level ids as
  // they are. SGLang adds 1 to the ids nested in eagle_config, for targets of type llama and qwen. If there are no ids,
  // vLLM and SGLang take the layers 2, N / 2 and N - 3.
  void auxiliary_layers() {
    const Json top = config_.value(kLayerIds, Json()), nested = eagle_config().value(kLayerIds, Json());
    const int64_t layers = lint_.target_number("num_hidden_layers");
    const Json standard = {2, layers / 2, layers - 3};
    const auto valid = [&](const Json& ids, const char* name, int64_t shift) {
      if (ids.is_null() || ids == Json::array()) return;
      bool good = ids.is_array() && static_cast<int64_t>(ids.size()) == taps();
      for (size_t i = 0; good && i < ids.size(); ++i)
        good = ids[i].is_number_integer() && ids[i].get<int64_t>() + shift >= 0 &&
               ids[i].get<int64_t>() + shift <= layers && (i == 0 || ids[i - 1].get<int64_t>() < ids[i].get<int64_t>());
      if (!good)
        add(true, "aux-layers",
            std::string(name) + " " + canonical_json(ids) + ": expected " + std::to_string(taps()) +
                " ascending layers of the target's " + std::to_string(layers));
    };
    valid(top, "eagle_aux_hidden_state_layer_ids", 0);
    valid(nested, "eagle_config.eagle_aux_hidden_state_layer_ids", 1);
    const bool has_top = top.is_array() && !top.empty(), has_nested = nested.is_array() && !nested.empty();
    if (lint_.is_speculators_layout) return;
    if (has_top && !has_nested && top != standard)
      add(true, "aux-layers",
          "eagle_aux_hidden_state_layer_ids " + canonical_json(top) +
              " at the top only: SGLang does not read it and takes " + canonical_json(standard));
    if (has_nested && !has_top)
      add(true, "aux-layers",
          "eagle_config.eagle_aux_hidden_state_layer_ids alone: vLLM's new runner does not read it and takes " +
              canonical_json(standard) + ", the old one takes it without SGLang's shift of 1");
    if (!has_top || !has_nested || top.size() != nested.size()) return;
    for (size_t i = 0; i < top.size(); ++i)
      if (top[i].is_number_integer() && nested[i].is_number_integer() &&
          top[i].get<int64_t>() != nested[i].get<int64_t>() + 1)
        return add(true, "aux-layers",
                   "the nested ids must be the top ones less 1 (SGLang adds it): " + canonical_json(top) + " and " +
                       canonical_json(nested));
  }

  DraftLint& lint_;
  const SafetensorsDirectory& tensors_;
  const Json& config_;
};

}  // namespace

void lint_head(DraftLint& lint, const SafetensorsDirectory& tensors) { HeadLinter(lint, tensors).run(); }

}  // namespace specdec::deploy
