// Tests that a decoder is read from a GGUF file: every value, in the decoder's order, dequantised or in blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/gguf/blocks.h"
#include "base/gguf/model_files.h"
#include "engine/forward/forward.h"
#include "engine/kernels/block_quantised.h"
#include "engine/kernels/ops.h"
#include "engine/weights/weights.h"
#include "tests/model/gguf_decoder.h"
#include "tests/model/toy_batch.h"

namespace specdec::model {
namespace {

using testing::kHeadDim, testing::kHeads, testing::kInner, testing::kKvHeads, testing::kVocab, testing::kWidth;
using testing::WrittenModel;

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

TEST(Gguf, AProductOfManyRowsIsThatOfTheDequantisedMatrix) {
  const WrittenModel written("llama", {"Q4_0", "Q4_1", "Q8_0"}, "Q6_K");
  const Decoder blocks = load_decoder(written.directory(), at::kCPU, kAsStored);
  const at::Tensor &weight = blocks.weights.lm_head, bias = at::arange(kVocab, at::kFloat) / 8;
  const at::Tensor wide = kernels::dequantise_blocks(weight, kWidth);
  for (const int64_t rows : {0, 1, 128, 131}) {  // more than 128 rows are computed in pieces
    const at::Tensor x = at::sin(at::arange(rows * kWidth, at::kFloat)).view({rows, kWidth});
    const at::Tensor found = kernels::linear(x, weight, bias), expected = at::linear(x, wide, bias);
    ASSERT_EQ(found.sizes(), expected.sizes());
    EXPECT_TRUE(at::allclose(found, expected, 1e-3, 1e-3)) << rows;
    if (rows == 0) continue;
    EXPECT_TRUE(at::equal(kernels::linear(x.slice(0, rows - 1), weight, bias), found.slice(0, rows - 1))) << rows;
    EXPECT_EQ(kernels::linear(x.to(at::kBFloat16), weight, bias).scalar_type(), at::kBFloat16);
  }
  EXPECT_THROW(kernels::linear(at::zeros({2, kWidth / 2}), weight), Error);
}

}  // namespace
}  // namespace specdec::model
