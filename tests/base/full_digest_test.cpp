// Tests all four tiers of the fingerprint with changes that they must detect or ignore: one bit, a merged adapter, a
// template, another sharding.
#include "base/full_digest.h"

#include <cstring>

#include "base/fingerprint.h"
#include "base/safetensors.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

class FullDigest : public ::testing::Test {
 protected:
  FullDigest() { testing::write_tiny_model(dir / "base", {.layers = 2, .vocab = 512, .hidden = 128}); }

  std::string tiers(const fs::path& other) const {
    return differing_tiers(fingerprint_model(dir / "base"), fingerprint_model(other));
  }
  bool same_bytes(const fs::path& other) const {
    return full_weights_digest(dir / "base") == full_weights_digest(other);
  }
  fs::path copy(const std::string& name) const {
    fs::copy(dir / "base", dir / name, fs::copy_options::recursive);
    return dir / name;
  }

  testing::Scratch dir;
};

TEST_F(FullDigest, OneBitAnywhereIsSeen) {
  const fs::path m = copy("flipped"), file = m / "model.safetensors";
  const TensorEntry e = SafetensorsFile(file).tensors().at("model.layers.1.mlp.down_proj.weight");
  ASSERT_GT(e.bytes, 3 * 16384u) << "sampled, not read whole";
  const std::string good = testing::get(file);
  int unseen = 0;
  for (uint64_t at = 0; at < e.bytes; at += e.bytes / 8) {
    std::string bytes = good;
    bytes[e.offset + at] ^= 1;
    testing::put(file, bytes);
    EXPECT_FALSE(same_bytes(m)) << at;
    unseen += tiers(m).empty();
  }
  EXPECT_GE(unseen, 3) << "tier 3 samples: that is what tier 4 is for";
}

TEST_F(FullDigest, AMergedAdapterIsSeenByTheSamplesAlready) {
  const fs::path m = copy("merged"), file = m / "model.safetensors";
  const TensorEntry e = SafetensorsFile(file).tensors().at("model.layers.0.mlp.down_proj.weight");
  std::string bytes = testing::get(file);
  for (uint64_t row = 0; row < 128; ++row)  // a rank-one update that changes every weight of one layer
    for (uint64_t column = 0; column < 128; ++column) {
      float w;
      std::memcpy(&w, &bytes[e.offset + 4 * (128 * row + column)], 4);
      w += 1e-3F * static_cast<float>(row + 1) * static_cast<float>(column + 1);
      std::memcpy(&bytes[e.offset + 4 * (128 * row + column)], &w, 4);
    }
  testing::put(file, bytes);
  EXPECT_EQ(tiers(m), "weights");
  EXPECT_FALSE(same_bytes(m));
}

TEST_F(FullDigest, ATemplateIsNoWeight) {
  const fs::path m = copy("template");
  testing::put(m / "chat_template.jinja", "{{ messages }}!");
  EXPECT_EQ(tiers(m), "tokenizer");
  EXPECT_TRUE(same_bytes(m));
}

TEST_F(FullDigest, AnotherShardingIsNoChange) {
  testing::write_tiny_model(dir / "sharded", {.layers = 2, .vocab = 512, .hidden = 128, .shards = 3});
  EXPECT_EQ(tiers(dir / "sharded"), "");
  EXPECT_TRUE(same_bytes(dir / "sharded"));
}

TEST_F(FullDigest, TheStampMovesWithEveryWrite) {
  const fs::path m = copy("stamped"), file = m / "model.safetensors";
  const std::string before = weights_stamp(m), bytes = testing::get(file);
  EXPECT_EQ(weights_stamp(m), before);
  const auto time = fs::last_write_time(file);
  testing::put(file, bytes);
  fs::last_write_time(file, time);
  EXPECT_NE(weights_stamp(m), before) << "a time that was set back: ctime tells";
  EXPECT_NE(weights_stamp(dir / "base"), before);
  testing::expect_error(ErrorKind::kModel, {"no model.safetensors"}, [&] { weights_stamp(dir / "none"); });
}

}  // namespace
}  // namespace specdec
