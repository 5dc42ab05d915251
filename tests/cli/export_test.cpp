// `specdec export`, and `specdec package --gguf`.
#include <cstdlib>

#include "base/fingerprint.h"
#include "base/gguf/gguf_file.h"
#include "cli/program.h"
#include "tests/base/gguf/sample_checkpoint.h"
#include "tests/base/sample_report.h"

namespace specdec::cli {
namespace {

// Runs a command and ends the process with its exit code.
[[noreturn]] void end_with(std::vector<std::string> words) {
  words.insert(words.begin(), {"specdec", "-q"});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::exit(run_program(static_cast<int>(words.size()), argv.data(), {}));
}

TEST(Export, WritesOneFileAndReplacesNone) {
  const testing::Scratch dir;
  testing::write_checkpoint(dir / "model");
  const std::string model = (dir / "model").string(), out = (dir / "m.gguf").string();
  EXPECT_EXIT(end_with({"export", model, "--gguf", out, "--type", "q8_0", "--name", "Mine"}),
              ::testing::ExitedWithCode(0), "");
  const gguf::GgufFile file(out);
  EXPECT_EQ(file.text("general.name"), "Mine");
  EXPECT_STREQ(file.tensor("blk.0.attn_q.weight").type->name, "Q8_0");
  const std::string bytes = testing::get(out);
  EXPECT_EXIT(end_with({"export", model, "--gguf", out}), ::testing::ExitedWithCode(2), "m.gguf: exists");
  EXPECT_EQ(testing::get(out), bytes);
}

TEST(Export, SaysWhatIsWrong) {
  const testing::Scratch dir;
  testing::write_checkpoint(dir / "model");
  const std::string model = (dir / "model").string(), out = (dir / "m.gguf").string();
  EXPECT_EXIT(end_with({"export", model, "--gguf", out, "--type", "q3_k"}), ::testing::ExitedWithCode(2), "--type");
  EXPECT_EXIT(end_with({"export", model}), ::testing::ExitedWithCode(2), "--gguf");
  EXPECT_EXIT(end_with({"export", model, "--gguf", out, "--packaged-draft"}), ::testing::ExitedWithCode(2),
              "is no package");
  Json config = testing::llama_config();
  config["model_type"] = "mixtral";
  testing::put(dir / "model/config.json", config.dump());
  EXPECT_EXIT(end_with({"export", model, "--gguf", out}), ::testing::ExitedWithCode(7), "'mixtral' cannot be written");
  EXPECT_FALSE(fs::exists(out));
}

TEST(Export, APackageHoldsGgufFilesIfAsked) {
  const testing::Scratch dir;
  for (const char* model : {"target", "draft"}) testing::write_checkpoint(dir / model);
  const Fingerprint target = fingerprint_model(dir / "target"), draft = fingerprint_model(dir / "draft");
  testing::put(dir / "report.json", to_json(testing::sample_report(target, draft, Verdict::kPass)).dump());
  const std::vector<std::string> create = {"package",
                                           "--target",
                                           (dir / "target").string(),
                                           "--draft",
                                           (dir / "draft").string(),
                                           "--report",
                                           (dir / "report.json").string(),
                                           "--store",
                                           (dir / "store").string(),
                                           "--gguf"};
  const auto with = [&](const std::string& type) {
    std::vector<std::string> words = create;
    words.push_back(type);
    return words;
  };
  EXPECT_EXIT(end_with(with("q3_k")), ::testing::ExitedWithCode(2), "q3_k");
  EXPECT_EXIT(end_with(with("f16")), ::testing::ExitedWithCode(0), "");
  for (const auto& entry : fs::directory_iterator(dir / "store/packages")) {
    EXPECT_STREQ(gguf::GgufFile(entry.path() / "gguf/draft.gguf").tensor("output.weight").type->name, "F16");
    const std::string out = (dir / "draft.gguf").string();
    EXPECT_EXIT(end_with({"export", entry.path().string(), "--packaged-draft", "--gguf", out}),
                ::testing::ExitedWithCode(0), "");
    EXPECT_EQ(gguf::GgufFile(out).text("general.architecture"), "llama");
  }
}

}  // namespace
}  // namespace specdec::cli
