// Fuzzes the readers of a teacher's files. The first byte says what the rest is: 'h' a file of hidden states as vLLM
// writes it, 's' a shard of labels whose digest is in the index, 'i' the index of labels. All values read from an
// accepted file must be within their ranges.
#include <cmath>

#include "base/safetensors.h"
#include "base/sha256.h"
#include "distill/labels/label_files.h"
#include "distill/teacher/hidden_files.h"
#include "tests/fuzz/scratch_file.h"

namespace {

using namespace specdec;
using namespace specdec::distill;
using fuzz::require;

LabelIndex index_of(const std::string& sha256, const std::string& kind) {
  LabelIndex index;
  index.kind = kind;
  (kind == "top_k" ? index.top_k : index.hidden_size) = 2;
  index.vocab_size = 9;
  index.data_digest = index.tokenizer_digest = std::string(64, 'a');
  index.num_rows = 2;
  index.shards = {{"labels-00000.safetensors", sha256, 2, 3}};
  return index;
}

TokenRow row_of(std::vector<int32_t> tokens) {
  TokenRow row;
  row.loss_mask.assign(tokens.size(), 1);
  row.tokens = std::move(tokens);
  return row;
}

void read_hidden(const fuzz::MemoryDirectory& directory) {
  static const TokenRow one = row_of({1, 2, 3}), two = row_of({1, 2});
  const HiddenFiles files({directory.path(), 2, {1, 1}, {}}, {&one, &two});
  for (const HiddenFile& file : files.files()) {
    std::vector<float> states(static_cast<size_t>(2 * file.tokens));
    read_states(file, 2, 0, file.tokens, states.data());
    for (const float x : states) require(std::isfinite(x));
  }
}

void read_label_rows(const fuzz::MemoryDirectory& directory) {
  const LabelReader reader(directory.path(), {std::string(64, 'a'), std::string(64, 'a'), "", 1, "", ""});
  for (int64_t row = 0; row < std::min<int64_t>(reader.index().num_rows, 4); ++row) {
    const int64_t positions = reader.positions(row);
    require(positions >= 0);
    try {
      const RowLabels labels = reader.read(row, positions);
      for (const int32_t id : labels.ids) require(id >= 0 && id < reader.index().vocab_size);
      for (const float x : labels.logprobs) require(std::isfinite(x));
    } catch (const Error& e) {
      require(e.kind() == ErrorKind::kData);
    }
  }
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

// Returns the bytes of a safetensors file with these tensors.
std::string file_of(const std::vector<TensorToWrite>& tensors) {
  const fuzz::MemoryDirectory directory;
  write_safetensors(directory.path() / "seed", tensors);
  return read_file(directory.path() / "seed");
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  const std::vector<int64_t> tokens = {1, 2, 3}, start = {0, 1, 3};
  const std::vector<float> states(12, 0.5f), logprobs(6, -1.0f), rest(3, -1.0f);
  const std::vector<int32_t> ids = {1, 2, 3, 4, 5, 6};
  return {"h" + file_of({{"token_ids", "I64", {3}, bytes_of(tokens)},
                         {"hidden_states", "F32", {3, 2, 2}, bytes_of(states)}}),
          "s" + file_of({{"row_start", "I64", {3}, bytes_of(start)},
                         {"ids", "I32", {3, 2}, bytes_of(ids)},
                         {"logprobs", "F32", {3, 2}, bytes_of(logprobs)},
                         {"rest", "F32", {3}, bytes_of(rest)}}),
          "i" + to_json(index_of(std::string(64, 'a'), "top_k")).dump(),
          "i" + to_json(index_of(std::string(64, 'a'), "hidden")).dump()};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::MemoryDirectory directory;
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    if (data[0] == 'h') {
      directory.put("labels-00000.safetensors", rest);
      read_hidden(directory);
    } else if (data[0] == 's') {
      directory.put("labels-00000.safetensors", rest);
      directory.put("index.json", to_json(index_of(sha256_hex(rest), "top_k")).dump());
      read_label_rows(directory);
    } else {
      const LabelIndex index = label_index_from_json(parse_json(rest, "index.json"), "index.json");
      require(to_json(label_index_from_json(to_json(index), "index.json")) == to_json(index));
    }
  } catch (const Error& e) {
    require(e.kind() == ErrorKind::kData);
  }
  return 0;
}
