#include "deploy/package/card.h"

#include "tests/package/pair.h"

namespace specdec::deploy {
namespace {

using specdec::testing::get;
using specdec::testing::Pair;
using specdec::testing::put;

TEST(Card, LicenceOfTheFrontMatter) {
  EXPECT_EQ(
      card_licence(
          "---\nlicense: other\nlicense_name: llama3\r\nlicense_link: LICENSE\ntags: [x]\n---\nlicense: not this\n"),
      "license: other\nlicense_name: llama3\nlicense_link: LICENSE\n");
  EXPECT_EQ(card_licence("# no front matter\nlicense: mit\n"), "");
  EXPECT_EQ(card_licence(""), "");
}

TEST(Card, SaysWhatItIsForAndHowItWasMeasured) {
  Pair pair;
  const fs::path snapshot = pair.dir / "models--org--Chat-7B/snapshots/0123456789012345678901234567890123456789";
  fs::create_directories(snapshot.parent_path());
  fs::copy(pair.dir / "target", snapshot, fs::copy_options::recursive);
  put(snapshot / "README.md", "---\nlicense: apache-2.0\n---\n# Chat\n");
  PackageOptions options = pair.options();
  options.target = snapshot;
  const PackageOutcome made = create_package(options, 0, {});
  ASSERT_EQ(made.exit_code, 0) << made.reason;
  const std::string card = get(made.path / "draft/README.md");
  for (const char* text :
       {"---\nlicense: apache-2.0\nbase_model: org/Chat-7B\nbase_model_relation: finetune\nlibrary_name: "
        "transformers\n",
        "pass: acceptance 0.70 above the floor", "0.700 (0.650 to 0.750, 40 requests) at temperature 0.75",
        "1.400 (1.300 to 1.500, 8 requests) on cpu, fp32", "acceptance: code | 0.600",
        "K by batch: batch 1: K 4 (validated: measured 1.40 [1.30, 1.50]), 2-4: K 4 (predicted 1.35)"})
    EXPECT_NE(card.find(text), std::string::npos) << text << " not in\n" << card;
  EXPECT_EQ(get(made.path / "target/README.md"), get(snapshot / "README.md")) << "the target keeps its own";
}

TEST(Card, NamesNoHubThatItDoesNotKnow) {
  const Pair pair;
  const std::string card = get(pair.create().path / "draft/README.md");
  EXPECT_EQ(card.find("base_model"), std::string::npos) << card;
  EXPECT_NE(card.find("whose files name none here"), std::string::npos);
}

}  // namespace
}  // namespace specdec::deploy
