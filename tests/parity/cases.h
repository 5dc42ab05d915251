// The models in golden/: variants of Llama (made by make_goldens.py), and at least one model of every supported family
// and RoPE scaling (made by make_family_goldens.py).
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/forward/forward.h"
#include "tests/parity/golden.h"

namespace specdec::parity {

inline const std::vector<std::string>& case_names() {
  static const std::vector<std::string> names = {"gqa_untied",
                                                 "tied_wide_heads",
                                                 "llama3_rope",
                                                 "biases",
                                                 "bf16",
                                                 "families/mistral",
                                                 "families/qwen2",
                                                 "families/qwen3",
                                                 "families/gemma2",
                                                 "families/gemma3",
                                                 "families/phi3",
                                                 "families/phi4_mini",
                                                 "families/smollm3",
                                                 "families/olmo2",
                                                 "families/mixtral",
                                                 "families/qwen3_moe",
                                                 "families/rope_linear",
                                                 "families/rope_dynamic",
                                                 "families/rope_yarn",
                                                 "families/qwen3_bf16",
                                                 "families/gemma2_bf16",
                                                 "families/olmo2_bf16",
                                                 "families/mistral_fp16",
                                                 "families/gemma3_fp16"};
  return names;
}

// Returns the names of the cases whose golden file contains a loss and gradients.
inline std::vector<std::string> trained_case_names() {
  std::vector<std::string> out;
  for (const std::string& name : case_names()) {
    if (name.starts_with("families/") && !name.ends_with("16")) out.push_back(name);
  }
  return out;
}

inline std::string test_name(const std::string& name) {
  std::string out = name;
  std::replace(out.begin(), out.end(), '/', '_');
  return out;
}

struct Case {
  model::Decoder decoder;
  std::map<std::string, at::Tensor> golden;
  at::Tensor tokens, positions, logits;
  // The logits when the model receives the tokens one by one. They differ from `logits` if the RoPE scaling depends on
  // the length of the text.
  at::Tensor stepwise;

  std::vector<int32_t> ids(int64_t row) const {
    const at::Tensor line = tokens[row].contiguous();
    return {line.data_ptr<int64_t>(), line.data_ptr<int64_t>() + line.numel()};
  }
  double tolerance() const {
    const double scale = logits.abs().max().item<double>();
    return decoder.config.dtype == at::kFloat ? 1e-4 : decoder.config.dtype == at::kHalf ? 1e-2 * scale : 4e-2 * scale;
  }
};

inline Case load_case(const std::string& name) {
  const auto config = model::load_decoder_config(golden_path(name));
  const auto golden = load_golden(name + ".safetensors");
  const at::Tensor logits = golden.at("logits");
  return {model::load_decoder(golden_path(name), at::kCPU, config.dtype),
          golden,
          golden.at("tokens"),
          golden.at("positions"),
          logits,
          golden.contains("stepwise") ? golden.at("stepwise") : logits};
}

struct LossAndGradients {
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;
};

// Computes the mean cross-entropy of the next token and its gradients, as make_family_goldens.py does.
inline LossAndGradients train_once(Case& c) {
  c.decoder.weights.visit(c.decoder.config,
                          [](const std::string&, at::Tensor& tensor) { tensor = tensor.clone().requires_grad_(); });
  if (c.decoder.config.tie_embeddings) c.decoder.weights.lm_head = c.decoder.weights.embed;
  const int64_t last = c.tokens.size(1) - 1;
  const at::Tensor log_q = model::forward(c.decoder, {.tokens = c.tokens, .positions = c.positions}).log_softmax(-1);
  LossAndGradients out{-log_q.narrow(1, 0, last).gather(-1, c.tokens.narrow(1, 1, last).unsqueeze(-1)).mean(), {}};
  out.loss.backward();
  c.decoder.weights.visit(c.decoder.config,
                          [&](const std::string& name, at::Tensor& tensor) { out.gradients[name] = tensor.grad(); });
  return out;
}

}  // namespace specdec::parity
