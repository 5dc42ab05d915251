#include "base/gguf/model_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "tests/base/gguf/sample_model.h"

namespace specdec::gguf {
namespace {

using testing::expect_error;
using testing::get;
using testing::put;
using testing::SampleModel;

class ModelFiles : public ::testing::Test {
 protected:
  ModelFiles() { ::setenv("XDG_CACHE_HOME", (dir_ / "cache").c_str(), 1); }
  ~ModelFiles() override { ::unsetenv("XDG_CACHE_HOME"); }

  static SampleModel model() {
    SampleModel model("llama");
    model.few_tokens();
    return model;
  }
  void set_time(const fs::path& file, int64_t seconds) {
    const timespec times[2] = {{seconds, 0}, {seconds, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  }

  testing::Scratch dir_;
  const fs::path file_ = dir_ / "Tiny-1M.Q8_0.gguf";
};

TEST_F(ModelFiles, DirectoryHasTheFilesOfAModelAndALink) {
  const GgufFile file = model().open(file_);
  fs::create_symlink(file_, dir_ / "link.gguf");
  const fs::path directory = model_directory_of(dir_ / "link.gguf");
  EXPECT_EQ(directory.parent_path(), dir_ / "cache" / "specdec" / "gguf");
  EXPECT_TRUE(directory.filename().string().starts_with("Tiny-1M.Q8_0-")) << directory;
  EXPECT_EQ(read_json(directory / "config.json"), make_config(file));
  EXPECT_EQ(read_json(directory / "generation_config.json"), make_generation_config(file));
  EXPECT_EQ(read_json(directory / "tokenizer.json"), make_tokenizer(file));
  EXPECT_EQ(read_json(directory / "tokenizer_config.json"), make_tokenizer_config(file));
  EXPECT_EQ(fs::read_symlink(directory / "model.gguf"), fs::canonical(file_));
  EXPECT_EQ(std::distance(fs::directory_iterator(directory), fs::directory_iterator()), 5);
  EXPECT_EQ(model_directory_of(file_), directory);
}

TEST_F(ModelFiles, AnExistingDirectoryIsUsedUntilTheFileChanges) {
  put(file_, model().file.bytes());
  set_time(file_, 1000);
  const fs::path first = model_directory_of(file_);
  put(first / "config.json", "{}");
  EXPECT_EQ(model_directory_of(file_), first);
  EXPECT_EQ(get(first / "config.json"), "{}");
  set_time(file_, 1001);
  const fs::path second = model_directory_of(file_);
  EXPECT_NE(second, first);
  EXPECT_EQ(read_json(second / "config.json")["hidden_size"], 32);
  SampleModel larger = model();
  larger.text("general.name", "larger");
  put(file_, larger.file.bytes());
  set_time(file_, 1001);
  EXPECT_NE(model_directory_of(file_), second);
  fs::rename(file_, dir_ / "moved.gguf");
  EXPECT_NE(model_directory_of(dir_ / "moved.gguf"), second);
}

TEST_F(ModelFiles, PartsOfASplitModelAreLinkedInOrder) {
  const auto put_part = [&](int number, SampleModel part) {
    const auto u16 = [](uint16_t value) { return testing::le<uint32_t>(2) + testing::le(value); };
    part.add("split.no", u16(static_cast<uint16_t>(number - 1)));
    part.add("split.count", u16(2));
    part.add("split.tensors.count", testing::le<uint32_t>(5) + testing::le<int32_t>(3));
    put(dir_ / ("m-0000" + std::to_string(number) + "-of-00002.gguf"), part.file.bytes());
  };
  SampleModel rest("llama");
  rest.file.metadata.clear();
  rest.file.tensors.clear();
  rest.file.add_f32("blk.0.attn_norm.weight", {32});
  put_part(1, model());
  put_part(2, rest);
  const fs::path first = dir_ / "m-00001-of-00002.gguf", second = dir_ / "m-00002-of-00002.gguf";
  const fs::path directory = model_directory_of(first);
  EXPECT_TRUE(directory.filename().string().starts_with("m-")) << directory;
  EXPECT_EQ(fs::read_symlink(directory / "model-00001-of-00002.gguf"), fs::canonical(first));
  EXPECT_EQ(fs::read_symlink(directory / "model-00002-of-00002.gguf"), fs::canonical(second));
  set_time(second, 77);
  EXPECT_NE(model_directory_of(first), directory);
  fs::remove(second);
  expect_error(ErrorKind::kModel, {"m-00002-of-00002.gguf"}, [&] { model_directory_of(first); });
}

TEST_F(ModelFiles, NothingIsLeftOfAModelThatIsRefused) {
  SampleModel other = model();
  other.number("expert_count", 4);
  put(file_, other.file.bytes());
  expect_error(ErrorKind::kModel, {file_.filename().string(), "mixture of experts"},
               [&] { model_directory_of(file_); });
  EXPECT_FALSE(fs::exists(dir_ / "cache"));
  expect_error(ErrorKind::kModel, {"none.gguf"}, [&] { model_directory_of(dir_ / "none.gguf"); });
  put(file_, model().file.bytes());
  put(dir_ / "cache", "a file");
  expect_error(ErrorKind::kIo, {"cache"}, [&] { model_directory_of(file_); });
}

}  // namespace
}  // namespace specdec::gguf
