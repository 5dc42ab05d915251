// Fuzzes model.safetensors.index.json of a model with two shards, and the index.json of a data directory. An accepted
// index must name only tensors that exist and can be read, and no file outside of the directory.
#include <string>
#include <string_view>
#include <vector>

#include "base/safetensors.h"
#include "base/schema/shard_index.h"
#include "tests/fuzz/scratch_file.h"

namespace {

using namespace specdec;
using fuzz::require;

std::string shard(const std::string& first, const std::string& second) {
  const std::string header = "{\"" + first + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},")" + second +
                             R"(":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})";
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + "abc";
}

void read_model(const std::filesystem::path& directory) {
  const SafetensorsDirectory model(directory);
  for (const std::string& name : model.names()) {
    const TensorEntry& entry = model.entry(name);
    require(entry.bytes <= 2);
    std::vector<std::byte> bytes(entry.bytes);
    model.read(name, bytes);
  }
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {R"({"metadata":{"total_size":6},"weight_map":{"a":"one.safetensors","b":"one.safetensors",)"
          R"("c":"two.safetensors","d":"two.safetensors"}})",
          R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})",
          R"({"weight_map":{"a":"../one.safetensors"}})", R"({"weight_map":{}})",
          R"({"schema":"specdec.data/1","tokenizer_digest":"","shards":[{"tokens":"t","rows":"r","split":"train",)"
          R"("num_rows":1}]})"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::MemoryDirectory directory;
  static const bool filled =
      (directory.put("one.safetensors", shard("a", "b")), directory.put("two.safetensors", shard("c", "d")), true);
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  directory.put("model.safetensors.index.json", text);
  require(filled);
  try {
    read_model(directory.path());
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kModel);
  }
  try {
    const Json json = parse_json(text, "fuzz");
    const ShardIndex index = shard_index_from_json(json, "fuzz");
    for (const ShardFile& file : index.shards)
      require(!file.tokens.empty() && file.tokens.find('/') == file.tokens.npos && file.num_rows >= 0);
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kData);
  }
  return 0;
}
