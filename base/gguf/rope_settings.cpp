#include "base/gguf/rope_settings.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numbers>
#include <span>

#include "base/gguf/architectures.h"
#include "base/gguf/header_reader.h"

namespace specdec::gguf {

namespace {

std::vector<float> read_factors(const GgufFile& file, const std::string& name, int64_t count) {
  const Tensor& tensor = file.tensor(name);
  if (std::string_view(tensor.type->name) != "F32" || tensor.shape != std::vector<int64_t>{count})
    refuse_model(file, name + ": expected " + std::to_string(count) +
                           " numbers of type F32, one for each turned pair of a head");
  std::vector<float> factors(static_cast<size_t>(count));
  file.read(tensor, 0, std::as_writable_bytes(std::span(factors)));
  for (const float factor : factors)
    if (!(factor >= 1e-6F && factor <= 1e6F)) refuse_model(file, name + ": expected numbers in [1e-6, 1e6]");
  return factors;
}

Json decimals(const std::vector<float>& values) {
  Json out = Json::array();
  for (const float value : values) out.push_back(decimal(static_cast<double>(value)));
  return out;
}

// Returns the divisor of a frequency under Llama 3's scaling (transformers' modeling_rope_utils.py) with low and high
// frequency factors 1 and 4, which all models have.
double llama3_divisor(double frequency, double factor, double original) {
  const double turns = original * frequency / (2 * std::numbers::pi);  // rotations within the original context
  if (turns > 4) return 1;
  if (turns < 1) return factor;
  const double smooth = (turns - 1) / 3;
  return 1 / ((1 - smooth) / factor + smooth);
}

// rope_freqs.weight has the divisors of the frequencies, not the settings that they were computed from. Returns the
// settings that reproduce them; null if all divisors are 1.
Json recover_llama3(const GgufFile& file, double theta, int64_t head_dim) {
  const std::string name = "rope_freqs.weight";
  const std::vector<float> factors = read_factors(file, name, head_dim / 2);
  const auto close = [](double a, double b) { return std::abs(a - b) <= 1e-3 * b; };
  if (std::all_of(factors.begin(), factors.end(), [&](float f) { return close(static_cast<double>(f), 1); }))
    return Json();
  for (const double factor : {decimal(static_cast<double>(factors.back())), 8.0, 32.0})
    for (const int64_t original : {8192, 1024, 2048, 4096, 16384, 32768, 65536, 131072}) {
      bool equal = factor > 1;
      for (size_t i = 0; i < factors.size() && equal; ++i) {
        const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
        equal =
            close(llama3_divisor(frequency, factor, static_cast<double>(original)), static_cast<double>(factors[i]));
      }
      if (equal)
        return {{"rope_type", "llama3"},
                {"factor", factor},
                {"low_freq_factor", 1.0},
                {"high_freq_factor", 4.0},
                {"original_max_position_embeddings", original}};
    }
  refuse_model(
      file,
      name + ": no setting of Llama 3's rope scaling gives these factors; use the model's Hugging Face checkpoint");
}

Json yarn_settings(const GgufFile& file, const std::string& scaling, double factor, int64_t context) {
  // llama.cpp and transformers read these differently or not at all.
  const auto expect = [&](const char* key, double usual) {
    const double found = file.number(scaling + key, -1e6, 1e6, usual);
    if (std::abs(found - usual) > 1e-6 * std::abs(usual))
      refuse_model(file, scaling + key + ": expected " + std::to_string(usual) + ", found " + std::to_string(found));
  };
  const double usual = factor <= 1 ? 1.0 : 0.1 * std::log(factor) + 1.0;
  expect("yarn_ext_factor", 1);
  expect("yarn_log_multiplier", 0);
  expect("yarn_attn_factor", usual);
  expect("attn_factor", 1);
  return {{"rope_type", "yarn"},
          {"factor", factor},
          {"original_max_position_embeddings", file.integer(scaling + "original_context_length", 1, 1 << 30, context)},
          {"beta_fast", decimal(file.number(scaling + "yarn_beta_fast", 1e-6, 1000, 32))},
          {"beta_slow", decimal(file.number(scaling + "yarn_beta_slow", 1e-6, 1000, 1))}};
}

void write_phi3(const GgufFile& file, int64_t head_dim, Json& out) {
  const int64_t turned = file.integer("phi3.rope.dimension_count", 2, head_dim, head_dim);
  if (turned != head_dim) {
    double fraction = static_cast<double>(turned) / static_cast<double>(head_dim);
    // The number of turned values is rounded down to a whole one when it is computed from the fraction.
    while (std::floor(static_cast<double>(head_dim) * fraction) < static_cast<double>(turned))
      fraction = std::nextafter(fraction, 1.0);
    out["partial_rotary_factor"] = fraction;
  }
  const std::string original = "phi3.rope.scaling.original_context_length";
  if (file.has(original)) out["original_max_position_embeddings"] = file.integer(original, 1, 1 << 30);
  if (!file.tensors().contains("rope_factors_long.weight")) return;
  out["rope_scaling"] = {{"rope_type", "longrope"},
                         {"long_factor", decimals(read_factors(file, "rope_factors_long.weight", turned / 2))},
                         {"short_factor", decimals(read_factors(file, "rope_factors_short.weight", turned / 2))}};
  const std::string attention = "phi3.rope.scaling.attn_factor";
  if (file.has(attention)) out["rope_scaling"]["attention_factor"] = file.number(attention, 1e-6, 1e6);
}

}  // namespace

double decimal(double value) {
  const auto single = static_cast<float>(value);
  if (static_cast<double>(single) != value) return value;
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, single);
  std::from_chars(text, end.ptr, value);
  return value;
}

void write_rope(const GgufFile& file, const Architecture& architecture, int64_t head_dim, Json& out) {
  const std::string prefix = std::string(architecture.name) + ".rope.", scaling = prefix + "scaling.";
  const double theta = decimal(file.number(prefix + "freq_base", 1, 1e12, 10000));
  out["rope_theta"] = theta;
  const std::string type = file.text(scaling + "type", "linear");
  double factor = decimal(file.number(scaling + "factor", 0, 1e6, 0));
  if (factor == 0) factor = decimal(file.number(prefix + "scale_linear", 0, 1e6, 0));  // the older key
  if (architecture.fused) {
    if (type != "longrope" && factor != 0 && factor != 1)
      refuse_model(file, scaling + "factor: only longrope is supported for Phi-3, found " + in_quotes(type));
    return write_phi3(file, head_dim, out);
  }
  const int64_t turned = file.integer(prefix + "dimension_count", 1, 4096, head_dim);
  if (turned != head_dim)
    refuse_model(file, prefix + "dimension_count: expected the length of a head, " + std::to_string(head_dim) +
                           ", found " + std::to_string(turned));
  const bool scales = type != "none" && factor != 0 && factor != 1;
  if (file.tensors().contains("rope_freqs.weight")) {
    if (scales) refuse_model(file, scaling + "factor: a second scaling beside rope_freqs.weight is not supported");
    const Json llama3 = recover_llama3(file, theta, head_dim);
    if (!llama3.is_null()) out["rope_scaling"] = llama3;
    return;
  }
  if (type == "longrope") refuse_model(file, scaling + "type: 'longrope' is supported for Phi-3 only");
  if (!scales) return;
  if (factor < 1) refuse_model(file, scaling + "factor: expected 1 or more, found " + std::to_string(factor));
  if (type == "linear")
    out["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
  else if (type == "yarn")
    out["rope_scaling"] = yarn_settings(file, scaling, factor, out["max_position_embeddings"].get<int64_t>());
  else
    refuse_model(file, scaling + "type: " + in_quotes(type) + " is not supported; supported: none, linear, yarn");
}

}  // namespace specdec::gguf
