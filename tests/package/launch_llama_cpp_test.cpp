// engines/llama.cpp.sh.
#include "tests/package/launch_case.h"

namespace specdec::deploy {
namespace {

using specdec::testing::get;
using specdec::testing::put;

// A stand-in for llama.cpp's converter. Like the real one, it refuses a head without its target.
constexpr char kConverter[] = R"(import json, sys
config = json.load(open(sys.argv[1] + "/config.json"))
if "draft_vocab_size" in config and "--target-model-dir" not in sys.argv: sys.exit("EAGLE-3 model requires its target")
open(sys.argv[sys.argv.index("--outfile") + 1], "w").write(" ".join(sys.argv[1:2] + sys.argv[6:]))
)";

// A stand-in for `specdec export`, which writes its type and model into the file.
constexpr char kExport[] = R"(#!/bin/sh
[ "$1 $2 $4" = 'export --gguf --type' ] && [ ! -e "$3" ] && printf '%s %s' "$5" "$6" > "$3"
)";
void put_export(const testing::Scratch& dir) {
  put(dir / "specdec", kExport);
  fs::permissions(dir / "specdec", fs::perms::owner_all);
  ::setenv("SPECDEC", (dir / "specdec").c_str(), 1);
  ::setenv("GGUF_DIR", (dir / "gguf").c_str(), 1);
}

TEST(Launch, LlamaCppConvertsAHeadWithItsTarget) {
  const testing::Scratch dir;
  put_export(dir);
  put(dir / "llama/convert_hf_to_gguf.py", kConverter);
  const fs::path package = dir / "a \"package\" \\ here";
  put(package / "target/config.json", "{}");
  put(package / "draft/config.json", "{\"draft_vocab_size\": 3}");
  ::setenv("LLAMA_CPP", (dir / "llama").c_str(), 1);
  LaunchPlan p = plan();
  p.kind = DraftKind::kEagle3;
  p.head.target_type = "llama";
  p.head.taps = {1, 2, 4};
  const std::string script = files(p)["llama.cpp.sh"];
  const auto arguments = arguments_of("llama.cpp.sh", script, "llama-server", dir);
  const std::string gguf = (dir / "gguf/aaaaaaaaaaaa-bbbbbbbbbbbb").string();
  EXPECT_EQ(after(arguments, "--spec-type"), "draft-eagle3");
  EXPECT_EQ(after(arguments, "-md"), gguf + "/draft-bf16.gguf");
  EXPECT_EQ(get(gguf + "/target.gguf"), "auto " + (package / "target").string());
  EXPECT_EQ(get(gguf + "/draft-bf16.gguf"),
            (package / "draft").string() + " --target-model-dir " + (package / "target").string());
  EXPECT_NE(script.find("target_layers = [1, 2, 4]"), std::string::npos) << script;
  p.head.taps.clear();
  EXPECT_EQ(files(p)["llama.cpp.sh"].find("target_layers"), std::string::npos);
  p.has_gguf = true;
  const auto packaged = arguments_of("llama.cpp.sh", files(p)["llama.cpp.sh"], "llama-server", dir);
  EXPECT_EQ(after(packaged, "-m"), (package / "gguf/target.gguf").string());
  EXPECT_EQ(after(packaged, "-md"), gguf + "/draft-bf16.gguf") << "a package has no head as GGUF";
}

TEST(Launch, LlamaCppWritesGgufOnceAndNamesBothFiles) {
  const testing::Scratch dir;
  put_export(dir);
  const std::string gguf = (dir / "gguf/aaaaaaaaaaaa-bbbbbbbbbbbb").string();
  const std::string script = files(plan())["llama.cpp.sh"], package = (dir / "a \"package\" \\ here").string();
  EXPECT_EQ(script.find("python"), std::string::npos) << script;
  const auto arguments = arguments_of("llama.cpp.sh", script, "llama-server", dir);
  EXPECT_EQ(after(arguments, "-m"), gguf + "/target.gguf");
  EXPECT_EQ(after(arguments, "-md"), gguf + "/draft-auto.gguf");
  EXPECT_EQ(after(arguments, "--spec-type"), "draft-simple");
  EXPECT_EQ(after(arguments, "--spec-draft-n-max"), "5");
  EXPECT_EQ(get(gguf + "/target.gguf"), "auto " + package + "/target");
  EXPECT_EQ(get(gguf + "/draft-auto.gguf"), "auto " + package + "/draft");
  put(gguf + "/target.gguf", "of an earlier start");
  ::setenv("DRAFT_TYPE", "q8_0", 1);
  const auto again = arguments_of("llama.cpp.sh", script, "llama-server", dir);
  ::unsetenv("DRAFT_TYPE");
  EXPECT_EQ(after(again, "-md"), gguf + "/draft-q8_0.gguf");
  EXPECT_EQ(get(gguf + "/draft-q8_0.gguf"), "q8_0 " + package + "/draft");
  EXPECT_EQ(get(gguf + "/target.gguf"), "of an earlier start");
}

TEST(Launch, LlamaCppServesThePackagedGgufFiles) {
  const testing::Scratch dir;
  ::setenv("SPECDEC", "/nonexistent", 1);  // nothing is written at the start
  ::setenv("GGUF_DIR", (dir / "gguf").c_str(), 1);
  LaunchPlan p = plan();
  p.has_gguf = true;
  const std::string package = (dir / "a \"package\" \\ here").string();
  const auto arguments = arguments_of("llama.cpp.sh", files(p)["llama.cpp.sh"], "llama-server", dir);
  EXPECT_EQ(after(arguments, "-m"), package + "/gguf/target.gguf");
  EXPECT_EQ(after(arguments, "-md"), package + "/gguf/draft.gguf");
  EXPECT_FALSE(fs::exists(dir / "gguf"));
  ::setenv("TARGET_GGUF", "/models/own.gguf", 1);
  EXPECT_EQ(after(arguments_of("llama.cpp.sh", files(p)["llama.cpp.sh"], "llama-server", dir), "-m"),
            "/models/own.gguf");
  ::unsetenv("TARGET_GGUF");
  p.target_gguf = p.draft_gguf = "model.gguf";  // the models are GGUF files themselves
  const auto own = arguments_of("llama.cpp.sh", files(p)["llama.cpp.sh"], "llama-server", dir);
  EXPECT_EQ(after(own, "-m"), package + "/target/model.gguf");
  EXPECT_EQ(after(own, "-md"), package + "/draft/model.gguf");
  p.target_gguf = p.draft_gguf = "";
  p.target_reference = "org/target";
  put_export(dir);
  const auto referred = arguments_of("llama.cpp.sh", files(p)["llama.cpp.sh"], "llama-server", dir);
  EXPECT_EQ(after(referred, "-m"), (dir / "gguf/aaaaaaaaaaaa-bbbbbbbbbbbb/target.gguf").string());
  EXPECT_EQ(get(after(referred, "-m")), "auto org/target");
  EXPECT_EQ(after(referred, "-md"), package + "/gguf/draft.gguf");
}

}  // namespace
}  // namespace specdec::deploy
