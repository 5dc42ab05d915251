// Compares the weights of quantised checkpoints with those of transformers. quantised_peers.py writes both to the
// folder that SPECDEC_QUANTISED_PEERS names.
#include <gtest/gtest.h>

#include "tests/parity/bent_checkpoint.h"
#include "tests/parity/golden.h"

namespace specdec::parity {
namespace {

std::vector<std::filesystem::path> peers() {
  std::vector<std::filesystem::path> out;
  const char* const folder = std::getenv("SPECDEC_QUANTISED_PEERS");
  if (folder == nullptr || *folder == 0) return out;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.is_directory()) out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

// Both sides multiply numbers of at most 8 bits by a scale and round once to fp16, so they have the same bits.
TEST(QuantisedPeers, WeightsAreThoseOfTransformers) {
  if (peers().empty()) GTEST_SKIP() << "SPECDEC_QUANTISED_PEERS names no folder that quantised_peers.py has written";
  int64_t matrices = 0;
  for (const std::filesystem::path& path : peers()) {
    const auto theirs = load_golden(path.string() + ".safetensors");
    ASSERT_FALSE(theirs.empty()) << path;
    model::Decoder decoder = model::load_decoder(path, at::kCPU, at::kFloat);
    decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& ours) {
      if (!theirs.contains(name)) return;
      ++matrices;
      const at::Tensor& expected = theirs.at(name);
      EXPECT_TRUE(at::equal(ours.to(at::kHalf).to(at::kFloat), expected))
          << path << " " << name << ": differs by up to " << largest_difference(ours, expected);
    });
  }
  EXPECT_EQ(matrices, 7 * static_cast<int64_t>(peers().size()));
}

// A wrong shape of any part of a quantised matrix must be an error that names the matrix.
TEST(QuantisedPeers, AWrongShapeIsNotRead) {
  if (peers().empty()) GTEST_SKIP() << "SPECDEC_QUANTISED_PEERS names no folder that quantised_peers.py has written";
  for (const std::filesystem::path& path : peers()) {
    const Bent whole(path);
    for (const auto& [name, stored] : whole.tensors) {
      if (!name.starts_with("model.layers.0.mlp.down_proj.")) continue;
      for (const std::vector<int64_t>& shape : wrong_shapes(stored.shape)) {
        // This shape is valid: without blocks, one number may be the scale of a whole matrix.
        if (name.ends_with(".weight_scale") && c10::multiply_integers(shape) == 1) continue;
        Bent bent = whole;
        bent.reshape(name, shape);
        EXPECT_NE(bent.error().find("down_proj."), std::string::npos)
            << path << " " << name << " " << c10::str(at::IntArrayRef(shape)) << ": " << bent.error();
      }
    }
  }
}

}  // namespace
}  // namespace specdec::parity
