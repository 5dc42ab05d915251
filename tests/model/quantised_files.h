// Makes small checkpoints whose matrices are quantised, with random codes.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/safetensors.h"
#include "tests/model/toy_decoders.h"

namespace specdec::model {

struct StoredTensor {
  std::string dtype;  // the dtype's name in safetensors
  at::Tensor data;
};
using StoredTensors = std::map<std::string, StoredTensor>;

// Returns a config.json of a small model with sizes that the packed layouts support.
inline Json quantised_config(const std::string& type, const std::string& dtype, Json quantization) {
  Json config = toy_config(type, 2);
  config["hidden_size"] = 64, config["intermediate_size"] = 96, config["num_attention_heads"] = 4,
  config["num_key_value_heads"] = 2, config["torch_dtype"] = dtype;
  config["quantization_config"] = std::move(quantization);
  return config;
}

class QuantisedCheckpoint {
 public:
  explicit QuantisedCheckpoint(const Json& config) : config_(config), quantization_(config["quantization_config"]) {
    Decoder plain = toy_decoder(config);
    const bool half = config["torch_dtype"] == "float16";
    uint64_t number = 0;
    for (const Parameter& p : list_parameters(plain.weights, plain.config)) {
      at::manual_seed(1000 + ++number);
      if (stays_quantised(p))
        quantise(p.name.substr(0, p.name.size() - std::string("weight").size()), p.shape);
      else
        tensors[p.name] = {half ? "F16" : "BF16", p.tensor->to(half ? at::kHalf : at::kBFloat16)};
    }
  }

  void write(const std::filesystem::path& directory) const {
    std::vector<TensorToWrite> out;
    for (const auto& [name, t] : tensors)
      out.push_back({name,
                     t.dtype,
                     t.data.sizes().vec(),
                     {static_cast<const std::byte*>(t.data.const_data_ptr()), t.data.nbytes()}});
    write_safetensors(directory / "model.safetensors", out);
    write_file_atomic(directory / "config.json", config_.dump());
  }

  StoredTensors tensors;  // tests may change these before write()

 private:
  void quantise(const std::string& name, const std::vector<int64_t>& shape) {
    const std::string method = quantization_["quant_method"];
    if (method == "fp8")
      fp8(name, shape[0], shape[1]);
    else
      integers(name, shape[0], shape[1], method == "awq");
  }

  // Random FP8 weights and scales whose products are about as large as the weights of a toy decoder.
  void fp8(const std::string& name, int64_t n, int64_t k) {
    tensors[name + "weight"] = {
        "F8_E4M3", (at::randint(32, 72, {n, k}) + 128 * at::randint(0, 2, {n, k})).to(at::kByte)};  // |x| <= 3.75
    std::vector<int64_t> scales = {n, 1};
    if (quantization_.contains("weight_block_size"))
      scales = {(n + 15) / 16, (k + 31) / 32};
    else if (quantization_.contains("one_scale"))
      scales = {};
    tensors[name + (quantization_.contains("weight_block_size") ? "weight_scale_inv" : "weight_scale")] = {
        "F32", at::rand(scales) * 0.1 + 0.05};
  }

  // Random weights of GPTQ or AWQ. With GPTQ's "desc_act" the groups of inputs are random, but equal for matrices that
  // read the same inputs.
  void integers(const std::string& name, int64_t n, int64_t k, bool awq) {
    const int64_t bits = awq ? 4 : quantization_["bits"].get<int64_t>(), per = 32 / bits, most = int64_t{1} << bits;
    int64_t group = quantization_["group_size"].get<int64_t>();
    if (group < 0) group = k;
    const int64_t groups = (k + group - 1) / group, offset = quantization_.value("checkpoint_format", "gptq") == "gptq";
    const at::Tensor codes = at::randint(0, most, {k, n}), zeros = at::randint(3 * most / 8, 5 * most / 8, {groups, n});
    tensors[name + "scales"] = {"F16", ((at::rand({groups, n}) + 0.5) * 0.5 / static_cast<double>(most)).to(at::kHalf)};
    if (awq) {
      const at::Tensor shifts = at::tensor({0, 16, 4, 20, 8, 24, 12, 28}, at::kLong);
      tensors[name + "qweight"] = {"I32", packed(codes.view({k, n / 8, 8}), shifts)};
      tensors[name + "qzeros"] = {"I32", packed(zeros.view({groups, n / 8, 8}), shifts)};
      return;
    }
    const at::Tensor shifts = at::arange(per) * bits;
    tensors[name + "qweight"] = {"I32", packed(codes.view({k / per, per, n}).transpose(1, 2), shifts)};
    tensors[name + "qzeros"] = {"I32",
                                packed((zeros - offset).bitwise_and(most - 1).view({groups, n / per, per}), shifts)};
    at::Tensor index = at::arange(k).div(group, "floor").to(at::kInt);
    if (quantization_.value("desc_act", false)) {
      const std::string matrix = name.substr(name.rfind('.', name.size() - 2) + 1);
      at::manual_seed(matrix == "o_proj."                                                 ? 1
                      : matrix == "down_proj."                                            ? 2
                      : matrix == "q_proj." || matrix == "k_proj." || matrix == "v_proj." ? 3
                                                                                          : 4);
      index = index.index_select(0, at::randperm(k));
    }
    tensors[name + "g_idx"] = {"I32", index};
  }
  // Packs the integers along the last dimension into one 32-bit integer, each shifted to its place.
  static at::Tensor packed(const at::Tensor& integers, const at::Tensor& shifts) {
    return integers.bitwise_left_shift(shifts).sum(-1).to(at::kInt).contiguous();
  }

  Json config_, quantization_;
};

}  // namespace specdec::model
