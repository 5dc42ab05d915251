// Keeps tokenised rows on disk until the split is known. In memory it holds only an 8-byte offset per row.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "base/file.h"
#include "base/schema/shard_index.h"

namespace specdec::data {

class RowSpool {
 public:
  explicit RowSpool(std::filesystem::path file) : path_(std::move(file)), writer_(std::in_place, path_), offsets_{0} {}

  void add(const TokenRow& row);
  void finish();  // call after the last add() and before the first read()
  size_t size() const { return offsets_.size() - 1; }
  TokenRow read(size_t index) const;
  void remove();

 private:
  std::filesystem::path path_;
  std::optional<OutputFile> writer_;
  std::optional<InputFile> reader_;
  std::vector<uint64_t> offsets_;
};

}  // namespace specdec::data
