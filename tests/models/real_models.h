// A fixture with a copy of a real target and draft in a temporary directory, and with its own HF_HOME (the Hugging Face
// cache).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"
#include "base/schema/binding.h"
#include "tests/source_folder.h"

namespace specdec::deploy {

struct RealModels : testing::Test {
  void SetUp() override {
    const char* shared = std::getenv("SPECDEC_SHARED");
    const fs::path models = fs::path(shared ? std::string(shared) : source_folder() + "/../shared") / "data" / "models";
    if (!fs::exists(models / "stories260K"))
      GTEST_SKIP() << models.string() << " is absent (set SPECDEC_SHARED): nothing tested with real models";
    std::string name = (fs::temp_directory_path() / "specdec_generate_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root = name;
    fs::copy(models / "stories260K", target, fs::copy_options::recursive);
    fs::copy(models / "llama2xs-279K", draft, fs::copy_options::recursive);
    for (const char* variable : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"}) unsetenv(variable);
    setenv("HF_HOME", (root / "hf").c_str(), 1);
  }
  void TearDown() override {
    if (!root.empty()) fs::remove_all(root);
  }
  void bind(const Fingerprint& made_for) {
    DraftBinding binding;
    binding.target = made_for;
    binding.kind = "model";
    binding.training = Json::object();
    write_file_atomic(draft / "specdec.json", to_json(binding).dump());
  }

  fs::path root;
  // The path root / name. It is computed at each use, because SetUp() sets `root` after this member is constructed.
  struct Below {
    const fs::path& root;
    const char* name;
    operator fs::path() const { return root / name; }
    fs::path operator/(const char* file) const { return root / name / file; }
    std::string string() const { return (root / name).string(); }
  };
  Below target{root, "target"}, draft{root, "draft"};
};

// Requires that f throws an Error of kind `kind`, and returns the error's message.
template <class F>
std::string error_of(ErrorKind kind, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.kind()), static_cast<int>(kind)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace specdec::deploy
