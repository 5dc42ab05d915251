// Tests that a decoder is read from a GGUF file: every value, in the decoder's order, dequantised or in blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/gguf/blocks.h"
#include "base/gguf/model_files.h"
#include "base/philox.h"
#include "engine/forward/forward.h"
#include "engine/kernels/block_quantised.h"
#include "engine/kernels/ops.h"
#include "engine/weights/weights.h"
#include "tests/base/gguf/sample_model.h"
#include "tests/base/scratch.h"
#include "tests/model/toy_batch.h"

namespace specdec::model {
namespace {

using testing::SampleGguf;

constexpr int64_t kWidth = 256, kInner = 512, kVocab = 96, kHeads = 4, kKvHeads = 2, kHeadDim = 64;

// Writes a GGUF file of a decoder of two layers and keeps what each parameter must become.
class WrittenModel {
 public:
  // `types` are given to the matrices in turn. `head` is the type of a head that is not tied to the embedding.
  WrittenModel(const std::string& architecture, std::vector<std::string> types, const std::string& embedding,
               const std::string& head = "", const std::string& norms = "F32")
      : gemma_(architecture == "gemma3"), permuted_(architecture == "llama"), types_(std::move(types)) {
    file_.add_text("general.architecture", architecture);
    const auto number = [&](const std::string& key, int64_t value) {
      file_.add_u32(architecture + "." + key, static_cast<uint32_t>(value));
    };
    number("embedding_length", kWidth), number("block_count", 2), number("feed_forward_length", kInner);
    number("context_length", 4096), number("attention.head_count", kHeads);
    number("attention.head_count_kv", kKvHeads), number("attention.key_length", kHeadDim);
    number("attention.value_length", kHeadDim), number("attention.sliding_window", 512);
    file_.metadata.emplace_back(architecture + ".attention.layer_norm_rms_epsilon",
                                testing::le<uint32_t>(6) + testing::le(1e-5F));
    file_.add_text("tokenizer.ggml.model", "gpt2");
    std::vector<std::string> tokens;
    for (int64_t i = 0; i < kVocab; ++i) tokens.push_back("t" + std::to_string(i));
    file_.add_texts("tokenizer.ggml.tokens", tokens);
    matrix("token_embd.weight", "model.embed_tokens.weight", kVocab, kWidth, embedding);
    for (int l = 0; l < 2; ++l) add_layer("blk." + std::to_string(l) + ".", "model.layers." + std::to_string(l) + ".");
    norm("output_norm.weight", "model.norm.weight", kWidth);
    if (!head.empty()) matrix("output.weight", "lm_head.weight", kVocab, kWidth, head);
    if (norms != "F32") {  // a norm in blocks, which no converter writes
      SampleGguf::Entry& last = file_.tensors[file_.tensors.size() - (head.empty() ? 1 : 2)];
      last.type = gguf::find_type(norms)->id;
      last.data.resize(static_cast<size_t>(kWidth / 32 * 34));
    }
    testing::put(directory_ / "model.gguf", file_.bytes());
    const gguf::GgufFile opened(directory_ / "model.gguf");
    testing::put(directory_ / "config.json", gguf::make_config(opened).dump());
  }

  const std::filesystem::path& directory() const { return directory_.root(); }
  const at::Tensor& expected(const std::string& name) const { return expected_.at(name); }

 private:
  void add_layer(const std::string& from, const std::string& to) {
    const auto next = [&]() { return types_[count_++ % types_.size()]; };
    norm(from + "attn_norm.weight", to + "input_layernorm.weight", kWidth);
    matrix(from + "attn_q.weight", to + "self_attn.q_proj.weight", kHeads * kHeadDim, kWidth, next(), kHeads);
    matrix(from + "attn_k.weight", to + "self_attn.k_proj.weight", kKvHeads * kHeadDim, kWidth, next(), kKvHeads);
    matrix(from + "attn_v.weight", to + "self_attn.v_proj.weight", kKvHeads * kHeadDim, kWidth, next());
    matrix(from + "attn_output.weight", to + "self_attn.o_proj.weight", kWidth, kHeads * kHeadDim, next());
    matrix(from + "ffn_gate.weight", to + "mlp.gate_proj.weight", kInner, kWidth, next());
    matrix(from + "ffn_up.weight", to + "mlp.up_proj.weight", kInner, kWidth, next());
    matrix(from + "ffn_down.weight", to + "mlp.down_proj.weight", kWidth, kInner, next());
    norm(from + "ffn_norm.weight",
         to + (gemma_ ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight"), kWidth);
    if (!gemma_) return;
    norm(from + "post_attention_norm.weight", to + "post_attention_layernorm.weight", kWidth);
    norm(from + "post_ffw_norm.weight", to + "post_feedforward_layernorm.weight", kWidth);
    norm(from + "attn_q_norm.weight", to + "self_attn.q_norm.weight", kHeadDim);
    norm(from + "attn_k_norm.weight", to + "self_attn.k_norm.weight", kHeadDim);
  }

  void norm(const std::string& name, const std::string& parameter, int64_t n) {
    std::string bytes;
    const at::Tensor values = at::empty({n}, at::kFloat);
    for (int64_t i = 0; i < n; ++i) {  // multiples of 1/64, which Gemma's 1 + w keeps exactly
      const auto value = static_cast<float>(random_.below(64)) / 64.0F;
      values[i] = value;
      bytes += testing::le(gemma_ ? 1.0F + value : value);
    }
    file_.tensors.push_back({name, {static_cast<uint64_t>(n)}, 0, bytes, {}});
    expected_.emplace(parameter, values);
  }

  // Adds a matrix of random blocks. With `heads`, its rows lie in the order that llama.cpp's converter gives them.
  void matrix(const std::string& name, const std::string& parameter, int64_t n, int64_t k, const std::string& type,
              int64_t heads = 0) {
    const gguf::TensorType& stored = *gguf::find_type(type);
    const at::Tensor wide = at::empty({n, k}, at::kFloat);
    std::string bytes(static_cast<size_t>(n * k / stored.block_values * stored.block_bytes), '\0');
    const auto row_bytes = static_cast<size_t>(k / stored.block_values * stored.block_bytes);
    for (int64_t i = 0; i < n; ++i) {
      int64_t row = i;
      if (heads > 0 && permuted_) {
        const int64_t d = n / heads, in = i % d;
        row = i - in + in % (d / 2) * 2 + in / (d / 2);
      }
      char* at = bytes.data() + static_cast<size_t>(row) * row_bytes;
      fill(type, stored, k, at);
      gguf::dequantise(stored, {reinterpret_cast<const std::byte*>(at), row_bytes},
                       {wide.data_ptr<float>() + i * k, static_cast<size_t>(k)});
    }
    file_.tensors.push_back({name, {static_cast<uint64_t>(k), static_cast<uint64_t>(n)}, stored.id, bytes, {}});
    expected_.emplace(parameter, wide);
  }

  // Fills a row with random blocks whose weights are at most about 0.2.
  void fill(const std::string& type, const gguf::TensorType& stored, int64_t k, char* row) {
    if (stored.block_values == 1) {
      std::vector<float> values(static_cast<size_t>(k));
      for (float& value : values) value = static_cast<float>(random_.uniform() * 0.2 - 0.1);
      return gguf::quantise(stored, values,
                            {reinterpret_cast<std::byte*>(row), static_cast<size_t>(k * stored.block_bytes)});
    }
    const bool k_type = stored.block_values == 256, ends = type == "Q6_K";
    for (int64_t b = 0; b < k / stored.block_values; ++b, row += stored.block_bytes) {
      for (int64_t i = 0; i < stored.block_bytes; ++i) row[i] = static_cast<char>(random_.below(256));
      // Scales of about 2^-14 for codes that are multiplied by scales of up to 127, else of 2^-9.
      const auto half = static_cast<uint16_t>((k_type ? 1U : 6U) << 10 | random_.below(1024));
      std::memcpy(row + (ends ? 208 : 0), &half, sizeof half);
      if (type.ends_with("_1") || (k_type && !ends)) std::memcpy(row + 2, &half, sizeof half);
    }
  }

  bool gemma_, permuted_;
  std::vector<std::string> types_;
  size_t count_ = 0;
  PhiloxStream random_{5, 6};
  SampleGguf file_;
  testing::Scratch directory_;
  std::map<std::string, at::Tensor> expected_;
};

const std::vector<std::vector<std::string>> kMixes = {
    {"Q8_0"}, {"Q4_0", "Q4_1"}, {"Q4_K", "Q6_K", "Q5_K"}, {"Q5_0", "Q5_1", "F16", "Q8_0"}, {"BF16"}, {"F32", "F16"}};

TEST(Gguf, EveryParameterHasTheValuesOfTheFile) {
  for (const char* architecture : {"llama", "gemma3"}) {
    for (const auto& types : kMixes) {
      const WrittenModel written(architecture, types, "Q8_0");
      Decoder decoder = load_decoder(written.directory(), at::kCPU, at::kFloat);
      decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& tensor) {
        EXPECT_TRUE(at::equal(tensor, written.expected(name))) << architecture << " " << types[0] << " " << name;
      });
      EXPECT_TRUE(decoder.config.tie_embeddings);
    }
  }
}

TEST(Gguf, MatricesStayInTheirBlocksForDecodingOnACpu) {
  for (const char* architecture : {"llama", "gemma3"}) {
    for (const auto& types : kMixes) {
      const WrittenModel written(architecture, types, "Q6_K");
      const DecoderConfig config = load_decoder_config(written.directory());
      const at::ScalarType dtype = resolve_decoding_dtype("auto", config, at::kCPU);
      ASSERT_EQ(dtype, kAsStored);
      Decoder decoder = load_decoder(written.directory(), at::kCPU, dtype);
      EXPECT_EQ(dtype_of(decoder), kAsStored);
      size_t matrices = 0;
      decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& tensor) {
        const at::Tensor& expected = written.expected(name);
        const bool in_blocks = types[0].starts_with("Q") && kernels::is_block_quantised(tensor);
        if (!in_blocks) {
          EXPECT_TRUE(at::equal(tensor, expected.to(config.dtype))) << name;
          return;
        }
        ++matrices;
        EXPECT_EQ(tensor.size(0), expected.size(0));
        EXPECT_TRUE(at::allclose(kernels::dequantise_blocks(tensor, expected.size(1)), expected, 1e-6, 1e-7)) << name;
      });
      if (types[0].starts_with("Q") && types.size() < 4) {
        EXPECT_EQ(matrices, 14U);
      }
      // A tied head is kept twice: wide to look up rows, and in blocks to multiply.
      EXPECT_TRUE(at::allclose(kernels::dequantise_blocks(decoder.weights.lm_head, kWidth),
                               written.expected("model.embed_tokens.weight"), 1e-6, 1e-7));
    }
  }
}

// The pass over blocks gives what the same weights give in fp32, whatever other texts and branches share the pass.
TEST(Gguf, APassOverBlocksGivesTheLogitsOfTheDequantisedWeights) {
  for (const char* architecture : {"llama", "gemma3"}) {
    for (const auto& types : kMixes) {
      const WrittenModel written(architecture, types, "Q8_0");
      const auto wide = load_for_decoding(written.directory(), at::kCPU, at::kFloat, Role::kTarget),
                 blocks = load_for_decoding(written.directory(), at::kCPU, kAsStored, Role::kTarget);
      const at::Tensor expected = forward(*wide, Batch(*wide, kTexts).parts()),
                       found = forward(*blocks, Batch(*blocks, kTexts).parts());
      const double error = ((found - expected).pow(2).sum() / expected.pow(2).sum()).item<double>();
      EXPECT_LT(error, 2e-4) << architecture << " " << types[0];  // caches, embeddings and norms are bf16
      const at::Tensor one = forward(*blocks, Batch(*blocks, {kTexts[0]}).parts());
      EXPECT_TRUE(at::equal(found.slice(0, 0, 3), one)) << architecture << " " << types[0];
      if (types.size() != 3) continue;  // the reference dequantises every matrix in each pass
      kernels::force_reference(true);
      const at::Tensor reference = forward(*blocks, Batch(*blocks, kTexts).parts());
      kernels::force_reference(false);
      EXPECT_LT(((reference - expected).pow(2).sum() / expected.pow(2).sum()).item<double>(), 2e-3) << types[0];
    }
  }
}

TEST(Gguf, AHeadOfItsOwnStaysInItsBlocks) {
  const WrittenModel written("llama", {"Q4_0"}, "F16", "Q6_K");
  const Decoder decoder = load_decoder(written.directory(), at::kCPU, kAsStored);
  EXPECT_FALSE(decoder.config.tie_embeddings);
  EXPECT_TRUE(at::allclose(kernels::dequantise_blocks(decoder.weights.lm_head, kWidth),
                           written.expected("lm_head.weight"), 1e-6, 1e-7));
}

// A long prompt is computed in pieces of 128 rows.
TEST(Gguf, ALongPassGivesTheBitsOfShortOnes) {
  const WrittenModel written("llama", {"Q4_K", "Q8_0"}, "Q8_0");
  const auto decoder = load_for_decoding(written.directory(), at::kCPU, kAsStored, Role::kTarget);
  EXPECT_TRUE(at::equal(forward(*decoder, Batch(*decoder, {{0, 300, 1}}).parts()),
                        forward(*decoder, Batch(*decoder, {{299, 1, 1}}).parts())));
}

TEST(Gguf, ANormInBlocksIsRefused) {
  const WrittenModel written("llama", {"Q8_0"}, "Q8_0", "", "Q8_0");
  const std::string message =
      testing::error_of([&] { load_decoder(written.directory(), at::kCPU, at::kFloat); }, ErrorKind::kModel);
  EXPECT_NE(message.find("is stored as Q8_0, expected F32"), std::string::npos) << message;
}

TEST(Gguf, AConfigMadeFromAnotherFileIsRefused) {
  const WrittenModel written("llama", {"Q8_0"}, "Q8_0"), other("llama", {"Q4_0"}, "Q8_0");
  std::filesystem::copy_file(other.directory() / "model.gguf", written.directory() / "model.gguf",
                             std::filesystem::copy_options::overwrite_existing);
  try {
    load_decoder(written.directory(), at::kCPU, at::kFloat);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kModel);
    EXPECT_NE(std::string(error.what()).find("was not made from"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace specdec::model
