#include "monitor/facts/full_check.h"

#include <gtest/gtest.h>

#include "base/fingerprint.h"
#include "base/safetensors.h"
#include "tests/base/scratch.h"

namespace specdec::monitor {
namespace {

class FullCheck : public ::testing::Test {
 protected:
  FullCheck() {
    for (const char* name : {"packaged", "served"})
      testing::write_tiny_model(dir / name, {.layers = 2, .vocab = 512, .hidden = 128});
  }
  TargetCheck look(const fs::path& packaged) {
    const TargetCheck sight = check_every_byte(pair, packaged, dir / "served", memory);
    memory = sight.memory;
    return sight;
  }
  // Flips a bit that is not among the samples of the fingerprint.
  void flip() {
    const fs::path file = dir / "served" / "model.safetensors";
    const TensorEntry e = SafetensorsFile(file).tensors().at("model.layers.1.mlp.down_proj.weight");
    const std::string good = testing::get(file), id = fingerprint_model(dir / "served").id;
    for (uint64_t at = 0; at < e.bytes; at += 4096) {
      std::string bytes = good;
      bytes[e.offset + at] ^= 1;
      testing::put(file, bytes);
      if (fingerprint_model(dir / "served").id == id) return;
    }
    FAIL() << "every place is sampled";
  }

  testing::Scratch dir;
  WatchedPair pair{"package-1", "id"};
  std::string memory;
};

TEST_F(FullCheck, OneBitIsSeenAgainstThePackagesCopy) {
  EXPECT_EQ(look(dir / "packaged").stale, "");
  flip();
  EXPECT_NE(look(dir / "packaged").stale.find("outside the samples"), std::string::npos);
}

TEST_F(FullCheck, WhereThePackageHasNoneTheFirstCheckIsTheReference) {
  EXPECT_EQ(look("").stale, "");
  EXPECT_EQ(look("").stale, "");
  flip();
  EXPECT_NE(look("").stale, "");
  pair.package = "package-2";
  EXPECT_EQ(look("").stale, "") << "another package begins anew";
}

// Files that were not written to are not read again. To show this, the test puts a wrong digest into the memory. The
// check then reports another target, because it uses the stored digest instead of reading the file.
TEST_F(FullCheck, IsReadAgainOnlyAfterAWrite) {
  look(dir / "packaged");
  Json m = Json::parse(memory);
  for (auto& [path, entry] : m["known"].items())
    if (path.ends_with("served")) entry["digest"] = std::string(64, 'c');
  memory = m.dump();
  EXPECT_NE(look(dir / "packaged").stale, "");
  testing::write_tiny_model(dir / "served", {.layers = 2, .vocab = 512, .hidden = 128});
  EXPECT_EQ(look(dir / "packaged").stale, "");
  memory = "{}";
  testing::expect_error(ErrorKind::kData, {"schema"}, [&] { look(dir / "packaged"); });
}

}  // namespace
}  // namespace specdec::monitor
