// Reads the header of one GGUF file: everything before the tensors' data. gguf_file.h describes the format.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/gguf/gguf_file.h"
#include "base/sha256.h"

namespace specdec::gguf {

// What the headers of a model's files may still take. read_header subtracts what a header took.
struct HeaderAllowance {
  uint64_t bytes = uint64_t{512} << 20;
  uint64_t tensors = uint64_t{1} << 20;
  uint64_t elements = uint64_t{1} << 24;  // of all arrays
};

struct Header {
  std::map<std::string, Value> metadata;
  std::vector<std::pair<std::string, Tensor>> tensors;  // in the order of the data; Tensor::file is not set
};

// Reads and checks the header, and that the tensors' data lie in the file one after the other. Adds the header's bytes,
// with the padding behind it, to `digest`. Throws the errors of GgufFile.
Header read_header(const InputFile& file, HeaderAllowance& allowance, Sha256& digest);

// Returns a name from a file in quotes, without control characters and cut to 80 bytes, for error messages.
std::string in_quotes(const std::string& name);
// Returns how the name of a part of a split model ends, for numbers from 1: "-00001-of-00003.gguf".
std::string split_ending(int64_t number, int64_t count);

// Throws Error(kModel): "PATH: not a valid GGUF file: <text>".
[[noreturn]] void refuse_file(const InputFile& file, const std::string& text);

}  // namespace specdec::gguf
