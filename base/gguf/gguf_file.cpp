#include "base/gguf/gguf_file.h"

#include <array>
#include <cstdio>

#include "base/gguf/header_reader.h"

namespace specdec::gguf {

namespace {

constexpr int64_t kMostFiles = 1000;

// Sources of the numbers and sizes: ggml.h (enum ggml_type) and ggml-common.h (struct block_*).
constexpr std::array<TensorType, 11> kTypes = {{{"F32", 0, 1, 4},
                                                {"F16", 1, 1, 2},
                                                {"Q4_0", 2, 32, 18},
                                                {"Q4_1", 3, 32, 20},
                                                {"Q5_0", 6, 32, 22},
                                                {"Q5_1", 7, 32, 24},
                                                {"Q8_0", 8, 32, 34},
                                                {"Q4_K", 12, 256, 144},
                                                {"Q5_K", 13, 256, 176},
                                                {"Q6_K", 14, 256, 210},
                                                {"BF16", 30, 1, 2}}};

const char* kind_of(const Value& value) {
  static constexpr std::array<const char*, 10> kKinds = {"a bool",
                                                         "an integer",
                                                         "an integer",
                                                         "a float",
                                                         "a string",
                                                         "an array of bools",
                                                         "an array of integers",
                                                         "an array of integers",
                                                         "an array of floats",
                                                         "an array of strings"};
  return kKinds[value.index()];
}

[[noreturn]] void refuse_value(const GgufFile& file, const std::string& key, const std::string& text) {
  throw Error(ErrorKind::kModel, file.files()[0]->path().string() + ": metadata " + in_quotes(key) + ": " + text);
}

// Returns the metadata value of this name; null if the file has none.
const Value* find_value(const GgufFile& file, const std::string& key) {
  const auto at = file.metadata().find(key);
  return at == file.metadata().end() ? nullptr : &at->second;
}

// Returns the value as type T; null if the file has none.
template <class T>
const T* find_value(const GgufFile& file, const std::string& key, const char* expected) {
  const Value* value = find_value(file, key);
  if (!value) return nullptr;
  if (const T* typed = std::get_if<T>(value)) return typed;
  refuse_value(file, key, std::string("found ") + kind_of(*value) + ", expected " + expected);
}

template <class T>
T require_value(const GgufFile& file, const std::string& key, const std::optional<T>& absent, const char* expected) {
  if (absent) return *absent;
  refuse_value(file, key, std::string("missing, expected ") + expected);
}

// Returns what the file's metadata say about the splits of a model, 0 for what they do not say.
int64_t split_value(const InputFile& file, const Header& header, const std::string& key) {
  const auto at = header.metadata.find(key);
  if (at == header.metadata.end()) return 0;
  const auto* sign = std::get_if<int64_t>(&at->second);
  const auto* plain = std::get_if<uint64_t>(&at->second);
  if ((!sign && !plain) || (sign && *sign < 0) || (plain && *plain > INT32_MAX) || (sign && *sign > INT32_MAX))
    refuse_file(file, key + ": expected an integer from 0 to 2147483647");
  return sign ? *sign : static_cast<int64_t>(*plain);
}

}  // namespace

std::string split_ending(int64_t number, int64_t count) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "-%05lld-of-%05lld.gguf", static_cast<long long>(number),
                static_cast<long long>(count));
  return text.data();
}

const TensorType* find_type(uint32_t id) {
  for (const TensorType& type : kTypes)
    if (type.id == id) return &type;
  return nullptr;
}

const TensorType* find_type(std::string_view name) {
  for (const TensorType& type : kTypes)
    if (type.name == name) return &type;
  return nullptr;
}

GgufFile::GgufFile(const std::filesystem::path& path) {
  HeaderAllowance allowance;
  Sha256 digest;
  int64_t count = 1, num_tensors = 0;
  std::string stem;  // the path without the ending that split_ending returns
  for (int64_t part = 0; part < count; ++part) {
    files_.push_back(std::make_unique<InputFile>(part == 0 ? path : fs::path(stem + split_ending(part + 1, count))));
    const InputFile& file = *files_.back();
    Header header = read_header(file, allowance, digest);
    const int64_t number = split_value(file, header, "split.no"), of = split_value(file, header, "split.count");
    if (part == 0) {
      if (number != 0)
        refuse_file(file, "it is part " + std::to_string(number + 1) + " of a split model: name its first part, …" +
                              split_ending(1, of));
      if (of > kMostFiles)
        refuse_file(file, "split.count is " + std::to_string(of) + ", the limit is " + std::to_string(kMostFiles));
      count = std::max<int64_t>(of, 1);
      num_tensors = split_value(file, header, "split.tensors.count");
      stem = path.string();
      const std::string ending = split_ending(1, count);
      if (count > 1 && !stem.ends_with(ending))
        refuse_file(file,
                    "it is the first of " + std::to_string(count) + " parts, expected a name that ends with " + ending);
      if (count > 1) stem.resize(stem.size() - ending.size());
      metadata_ = std::move(header.metadata);
    } else if (number != part || of != count || split_value(file, header, "split.tensors.count") != num_tensors) {
      refuse_file(file,
                  "its split.no, split.count and split.tensors.count do not agree with its name and with the first "
                  "part (use the parts of one model)");
    }
    for (auto& [name, tensor] : header.tensors) {
      tensor.file = static_cast<size_t>(part);
      if (!tensors_.emplace(std::move(name), std::move(tensor)).second)
        refuse_file(file, "two tensors have the name " + in_quotes(name));
    }
  }
  if (count > 1 && static_cast<int64_t>(tensors_.size()) != num_tensors)
    refuse_file(*files_[0], "split.tensors.count is " + std::to_string(num_tensors) + ", the parts have " +
                                std::to_string(tensors_.size()) + " tensors");
  header_digest_ = digest.hex();
}

const Tensor& GgufFile::tensor(const std::string& name) const {
  const auto at = tensors_.find(name);
  if (at == tensors_.end())
    throw Error(ErrorKind::kModel, files_[0]->path().string() + ": no tensor " + in_quotes(name));
  return at->second;
}

void GgufFile::read(const Tensor& tensor, uint64_t first, std::span<std::byte> out) const {
  if (first > tensor.bytes || out.size() > tensor.bytes - first)
    throw Error(ErrorKind::kInternal, file_of(tensor).path().string() + ": a read beyond the end of a tensor");
  file_of(tensor).read(tensor.offset + first, out);
}

int64_t GgufFile::integer(const std::string& key, int64_t least, int64_t most, std::optional<int64_t> absent) const {
  const Value* value = find_value(*this, key);
  const std::string expected = "an integer from " + std::to_string(least) + " to " + std::to_string(most);
  if (!value) return require_value(*this, key, absent, expected.c_str());
  if (const auto* plain = std::get_if<uint64_t>(value)) {
    if (*plain > INT64_MAX || static_cast<int64_t>(*plain) < least || static_cast<int64_t>(*plain) > most)
      refuse_value(*this, key, std::to_string(*plain) + ", expected " + expected);
    return static_cast<int64_t>(*plain);
  }
  const int64_t number = *find_value<int64_t>(*this, key, expected.c_str());
  if (number < least || number > most) refuse_value(*this, key, std::to_string(number) + ", expected " + expected);
  return number;
}

double GgufFile::number(const std::string& key, double least, double most, std::optional<double> absent) const {
  const std::string expected = "a float from " + std::to_string(least) + " to " + std::to_string(most);
  const auto* value = find_value<double>(*this, key, expected.c_str());
  if (!value) return require_value(*this, key, absent, expected.c_str());
  if (!(*value >= least && *value <= most)) refuse_value(*this, key, std::to_string(*value) + ", expected " + expected);
  return *value;
}

bool GgufFile::flag(const std::string& key, bool absent) const {
  const auto* value = find_value<bool>(*this, key, "a bool");
  return value ? *value : absent;
}

std::string GgufFile::text(const std::string& key, std::optional<std::string> absent) const {
  const auto* value = find_value<std::string>(*this, key, "a string");
  return value ? *value : require_value(*this, key, absent, "a string");
}

const std::vector<std::string>& GgufFile::texts(const std::string& key) const {
  const auto* values = find_value<std::vector<std::string>>(*this, key, "an array of strings");
  if (!values) refuse_value(*this, key, "missing, expected an array of strings");
  return *values;
}

std::vector<int64_t> GgufFile::integers(const std::string& key) const {
  const Value* value = find_value(*this, key);
  if (!value) return {};
  if (const auto* plain = std::get_if<std::vector<uint64_t>>(value)) {
    for (uint64_t number : *plain)
      if (number > INT64_MAX)
        refuse_value(*this, key, "element " + std::to_string(number) + " is above " + std::to_string(INT64_MAX));
    return {plain->begin(), plain->end()};
  }
  return *find_value<std::vector<int64_t>>(*this, key, "an array of integers");
}

std::vector<double> GgufFile::numbers(const std::string& key) const {
  const auto* values = find_value<std::vector<double>>(*this, key, "an array of floats");
  return values ? *values : std::vector<double>();
}

}  // namespace specdec::gguf
